"""Measurements beyond the paper, their findings, and the ledger with them. Not part of `all`."""


# Each measurement has its own script, so that editing one does not rerun the others.
rule measure_factorial:
    """Every combination of bits, symmetry and granularity at the checkpoints of a range.

    The scores of each sequence are kept, because the analysis resamples them.
    """
    input:
        checkpoints=planned(plan_mechanism.measure_files, "steps", measure="factorial"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/factorial/{steps}.csv",
        sequences="results/{suite}/mechanism/factorial/{steps}.parquet",
    log:
        "logs/{suite}/measure_factorial/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_factorial/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.measure_mb),
        runtime=requested(plan_requests.measure_minutes, "steps", measure="factorial"),
    params:
        folders=planned(plan_mechanism.measure_folders, "steps", measure="factorial"),
        states=planned(plan_mechanism.measure_states, "steps", measure="factorial"),
        settings=planned(plan_mechanism.measure_settings, measure="factorial"),
        code=code_hash("workflow_scripts/measure_factorial.py"),
    message:
        "Measuring the factorial of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_factorial.py"


rule measure_layers:
    """Gap of each matrix rounded alone, and of all but one."""
    input:
        checkpoints=planned(plan_mechanism.measure_files, "steps", measure="layers"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/layers/{steps}.csv",
    log:
        "logs/{suite}/measure_layers/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_layers/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.measure_mb),
        runtime=requested(plan_requests.measure_minutes, "steps", measure="layers"),
    params:
        folders=planned(plan_mechanism.measure_folders, "steps", measure="layers"),
        states=planned(plan_mechanism.measure_states, "steps", measure="layers"),
        settings=planned(plan_mechanism.measure_settings, measure="layers"),
        code=code_hash("workflow_scripts/measure_layers.py"),
    message:
        "Measuring the layers of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_layers.py"


rule measure_sensitivity:
    """Rounding noise, and the sensitivity of the loss to it."""
    input:
        checkpoints=planned(plan_mechanism.measure_files, "steps", measure="sensitivity"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/sensitivity/{steps}.csv",
    log:
        "logs/{suite}/measure_sensitivity/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_sensitivity/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.measure_mb),
        runtime=requested(plan_requests.measure_minutes, "steps", measure="sensitivity"),
    params:
        folders=planned(plan_mechanism.measure_folders, "steps", measure="sensitivity"),
        states=planned(plan_mechanism.measure_states, "steps", measure="sensitivity"),
        settings=planned(plan_mechanism.measure_settings, measure="sensitivity"),
        code=code_hash("workflow_scripts/measure_sensitivity.py"),
    message:
        "Measuring the sensitivity of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_sensitivity.py"


rule measure_curvature:
    """Largest eigenvalue and trace of the Hessian."""
    input:
        checkpoints=planned(plan_mechanism.measure_files, "steps", measure="curvature"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/curvature/{steps}.csv",
    log:
        "logs/{suite}/measure_curvature/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_curvature/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.measure_mb),
        runtime=requested(plan_requests.measure_minutes, "steps", measure="curvature"),
    params:
        folders=planned(plan_mechanism.measure_folders, "steps", measure="curvature"),
        states=planned(plan_mechanism.measure_states, "steps", measure="curvature"),
        settings=planned(plan_mechanism.measure_settings, measure="curvature"),
        code=code_hash("workflow_scripts/measure_curvature.py"),
    message:
        "Measuring the curvature of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_curvature.py"


rule measure_activations:
    """Kurtosis and rounding of activations; anisotropy."""
    input:
        checkpoints=planned(plan_mechanism.measure_files, "steps", measure="activations"),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/activations/{steps}.csv",
    log:
        "logs/{suite}/measure_activations/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_activations/{steps}.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.measure_mb),
        runtime=requested(plan_requests.measure_minutes, "steps", measure="activations"),
    params:
        folders=planned(plan_mechanism.measure_folders, "steps", measure="activations"),
        states=planned(plan_mechanism.measure_states, "steps", measure="activations"),
        settings=planned(plan_mechanism.measure_settings, measure="activations"),
        code=code_hash("workflow_scripts/measure_activations.py"),
    message:
        "Measuring the activations of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_activations.py"


# The table of one measurement over all its checkpoints.
use rule gather_kurtosis as gather_mechanism with:
    input:
        tables=collect(
            "results/{suite}/mechanism/{measure}/{steps}.csv",
            steps=planned(plan_mechanism.measure_ranges, "measure"),
            allow_missing=True,
        ),
    output:
        table="results/{suite}/mechanism/{measure}.csv",
    log:
        "logs/{suite}/gather_mechanism/{measure}.log",
    benchmark:
        "benchmarks/{suite}/gather_mechanism/{measure}.tsv"
    wildcard_constraints:
        measure="|".join(plan_mechanism.RANGED),
    params:
        labels={},
    message:
        "Gathering the {wildcards.measure} of {wildcards.suite}"


rule analyse_factorial:
    """Main effects, interactions, and one sensitivity times step²."""
    input:
        cells="results/{suite}/mechanism/factorial.csv",
        sequences=collect(
            "results/{suite}/mechanism/factorial/{steps}.parquet",
            steps=planned(plan_mechanism.measure_ranges, measure="factorial"),
            allow_missing=True,
        ),
    output:
        effects="results/{suite}/mechanism/factors.csv",
    log:
        "logs/{suite}/analyse_factorial.log",
    benchmark:
        "benchmarks/{suite}/analyse_factorial.tsv"
    conda:
        "../envs/analysis.yaml"
    params:
        probed=planned(plan_mechanism.probed_cells),
        resamples=200,
        code=code_hash("workflow_scripts/analyse_factorial.py"),
    message:
        "Separating the factors of {wildcards.suite}"
    script:
        "../workflow_scripts/analyse_factorial.py"


rule measure_drift:
    """Where weights sit in their grids, which codes flip, and how far they move."""
    input:
        checkpoints=planned(plan_mechanism.drift_files),
    output:
        drift="results/{suite}/mechanism/drift.csv",
        displacement="results/{suite}/mechanism/displacement.csv",
    log:
        "logs/{suite}/measure_drift.log",
    benchmark:
        "benchmarks/{suite}/measure_drift.tsv"
    conda:
        "../envs/torch.yaml"
    resources:
        mem_mb=requested(plan_requests.drift_mb),
        runtime=requested(plan_requests.drift_minutes),
    params:
        weights=planned(plan_mechanism.measure_weights, measure="drift"),
        states=planned(plan_mechanism.drift_states),
        quantizer=planned(plan_mechanism.probed_quantizer, role="low_bit"),
        layers=setting("kurtosis.layers"),
        spacing=planned(lambda suite: suite.spacing),
        code=code_hash("workflow_scripts/measure_drift.py"),
    message:
        "Following the weights of {wildcards.suite}"
    script:
        "../workflow_scripts/measure_drift.py"


rule trace_phase_flips:
    """Codes that flip in single bumps and cool phases of OLI, and in the baseline."""
    input:
        unpack(planned(plan_mechanism.phase_flip_inputs)),
        train="results/{suite}/data/train.safetensors",
    output:
        table="results/{suite}/mechanism/phase_flips.csv",
    log:
        "logs/{suite}/trace_phase_flips.log",
    benchmark:
        "benchmarks/{suite}/trace_phase_flips.tsv"
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=gpus,
        mem_mb=requested(plan_requests.phase_flips_mb),
        runtime=requested(plan_requests.phase_flips_minutes),
    params:
        folder=planned(plan_forks.fork_point_folder),
        states=planned(plan_forks.fork_point_states),
        settings=planned(plan_mechanism.phase_flip_settings),
        quantizer=planned(plan_mechanism.probed_quantizer, role="low_bit"),
        code=code_hash("workflow_scripts/trace_phase_flips.py"),
    message:
        "Following the codes of {wildcards.suite} through bumps and cool phases"
    script:
        "../workflow_scripts/trace_phase_flips.py"


# A small run is a series of checkpoints like any other. They are deleted after the probe.
rule train_replica:
    """One run of another width, seed or weight decay: checkpoints to be probed, and losses."""
    input:
        train="results/{suite}/data/train.safetensors",
    output:
        checkpoints=temp(directory("results/{suite}/mechanism/replication/checkpoints/{run}")),
        losses="results/{suite}/mechanism/replication/losses/{run}.csv",
        provenance="results/{suite}/mechanism/replication/losses/{run}.json",
    log:
        "logs/{suite}/train_replica/{run}.log",
    benchmark:
        "benchmarks/{suite}/train_replica/{run}.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.source == "pretrain"),
        run=r"width\d+-seed\d+(-decay[\d.e-]+)?",
    priority: 15
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        mem_mb=requested(plan_requests.replica_mb, "run"),
        runtime=requested(plan_requests.replica_minutes, "run"),
    params:
        save_every=unwatched("training.save_every"),
        workspace="results/{suite}/unfinished/train_replica/{run}",
        settings=planned(lambda suite, run: plan_mechanism.replica(suite, run).settings(), "run"),
        folders=planned(lambda suite, run: plan_mechanism.replica(suite, run).folders(), "run"),
        code=code_hash("workflow_scripts/pretrain_suite.py"),
    message:
        "Training the small run {wildcards.run} of {wildcards.suite}"
    script:
        "../workflow_scripts/pretrain_suite.py"


use rule probe_checkpoints as probe_replica with:
    input:
        checkpoints=ancient("results/{suite}/mechanism/replication/checkpoints/{run}"),
        training="results/{suite}/mechanism/replication/losses/{run}.json",
        validation="results/{suite}/data/validation.safetensors",
    output:
        sequences="results/{suite}/mechanism/replication/{run}.parquet",
        provenance="results/{suite}/mechanism/replication/{run}.json",
    log:
        "logs/{suite}/probe_checkpoints/replication/{run}.log",
    benchmark:
        "benchmarks/{suite}/probe_checkpoints/replication/{run}.tsv"
    priority: 18
    resources:
        gpu=0,
        mem_mb=requested(plan_requests.replica_mb, "run"),
        runtime=requested(plan_requests.replica_minutes, "run"),
    params:
        folders=planned(lambda suite, run: plan_mechanism.replica(suite, run).folders(), "run"),
        states={},
        probe=planned(plan_mechanism.replica_probe),
    message:
        "Probing the small run {wildcards.run} of {wildcards.suite}"


use rule summarise_probes as summarise_replica with:
    input:
        sequences="results/{suite}/mechanism/replication/{run}.parquet",
    output:
        table="results/{suite}/mechanism/replication/{run}.csv",
    log:
        "logs/{suite}/summarise_probes/replication/{run}.log",
    benchmark:
        "benchmarks/{suite}/summarise_probes/replication/{run}.tsv"
    message:
        "Summarising the small run {wildcards.run} of {wildcards.suite}"


rule compare_replicas:
    """Each run's onset, compared with its own FP32 minimum."""
    input:
        tables=collect(
            "results/{suite}/mechanism/replication/{run}.csv",
            run=planned(lambda suite: list(plan_mechanism.replicas(suite))),
            allow_missing=True,
        ),
        sequences=collect(
            "results/{suite}/mechanism/replication/{run}.parquet",
            run=planned(lambda suite: list(plan_mechanism.replicas(suite))),
            allow_missing=True,
        ),
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
        names=planned(lambda suite: [run.labels for run in plan_mechanism.replicas(suite).values()]),
        spacing=setting("mechanism.replication.spacing"),
        resamples=setting("phases.resamples"),
        code=code_hash("workflow_scripts/compare_replicas.py"),
    message:
        "Comparing the runs of {wildcards.suite}"
    script:
        "../workflow_scripts/compare_replicas.py"


rule summarise_mechanism:
    """Findings of all measurements beyond the paper, with intervals."""
    input:
        unpack(planned(plan_mechanism.findings_inputs)),
        audit="results/{suite}/audit.csv",
        phases="results/{suite}/phases.json",
    output:
        findings="results/{suite}/mechanism/findings.csv",
    log:
        "logs/{suite}/summarise_mechanism.log",
    benchmark:
        "benchmarks/{suite}/summarise_mechanism.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        spacing=planned(lambda suite: suite.spacing),
        code=code_hash("workflow_scripts/summarise_mechanism.py"),
    message:
        "Findings about the mechanism in {wildcards.suite}"
    script:
        "../workflow_scripts/summarise_mechanism.py"


# The ledger again, with the measurements that `all` does not include.
use rule judge_claims as judge_claims_extended with:
    input:
        unpack(planned(plan.ledger_files)),
        unpack(planned(plan_mechanism.ledger_tables)),
        unpack(planned(plan_forks.fork_measurements)),
        **OF_THE_PAPER,
        mechanism="results/{suite}/mechanism/findings.csv",
    output:
        "results/{suite}/claims_extended.csv",
        "results/{suite}/claims_extended.md",
        in_report("results/{suite}/claims_extended.html", "Beyond the paper", "Ledger"),
    log:
        "logs/{suite}/judge_claims/extended.log",
    benchmark:
        "benchmarks/{suite}/judge_claims/extended.tsv"
    params:
        suite=planned(plan_mechanism.extended_ledger_facts),
    message:
        "Judging the paper's claims on {wildcards.suite}, with what was measured beyond it"
