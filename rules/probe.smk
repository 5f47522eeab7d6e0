"""The audit: full precision, low bit and high bit at every revision."""


rule probe_checkpoints:
    """All quantizers on one step or a range of steps; each model is loaded once."""
    input:
        checkpoints=planned(plan.checkpoint_files, "steps"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        sequences="results/{suite}/probes/{steps}.parquet",
        provenance="results/{suite}/probes/{steps}.json",
    log:
        "logs/{suite}/probe_checkpoints/{steps}.log",
    benchmark:
        "benchmarks/{suite}/probe_checkpoints/{steps}.tsv"
    priority: 10
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=planned(plan.gpus),
    params:
        folders=planned(Suite.folders, "steps"),
        probe=planned(plan.probe),
        code=code_hash("workflow_scripts/probe_checkpoints.py"),
    message:
        "Probing {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/probe_checkpoints.py"


rule summarise_probes:
    """A row per step and quantizer, with intervals, from the scores of single sequences."""
    input:
        sequences="results/{suite}/probes/{steps}.parquet",
    output:
        table="results/{suite}/probes/{steps}.csv",
    log:
        "logs/{suite}/summarise_probes/{steps}.log",
    benchmark:
        "benchmarks/{suite}/summarise_probes/{steps}.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        resamples=setting("probe.resamples"),
        code=code_hash("workflow_scripts/summarise_probes.py"),
    message:
        "Summarising the probes of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/summarise_probes.py"


rule gather_audit:
    """The tidy table of the audit: a row per step and quantizer."""
    input:
        suite_table="results/{suite}/suite.csv",
        tables=of_ranges("results/{suite}/probes/{steps}.csv"),
        scores=of_ranges("results/{suite}/probes/{steps}.parquet"),
    output:
        audit=in_report("results/{suite}/audit.csv", "Audit", "All rows"),
        sequences="results/{suite}/audit_sequences.parquet",
    log:
        "logs/{suite}/gather_audit.log",
    benchmark:
        "benchmarks/{suite}/gather_audit.tsv"
    localrule: True
    conda:
        "../envs/torch.yaml"
    params:
        schedule=planned(plan.schedule),
        total_steps=planned(lambda suite: suite.last),
        tokens_per_step=planned(plan.tokens_per_step),
        code=code_hash("workflow_scripts/gather_audit.py"),
    message:
        "Gathering the audit of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_audit.py"


# Not part of `all`: what it holds depends on which packages are installed.
rule probe_deployed:
    """Real quantized inference where the forks begin and at the end, beside the simulated one."""
    input:
        checkpoints=planned(
            lambda suite: plan.checkpoint_files(suite, plan.deployed_folders(suite))
        ),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/deployed.csv",
    log:
        "logs/{suite}/probe_deployed.log",
    benchmark:
        "benchmarks/{suite}/probe_deployed.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=planned(plan.gpus),
    params:
        folders=planned(plan.deployed_folders),
        probe=planned(plan.probe),
        resamples=setting("probe.resamples"),
        code=code_hash("workflow_scripts/probe_deployed.py"),
    message:
        "Probing {wildcards.suite} as it would ship"
    script:
        "../workflow_scripts/probe_deployed.py"
