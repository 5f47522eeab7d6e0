"""Beyond the paper: small runs of several widths and seeds. No part of `all`.

REQUIRED INPUTS  results/{suite}/data/train.safetensors, validation.safetensors
OUTPUTS          results/{suite}/mechanism/replication/width{width}-seed{seed}.csv, .parquet
                 results/{suite}/mechanism/replication.csv, replication_runs.csv
"""


rule train_replica:
    """One run, probed on the way; nothing of it is kept but its scores."""
    input:
        train="results/{suite}/data/train.safetensors",
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/replication/width{width}-seed{seed}.csv",
        sequences="results/{suite}/mechanism/replication/width{width}-seed{seed}.parquet",
    log:
        "logs/{suite}/train_replica/width{width}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/train_replica/width{width}-seed{seed}.tsv"
    wildcard_constraints:
        suite=suites_from("pretrain"),
        width=r"\d+",
    priority: 15
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    params:
        settings=planned("replica_settings", "width"),
        probe=planned("replica_probe"),
        code=code_hash("workflow_scripts/train_replica.py"),
    message:
        "Training a run of {wildcards.suite} with width {wildcards.width}, seed {wildcards.seed}"
    script:
        "../workflow_scripts/train_replica.py"


rule compare_replicas:
    """Each run's onset beside its own FP32 minimum."""
    input:
        tables=planned("replicas"),
        sequences=planned("replica_sequences"),
    output:
        runs="results/{suite}/mechanism/replication_runs.csv",
        comparison="results/{suite}/mechanism/replication.csv",
    log:
        "logs/{suite}/compare_replicas.log",
    benchmark:
        "benchmarks/{suite}/compare_replicas.tsv"
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned("replica_spacing"),
        resamples=planned("phase_resamples"),
        code=code_hash("workflow_scripts/compare_replicas.py"),
    message:
        "Comparing the runs of {wildcards.suite}"
    script:
        "../workflow_scripts/compare_replicas.py"
