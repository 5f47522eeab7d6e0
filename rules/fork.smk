"""Forks: training continued under another schedule, probed on the way.

REQUIRED INPUTS  results/{suite}/checkpoints/step{start}/
                 results/{suite}/data/train.safetensors, validation.safetensors
OUTPUTS          results/{suite}/forks/{schedule}-seed{seed}.csv, .parquet, .json
                 results/{suite}/forks/losses/{schedule}-seed{seed}.csv
                 results/{suite}/forks.csv
                 results/{suite}/cycles/{schedule}-{order}first-seed{seed}.csv, .parquet, .json
                 results/{suite}/cycles/losses/{schedule}-{order}first-seed{seed}.csv
                 results/{suite}/cycles.csv
"""


rule train_fork:
    """One schedule, one seed."""
    input:
        unpack(planned("fork_inputs", "schedule")),
        train="results/{suite}/data/train.safetensors",
        validation="results/{suite}/data/validation.safetensors",
    output:
        sequences="results/{suite}/forks/{schedule}-seed{seed}.parquet",
        losses="results/{suite}/forks/losses/{schedule}-seed{seed}.csv",
        provenance="results/{suite}/forks/{schedule}-seed{seed}.json",
    log:
        "logs/{suite}/train_fork/{schedule}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/train_fork/{schedule}-seed{seed}.tsv"
    priority: 15
    conda:
        "../envs/torch.yaml"
    threads: planned("threads")
    # How a job runs, not what it computes: unlike params, resources rerun nothing.
    resources:
        gpu=planned("fork_gpus"),
        save_every=planned("save_every"),
    params:
        workspace="results/{suite}/unfinished/train_fork/{schedule}-seed{seed}",
        settings=planned("fork_settings", "schedule"),
        probe=planned("fork_probe"),
        code=code_hash("workflow_scripts/train_fork.py"),
    message:
        "Forking {wildcards.suite}: {wildcards.schedule}, seed {wildcards.seed}"
    script:
        "../workflow_scripts/train_fork.py"


rule summarise_fork:
    """Gaps of one fork at every probe, with intervals."""
    input:
        sequences="results/{suite}/forks/{schedule}-seed{seed}.parquet",
        losses="results/{suite}/forks/losses/{schedule}-seed{seed}.csv",
    output:
        table="results/{suite}/forks/{schedule}-seed{seed}.csv",
    log:
        "logs/{suite}/summarise_fork/{schedule}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/summarise_fork/{schedule}-seed{seed}.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        name="{schedule}",
        settings=planned("fork_settings", "schedule"),
        labels={},
        sequence_length=planned("train_length"),
        resamples=planned("probe_resamples"),
        code=code_hash("workflow_scripts/summarise_fork.py"),
    message:
        "Summarising the fork {wildcards.schedule} of {wildcards.suite}, seed {wildcards.seed}"
    script:
        "../workflow_scripts/summarise_fork.py"


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
        sequences="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.parquet",
        losses="results/{suite}/cycles/losses/{schedule}-{order}first-seed{seed}.csv",
        provenance="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.json",
    log:
        "logs/{suite}/train_fork/{schedule}-{order}first-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/train_fork/{schedule}-{order}first-seed{seed}.tsv"
    wildcard_constraints:
        order="bump|cool",
    params:
        workspace="results/{suite}/unfinished/train_fork/{schedule}-{order}first-seed{seed}",
        settings=planned("cycle_settings", "schedule", "order"),
        probe=planned("fork_probe"),
        code=code_hash("workflow_scripts/train_fork.py"),
    message:
        "Forking {wildcards.suite}: {wildcards.schedule}, {wildcards.order} first, "
        "seed {wildcards.seed}, every phase probed"


use rule summarise_fork as summarise_fork_cycles with:
    input:
        sequences="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.parquet",
        losses="results/{suite}/cycles/losses/{schedule}-{order}first-seed{seed}.csv",
    output:
        table="results/{suite}/cycles/{schedule}-{order}first-seed{seed}.csv",
    log:
        "logs/{suite}/summarise_fork/{schedule}-{order}first-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/summarise_fork/{schedule}-{order}first-seed{seed}.tsv"
    wildcard_constraints:
        order="bump|cool",
    params:
        name="{schedule}-{order}first",
        settings=planned("cycle_settings", "schedule", "order"),
        labels={},
        sequence_length=planned("train_length"),
        resamples=planned("probe_resamples"),
        code=code_hash("workflow_scripts/summarise_fork.py"),
    message:
        "Summarising {wildcards.schedule} of {wildcards.suite}, {wildcards.order} first, "
        "seed {wildcards.seed}"


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
