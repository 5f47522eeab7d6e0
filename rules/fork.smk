"""Forks: training from one checkpoint of the run under another schedule, and its measurement.

A fork is a series of checkpoints. {series} is one of:

- `forks`: the schedules of the paper
- `cycles`: OLI, probed throughout its last cycles
- `variants`: rivals, other amplitudes, the pilot
- `cooled`: a common cool-down after the end of each fork, to compare forks at equal rates

Training writes weights only. The rules of the audit measure the checkpoints of forks too. Rivals
that are averages of the run's own checkpoints are not trained. The amplitude is calibrated at the
fork point, before any update.
"""


rule train_fork:
    """One condition, one seed: checkpoints at the steps that are measured, and losses."""
    input:
        unpack(start_of_fork),
        train="results/{suite}/data/train.safetensors",
    output:
        checkpoints=directory("results/{suite}/{series}/checkpoints/{condition}-seed{seed}"),
        losses="results/{suite}/{series}/losses/{condition}-seed{seed}.csv",
        provenance="results/{suite}/{series}/losses/{condition}-seed{seed}.json",
    log:
        "logs/{suite}/train_fork/{series}/{condition}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/train_fork/{series}/{condition}-seed{seed}.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.config.keeps_forks),
    priority: 15
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.fork_mb),
        runtime=requested(plan_requests.fork_minutes, "series", "condition"),
    params:
        save_every=unwatched("training.save_every"),
        workspace="results/{suite}/unfinished/train_fork/{series}/{condition}-seed{seed}",
        settings=of_branch(Branch.settings),
        source=of_branch(Branch.source, "seed"),
        states=of_branch(Branch.start_states),
        key=of_branch(lambda branch: branch.key),
        device=setting("device"),
        code=code_hash("workflow_scripts/train_fork.py"),
    message:
        "Training {wildcards.condition} of the {wildcards.series} of {wildcards.suite}, "
        "seed {wildcards.seed}"
    script:
        "../workflow_scripts/train_fork.py"


# Without fork.keep_checkpoints, weights are deleted once they have been measured.
use rule train_fork as train_fork_temporary with:
    output:
        checkpoints=temp(directory("results/{suite}/{series}/checkpoints/{condition}-seed{seed}")),
        losses="results/{suite}/{series}/losses/{condition}-seed{seed}.csv",
        provenance="results/{suite}/{series}/losses/{condition}-seed{seed}.json",
    wildcard_constraints:
        suite=suites_where(lambda suite: not suite.config.keeps_forks),


# `training` has the sha256 of the checkpoints, so the age of their folder does not matter.
use rule probe_checkpoints as probe_fork with:
    input:
        checkpoints=ancient("results/{suite}/{series}/checkpoints/{condition}-seed{seed}"),
        training="results/{suite}/{series}/losses/{condition}-seed{seed}.json",
        validation="results/{suite}/data/validation.safetensors",
    output:
        sequences="results/{suite}/{series}/{condition}-seed{seed}.parquet",
        provenance="results/{suite}/{series}/{condition}-seed{seed}.json",
    log:
        "logs/{suite}/probe_checkpoints/{series}/{condition}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/probe_checkpoints/{series}/{condition}-seed{seed}.tsv"
    priority: 18
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.probe_mb),
        runtime=requested(plan_requests.fork_probe_minutes, "series", "condition"),
    params:
        folders=of_branch(Branch.folders, "seed"),
        states={},
    message:
        "Probing the fork {wildcards.condition} of {wildcards.suite}, seed {wildcards.seed}"


use rule measure_kurtosis as measure_kurtosis_of_fork with:
    input:
        checkpoints=ancient("results/{suite}/{series}/checkpoints/{condition}-seed{seed}"),
        training="results/{suite}/{series}/losses/{condition}-seed{seed}.json",
    output:
        table="results/{suite}/{series}/kurtosis/{condition}-seed{seed}.csv",
    log:
        "logs/{suite}/measure_kurtosis/{series}/{condition}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/measure_kurtosis/{series}/{condition}-seed{seed}.tsv"
    priority: 18
    resources:
        mem_mb=requested(plan_requests.kurtosis_mb),
        runtime=requested(plan_requests.fork_kurtosis_minutes, "series", "condition"),
    params:
        weights=of_branch(Branch.weights, "seed"),
        states={},
        steps=of_branch(Branch.steps),
    message:
        "Measuring the kurtosis of {wildcards.condition} of {wildcards.suite}, "
        "seed {wildcards.seed}"


rule summarise_fork:
    """Gaps of one fork at every probe, with intervals."""
    input:
        # Two conditions with the same training share one trajectory under two names.
        unpack(of_branch(Branch.trajectory, "seed")),
    output:
        table="results/{suite}/{series}/{condition}-seed{seed}.csv",
    log:
        "logs/{suite}/summarise_fork/{series}/{condition}-seed{seed}.log",
    benchmark:
        "benchmarks/{suite}/summarise_fork/{series}/{condition}-seed{seed}.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        settings=of_branch(Branch.settings),
        labels=of_branch(lambda branch: dict(branch.labels)),
        sequence_length=of_branch(Branch.length),
        resamples=setting("probe.resamples"),
        code=code_hash("workflow_scripts/summarise_fork.py"),
    message:
        "Summarising the fork {wildcards.condition} of {wildcards.suite}, seed {wildcards.seed}"
    script:
        "../workflow_scripts/summarise_fork.py"


# All forks of a suite, or all conditions of one kind beyond the paper.
use rule gather_kurtosis as gather_forks with:
    input:
        tables=planned(plan_forks.trajectories, "gathered"),
    output:
        table="results/{suite}/{gathered}.csv",
    log:
        "logs/{suite}/gather_forks/{gathered}.log",
    benchmark:
        "benchmarks/{suite}/gather_forks/{gathered}.tsv"
    wildcard_constraints:
        gathered="forks|cycles|cooled|pilot|amplitudes",
    params:
        in_step_order=False,
        labels={},
    message:
        "Gathering the {wildcards.gathered} of {wildcards.suite}"


rule average_checkpoints:
    """Weights averaged over the run's own checkpoints, or one of them, without training."""
    input:
        checkpoints=planned(plan_forks.average_files, "average"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/averages/{average}.csv",
        sequences="results/{suite}/averages/{average}.parquet",
        provenance="results/{suite}/averages/{average}.json",
    log:
        "logs/{suite}/average_checkpoints/{average}.log",
    benchmark:
        "benchmarks/{suite}/average_checkpoints/{average}.tsv"
    wildcard_constraints:
        average="[a-z0-9_]+",
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.average_mb),
        runtime=requested(plan_requests.average_minutes, "average"),
    params:
        definition=planned(lambda suite, name: plan_forks.average(suite, name).dump(), "average"),
        folders=planned(plan_forks.average_folders, "average"),
        states=planned(plan_forks.average_states, "average"),
        steps=planned(plan_forks.average_steps, "average"),
        probe=planned(plan.probe),
        resamples=setting("probe.resamples"),
        code=code_hash("workflow_scripts/average_checkpoints.py"),
    message:
        "Averaging checkpoints of {wildcards.suite}: {wildcards.average}"
    script:
        "../workflow_scripts/average_checkpoints.py"


rule calibrate_amplitude:
    """OLI's amplitude from gradient statistics at the fork point (appendix B)."""
    input:
        unpack(planned(plan_forks.calibration_inputs)),
        train="results/{suite}/data/train.safetensors",
    output:
        calibration="results/{suite}/calibration.json",
    log:
        "logs/{suite}/calibrate_amplitude.log",
    benchmark:
        "benchmarks/{suite}/calibrate_amplitude.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.calibration_mb),
        runtime=requested(plan_requests.calibration_minutes),
    params:
        folder=planned(plan_forks.fork_point_folder),
        states=planned(plan_forks.fork_point_states),
        settings=planned(plan_forks.calibration_settings),
        device=setting("device"),
        code=code_hash("workflow_scripts/calibrate_amplitude.py"),
    message:
        "Calibrating the amplitude of OLI on {wildcards.suite}"
    script:
        "../workflow_scripts/calibrate_amplitude.py"


rule gather_rivals:
    """Every condition of the forks at its end."""
    input:
        forks="results/{suite}/forks.csv",
        trained=planned(plan_forks.trajectories, gathered="rivals"),
        averages=planned(plan_forks.average_tables),
    output:
        table="results/{suite}/rivals.csv",
    log:
        "logs/{suite}/gather_rivals.log",
    benchmark:
        "benchmarks/{suite}/gather_rivals.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        code=code_hash("workflow_scripts/gather_rivals.py"),
    message:
        "Gathering the rivals of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_rivals.py"
