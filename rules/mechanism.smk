"""Beyond the paper: measurements that ask why, findings, the ledger with them. No part of `all`."""


# Each measurement has a script of its own, so that editing one reruns no other.
rule measure_mechanism:
    """One measurement at the checkpoints of a range: layers, sensitivity, curvature …"""
    input:
        checkpoints=planned(
            lambda suite, *names: plan.checkpoint_files(
                suite, plan_mechanism.measure_folders(suite, *names)
            ),
            "steps",
            "measure",
        ),
        validation="results/{suite}/data/validation.safetensors",
    output:
        table="results/{suite}/mechanism/{measure}/{steps}.csv",
    log:
        "logs/{suite}/measure_{measure}/{steps}.log",
    benchmark:
        "benchmarks/{suite}/measure_{measure}/{steps}.tsv"
    wildcard_constraints:
        measure="|".join(plan_mechanism.RANGED[1:]),
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    resources:
        gpu=planned(plan.gpus),
    params:
        folders=planned(plan_mechanism.measure_folders, "steps", "measure"),
        settings=planned(plan_mechanism.measure_settings, "measure"),
        code=lambda wildcards: code_hash(f"workflow_scripts/measure_{wildcards.measure}.py"),
    message:
        "Measuring the {wildcards.measure} of {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/measure_{wildcards.measure}.py"


# The same, and the scores of each sequence, which the analysis resamples.
use rule measure_mechanism as measure_factorial with:
    output:
        table="results/{suite}/mechanism/{measure}/{steps}.csv",
        sequences="results/{suite}/mechanism/{measure}/{steps}.parquet",
    wildcard_constraints:
        measure="factorial",


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
        files=planned(lambda suite: list(plan_mechanism.measure_weights(suite, "drift").values())),
    output:
        drift="results/{suite}/mechanism/drift.csv",
        displacement="results/{suite}/mechanism/displacement.csv",
    log:
        "logs/{suite}/measure_drift.log",
    benchmark:
        "benchmarks/{suite}/measure_drift.tsv"
    conda:
        "../envs/torch.yaml"
    params:
        weights=planned(plan_mechanism.measure_weights, measure="drift"),
        quantizer=planned(plan_mechanism.probed_quantizer, role="low_bit"),
        layers=setting("kurtosis.layers"),
        spacing=planned(lambda suite: suite.spacing),
        code=code_hash("workflow_scripts/measure_drift.py"),
    message:
        "Following the weights of {wildcards.suite}"
    script:
        "../workflow_scripts/measure_drift.py"


rule trace_phase_flips:
    """Codes that flip in single bumps and cool phases of OLI, beside the baseline."""
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
        gpu=planned(plan.gpus),
    params:
        settings=planned(plan_mechanism.phase_flip_settings),
        quantizer=planned(plan_mechanism.probed_quantizer, role="low_bit"),
        code=code_hash("workflow_scripts/trace_phase_flips.py"),
    message:
        "Following the codes of {wildcards.suite} through bumps and cool phases"
    script:
        "../workflow_scripts/trace_phase_flips.py"


# A small run is a series of checkpoints like any other; they go once they have been probed.
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
    # How a job runs, not what it computes: unlike params, resources rerun nothing.
    resources:
        save_every=setting("training.save_every"),
    params:
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
    params:
        folders=planned(lambda suite, run: plan_mechanism.replica(suite, run).folders(), "run"),
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
    """Each run's onset beside its own FP32 minimum."""
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
        names=planned(lambda suite: [run.about for run in plan_mechanism.replicas(suite).values()]),
        spacing=setting("mechanism.replication.spacing"),
        resamples=setting("phases.resamples"),
        code=code_hash("workflow_scripts/compare_replicas.py"),
    message:
        "Comparing the runs of {wildcards.suite}"
    script:
        "../workflow_scripts/compare_replicas.py"


rule summarise_mechanism:
    """The answers of all measurements beyond the paper, with intervals."""
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


# The ledger once more, with what `all` does not measure.
use rule judge_claims as judge_claims_extended with:
    input:
        unpack(planned(plan_forks.fork_measurements)),
        **OF_THE_PAPER,
        **OF_THE_SUITE,
        mechanism="results/{suite}/mechanism/findings.csv",
    output:
        "results/{suite}/claims_extended.csv",
        "results/{suite}/claims_extended.md",
        in_report("results/{suite}/claims_extended.html", "Beyond the paper", "Ledger"),
    log:
        "logs/{suite}/judge_claims/extended.log",
    benchmark:
        "benchmarks/{suite}/judge_claims/extended.tsv"
    message:
        "Judging the paper's claims on {wildcards.suite}, with what was measured beyond it"
