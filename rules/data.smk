"""From text to fixed batches of tokens."""


rule collect_text:
    """Documents of both splits, and a record of their sources."""
    input:
        files=planned(plan.text_files),
    output:
        train="results/{suite}/data/train.jsonl",
        validation="results/{suite}/data/validation.jsonl",
        manifest="results/{suite}/data/text.json",
    log:
        "logs/{suite}/collect_text.log",
    benchmark:
        "benchmarks/{suite}/collect_text.tsv"
    conda:
        "../envs/analysis.yaml"
    params:
        source=planned(plan.text),
        states=planned(plan.text_states),
        code=code_hash("workflow_scripts/collect_text.py"),
    message:
        "Collecting the documents of {wildcards.suite}"
    script:
        "../workflow_scripts/collect_text.py"


rule train_tokenizer:
    """A byte-level BPE, trained on the training documents."""
    input:
        train="results/{suite}/data/train.jsonl",
    output:
        tokenizer="results/{suite}/data/tokenizer.json",
    log:
        "logs/{suite}/train_tokenizer.log",
    benchmark:
        "benchmarks/{suite}/train_tokenizer.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.tokenizer_source == "trained"),
    conda:
        "../envs/analysis.yaml"
    params:
        vocab_size=setting("tokenizer.vocab_size"),
        code=code_hash("workflow_scripts/train_tokenizer.py"),
    message:
        "Training the tokenizer of {wildcards.suite}"
    script:
        "../workflow_scripts/train_tokenizer.py"


rule fetch_tokenizer:
    """The tokenizer of a hub model."""
    output:
        tokenizer="results/{suite}/data/tokenizer.json",
        record="results/{suite}/data/tokenizer_source.json",
    log:
        "logs/{suite}/fetch_tokenizer.log",
    benchmark:
        "benchmarks/{suite}/fetch_tokenizer.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.tokenizer_source == "hub"),
    conda:
        "../envs/analysis.yaml"
    params:
        source=planned(
            lambda suite: suite.config.tokenizer.model_dump(include={"repo", "revision"})
        ),
        code=code_hash("workflow_scripts/fetch_tokenizer.py"),
    message:
        "Fetching the tokenizer of {wildcards.suite}"
    script:
        "../workflow_scripts/fetch_tokenizer.py"


rule copy_tokenizer:
    """The tokenizer beside a local suite's checkpoints, or at its configured path."""
    input:
        source=planned(plan.tokenizer_file),
    output:
        tokenizer="results/{suite}/data/tokenizer.json",
    log:
        "logs/{suite}/copy_tokenizer.log",
    benchmark:
        "benchmarks/{suite}/copy_tokenizer.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.tokenizer_source == "file"),
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        states=planned(plan.tokenizer_states),
    message:
        "Copying the tokenizer of {wildcards.suite} from {input.source}"
    shell:
        "cp {input.source:q} {output.tokenizer:q} 2> {log:q}"


rule fix_batches:
    """Validation batches and training stream, made once and used by all later rules."""
    input:
        train_text="results/{suite}/data/train.jsonl",
        validation_text="results/{suite}/data/validation.jsonl",
        manifest="results/{suite}/data/text.json",
        tokenizer="results/{suite}/data/tokenizer.json",
    output:
        validation="results/{suite}/data/validation.safetensors",
        validation_manifest="results/{suite}/data/validation.json",
        train="results/{suite}/data/train.safetensors",
        train_manifest="results/{suite}/data/train.json",
    log:
        "logs/{suite}/fix_batches.log",
    benchmark:
        "benchmarks/{suite}/fix_batches.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.batches.train is not None),
    conda:
        "../envs/analysis.yaml"
    params:
        batches=planned(plan.batches),
        vocabulary=planned(plan.vocabulary),
        code=code_hash("workflow_scripts/fix_batches.py"),
    message:
        "Making the fixed batches of {wildcards.suite}"
    script:
        "../workflow_scripts/fix_batches.py"


# A suite that trains nothing needs no training stream.
use rule fix_batches as fix_batches_validation with:
    output:
        validation="results/{suite}/data/validation.safetensors",
        validation_manifest="results/{suite}/data/validation.json",
    log:
        "logs/{suite}/fix_batches/validation.log",
    benchmark:
        "benchmarks/{suite}/fix_batches/validation.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.batches.train is None),
    message:
        "Making the validation batches of {wildcards.suite}"
