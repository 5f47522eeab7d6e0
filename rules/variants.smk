"""Conditions that the paper does not have, at their ends: rivals, averages, the amplitude."""


rule average_checkpoints:
    """Weights averaged over the run's own checkpoints, or one of them, without training."""
    input:
        checkpoints=planned(
            lambda suite, name: plan.checkpoint_files(
                suite, plan_forks.average_steps(suite, name)
            ),
            "average",
        ),
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
        gpu=planned(plan.gpus),
    params:
        definition=planned(lambda suite, name: suite.section["fork"]["rivals"][name], "average"),
        folders=planned(
            lambda suite, name: [*map(suite.folder, plan_forks.average_steps(suite, name))],
            "average",
        ),
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
        gpu=planned(plan.gpus),
    params:
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
        tables=planned(plan_forks.trajectories, gathered="rivals"),
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
