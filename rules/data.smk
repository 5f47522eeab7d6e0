"""From text to fixed batches of tokens."""


rule collect_text:
    """Documents of both splits from installed packages, and a record of their sources."""
    output:
        train="results/{suite}/data/train.jsonl",
        validation="results/{suite}/data/validation.jsonl",
        manifest="results/{suite}/data/text.json",
    log:
        "logs/{suite}/collect_text.log",
    benchmark:
        "benchmarks/{suite}/collect_text.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.text.source == "packages"),
    conda:
        "../envs/analysis.yaml"
    params:
        source=planned(plan.package_text),
        code=code_hash("workflow_scripts/collect_text.py"),
    message:
        "Collecting the documents of {wildcards.suite}"
    script:
        "../workflow_scripts/collect_text.py"


# The splits of text from files are separate. An audit needs only the validation text, a few
# megabytes; the training text of the paper's forks has two thousand million characters.
rule collect_split:
    """Documents of one split from the first available file, and a record of their source."""
    input:
        files=planned(plan.text_files, "split"),
        held_out=planned(plan.held_out_text, "split"),
    output:
        documents="results/{suite}/data/{split}.jsonl",
        manifest="results/{suite}/data/{split}_text.json",
    log:
        "logs/{suite}/collect_split/{split}.log",
    benchmark:
        "benchmarks/{suite}/collect_split/{split}.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.text.source == "files"),
    conda:
        "../envs/analysis.yaml"
    params:
        text=planned(plan.split_text, "split"),
        states=planned(plan.text_states, "split"),
        code=code_hash("workflow_scripts/collect_split.py"),
    message:
        "Collecting the {wildcards.split} documents of {wildcards.suite}"
    script:
        "../workflow_scripts/collect_split.py"


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
    """Validation batches and training stream of text from packages, made once for all rules."""
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
        suite=suites_where(
            lambda suite: suite.config.text.source == "packages"
            and suite.config.batches.train is not None
        ),
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
        suite=suites_where(
            lambda suite: suite.config.text.source == "packages"
            and suite.config.batches.train is None
        ),
    message:
        "Making the validation batches of {wildcards.suite}"


rule fix_split:
    """Fixed batches of one split of text from files."""
    input:
        documents="results/{suite}/data/{split}.jsonl",
        source="results/{suite}/data/{split}_text.json",
        held_out=planned(plan.held_out_text, "split"),
        tokenizer="results/{suite}/data/tokenizer.json",
    output:
        tokens="results/{suite}/data/{split}.safetensors",
        manifest="results/{suite}/data/{split}.json",
    log:
        "logs/{suite}/fix_split/{split}.log",
    benchmark:
        "benchmarks/{suite}/fix_split/{split}.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.text.source == "files"),
    conda:
        "../envs/analysis.yaml"
    params:
        batches=planned(plan.split_batches, "split"),
        vocabulary=planned(plan.vocabulary),
        code=code_hash("workflow_scripts/fix_split.py"),
    message:
        "Making the {wildcards.split} batches of {wildcards.suite}"
    script:
        "../workflow_scripts/fix_split.py"
