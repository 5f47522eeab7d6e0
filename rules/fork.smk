"""Forks: training continued under another schedule, probed on the way.

REQUIRED INPUTS  results/{suite}/checkpoints/step{start}/
                 results/{suite}/data/train.safetensors, validation.safetensors
OUTPUTS          results/{suite}/forks/{schedule}-seed{seed}.csv, .parquet, .json
                 results/{suite}/forks.csv
                 results/{suite}/cycles/{schedule}-{order}first-seed{seed}.csv, .parquet, .json
                 results/{suite}/cycles.csv
"""


rule train_fork:
    """One schedule, one seed."""
    input:
        unpack(planned("fork_inputs", "schedule")),
        train="results/{suite}/data/train.safetensors",
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/forks/{schedule}-seed{seed}.csv",
        sequences="results/{suite}/forks/{schedule}-seed{seed}.parquet",
        provenance="results/{suite}/forks/{schedule}-seed{seed}.json",
    log:
        "logs/{suite}/train_fork/{schedule}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/train_fork/{schedule}-seed{seed}.tsv"
    priority: 15
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    resources:
        gpu=planned("gpus"),
    params:
        schedule="{schedule}",
        workspace="results/{suite}/unfinished/train_fork/{schedule}-seed{seed}",
        settings=planned("fork_settings", "schedule"),
        probe=planned("probe"),
        save_every=planned("save_every"),
        code=code_hash("workflow_scripts/train_fork.py"),
    message:
        "Forking {wildcards.suite}: {wildcards.schedule}, seed {wildcards.seed}"
    script:
        "../workflow_scripts/train_fork.py"


rule gather_forks:
    """All forks of a suite."""
    input:
        tables=planned("forks"),
    output:
        table="results/{suite}/forks.csv",
    log:
        "logs/{suite}/gather_forks.log",
    benchmark:
        "benchmarks/{suite}/gather_forks.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        code=code_hash("workflow_scripts/gather_forks.py"),
    message:
        "Gathering the forks of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_forks.py"


use rule train_fork as train_fork_cycles with:
    output:
        table="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.csv",
        sequences="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.parquet",
        provenance="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.json",
    log:
        "logs/{suite}/train_fork/{schedule}-{order}first-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/train_fork/{schedule}-{order}first-seed{seed}.tsv"
    wildcard_constraints:
        order="bump|cool",
    params:
        schedule="{schedule}-{order}first",
        workspace="results/{suite}/unfinished/train_fork/{schedule}-{order}first-seed{seed}",
        settings=planned("cycle_settings", "schedule", "order"),
        probe=planned("probe"),
        save_every=planned("save_every"),
        code=code_hash("workflow_scripts/train_fork.py"),
    message:
        "Forking {wildcards.suite}: {wildcards.schedule}, {wildcards.order} first, "
        "seed {wildcards.seed}, every phase probed"


use rule gather_forks as gather_forks_cycles with:
    input:
        tables=planned("cycles"),
    output:
        table="results/{suite}/cycles.csv",
    log:
        "logs/{suite}/gather_forks/cycles.log",
    benchmark:
        "benchmarks/{suite}/gather_forks/cycles.tsv"
    message:
        "Gathering the phase-resolved probes of {wildcards.suite}"
