"""The audit: full precision, low bit and high bit at every revision, and the weights' kurtosis."""


rule probe_checkpoints:
    """All quantizers on one step or a range of steps; each model is loaded once."""
    input:
        checkpoints=checkpoints("probes/{steps}.csv"),
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
        gpu=gpus,
        mem_mb=requested(plan_requests.probe_mb),
        runtime=requested(plan_requests.probe_minutes, "steps"),
    params:
        folders=planned(Suite.folders, "steps"),
        states=planned(plan.checkpoint_states, "steps"),
        probe=planned(plan.probe),
        code=code_hash("workflow_scripts/probe_checkpoints.py"),
    message:
        "Probing {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/probe_checkpoints.py"


rule summarise_probes:
    """One row per step and quantizer, with intervals, from the scores of single sequences."""
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
    """The table of the audit: one row per step and quantizer."""
    input:
        suite_table="results/{suite}/suite.csv",
        tables=of_ranges("results/{suite}/probes/{steps}.csv"),
        scores=of_ranges("results/{suite}/probes/{steps}.parquet"),
        provenance=of_ranges("results/{suite}/probes/{steps}.json"),
    output:
        audit=in_report("results/{suite}/audit.csv", "Audit", "All rows"),
        sequences="results/{suite}/audit_sequences.parquet",
    log:
        "logs/{suite}/gather_audit.log",
    benchmark:
        "benchmarks/{suite}/gather_audit.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        schedule=planned(plan.schedule),
        total_steps=planned(lambda suite: suite.last),
        tokens_per_step=planned(plan.tokens_per_step),
        code=code_hash("workflow_scripts/gather_audit.py"),
    message:
        "Gathering the audit of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_audit.py"


rule measure_kurtosis:
    """Kurtosis of each tensor, their mean, and the kurtosis of all weights together."""
    input:
        checkpoints=checkpoints("kurtosis/{steps}.csv"),
    output:
        table="results/{suite}/kurtosis/{steps}.csv",
    log:
        "logs/{suite}/measure_kurtosis/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_kurtosis/{steps}.tsv"
    priority: 10
    conda:
        "../envs/torch.yaml"
    resources:
        mem_mb=requested(plan_requests.kurtosis_mb),
        runtime=requested(plan_requests.kurtosis_minutes, "steps"),
    params:
        weights=planned(plan.weights, "steps"),
        states=planned(plan.checkpoint_states, "steps"),
        steps=planned(Suite.steps_in, "steps"),
        layers=setting("kurtosis.layers"),
        code=code_hash("workflow_scripts/measure_kurtosis.py"),
    message:
        "Measuring the kurtosis of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_kurtosis.py"


rule gather_kurtosis:
    """Kurtosis of all revisions of a suite in step order."""
    input:
        suite_table="results/{suite}/suite.csv",
        tables=of_ranges("results/{suite}/kurtosis/{steps}.csv"),
    output:
        table="results/{suite}/kurtosis.csv",
    log:
        "logs/{suite}/gather_kurtosis.log",
    benchmark:
        "benchmarks/{suite}/gather_kurtosis.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        in_step_order=True,
        labels=lambda wildcards: {"suite": wildcards.suite},
        code=code_hash("workflow_scripts/gather_tables.py"),
    message:
        "Gathering the kurtosis of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_tables.py"


# Not part of `all`: its rows depend on the installed packages.
rule probe_deployed:
    """Real quantized inference at the fork point and at the end, compared with the simulation."""
    input:
        checkpoints=planned(plan.deployed_files),
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
        gpu=gpus,
        mem_mb=requested(plan_requests.deployed_mb),
        runtime=requested(plan_requests.deployed_minutes),
    params:
        folders=planned(plan.deployed_folders),
        states=planned(plan.deployed_states),
        probe=planned(plan.probe),
        resamples=setting("probe.resamples"),
        code=code_hash("workflow_scripts/probe_deployed.py"),
    message:
        "Probing {wildcards.suite} as it would ship"
    script:
        "../workflow_scripts/probe_deployed.py"
