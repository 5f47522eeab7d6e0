"""Weight excess kurtosis at every revision."""


rule measure_kurtosis:
    """Kurtosis per tensor, their mean, and pooled."""
    input:
        weights=planned(plan.weights, "steps"),
        checkpoints=planned(plan.checkpoint_files, "steps"),
    output:
        table="results/{suite}/kurtosis/{steps}.csv",
    log:
        "logs/{suite}/measure_kurtosis/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_kurtosis/{steps}.tsv"
    priority: 10
    conda:
        "../envs/torch.yaml"
    params:
        steps=planned(Suite.steps_in, "steps"),
        layers=setting("kurtosis.layers"),
        code=code_hash("workflow_scripts/measure_kurtosis.py"),
    message:
        "Measuring the kurtosis of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_kurtosis.py"


rule gather_kurtosis:
    """Kurtosis of the whole suite in step order."""
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
