"""The checkpoints of a suite, and the table that describes them.

A hub suite keeps no checkpoint: probe_revision fetches, measures and deletes each revision.
"""

# One rule per training job: the outputs depend on the grid of the suite, which wildcards cannot
# express.
for job in [job for name in checked_config.suites for job in plan.pretraining_jobs(suite_of(name))]:

    rule:
        """Training up to this step, with all checkpoints of the grid on the way."""
        name:
            f"pretrain_suite_{job.suite.name}_step{job.stop}"
        input:
            **job.inputs,
        output:
            collect(
                "{folder}/{name}",
                folder=job.checkpoints.values(),
                name=["model.safetensors", "config.json", "SHA256SUMS"],
            ),
            final_state=f"results/{job.suite.name}/training/step{job.stop}.safetensors",
            losses=f"results/{job.suite.name}/training/step{job.stop}.csv",
        log:
            f"logs/{job.suite.name}/pretrain_suite/step{job.stop}.log",
        benchmark:
            f"benchmarks/{job.suite.name}/pretrain_suite/step{job.stop}.tsv"
        priority: 20
        conda:
            "../envs/torch.yaml"
        threads: job.suite.config.threads
        resources:
            mem_mb=requested_by(job, plan_requests.pretraining_mb),
            runtime=requested_by(job, plan_requests.pretraining_minutes),
        params:
            save_every=unwatched("training.save_every", job.suite),
            folders=job.checkpoints,
            workspace=f"results/{job.suite.name}/unfinished/pretrain_suite/step{job.stop}",
            settings=job.settings,
            code=code_hash("workflow_scripts/pretrain_suite.py"),
        message:
            f"Training {job.suite.name} from step {job.start} to {job.stop}"
        script:
            "../workflow_scripts/pretrain_suite.py"


for job in [job for name in checked_config.suites for job in plan.planting_jobs(suite_of(name))]:

    rule:
        """The checkpoints of another suite, with channels scaled so that no output changes."""
        name:
            f"plant_scales_{job.suite.name}"
        input:
            collect(
                "{folder}/{name}",
                folder=job.sources.values(),
                name=["model.safetensors", "config.json"],
            ),
        output:
            collect(
                "{folder}/{name}",
                folder=job.folders.values(),
                name=["model.safetensors", "config.json", "SHA256SUMS"],
            ),
        log:
            f"logs/{job.suite.name}/plant_scales.log",
        benchmark:
            f"benchmarks/{job.suite.name}/plant_scales.tsv"
        priority: 20
        conda:
            "../envs/torch.yaml"
        resources:
            mem_mb=requested_by(job, plan_requests.planting_mb),
            runtime=requested_by(job, plan_requests.planting_minutes),
        params:
            sources=job.sources,
            folders=job.folders,
            scales=job.scales,
            channels=job.channels,
            code=code_hash("workflow_scripts/plant_scales.py"),
        message:
            f"Scaling channels of the checkpoints of {job.suite.name}"
        script:
            "../workflow_scripts/plant_scales.py"


rule fetch_checkpoint:
    """One revision from the hub, from which forks start. Deleted when no job needs it any more."""
    output:
        weights=temp("results/{suite}/checkpoints/step{step}/model.safetensors"),
        config=temp("results/{suite}/checkpoints/step{step}/config.json"),
        record="results/{suite}/revisions/commits/step{step}.json",
    log:
        "logs/{suite}/fetch_checkpoint/step{step}.log",
    benchmark:
        "benchmarks/{suite}/fetch_checkpoint/step{step}.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.source == "hub"),
    conda:
        "../envs/torch.yaml"
    resources:
        hub=1,
        runtime=requested(plan_requests.fetch_minutes),
    params:
        repo=setting("repo"),
        revision=planned(Suite.branch, "step"),
        code=code_hash("workflow_scripts/fetch_checkpoint.py"),
    message:
        "Fetching {wildcards.suite} step {wildcards.step}"
    script:
        "../workflow_scripts/fetch_checkpoint.py"


rule probe_revision:
    """Fetches, describes, probes and deletes one revision or a short range, with its kurtosis."""
    input:
        validation="results/{suite}/data/validation.safetensors",
    output:
        sequences="results/{suite}/probes/{steps}.parquet",
        provenance="results/{suite}/probes/{steps}.json",
        kurtosis="results/{suite}/kurtosis/{steps}.csv",
        revisions="results/{suite}/revisions/{steps}.csv",
        fingerprints="results/{suite}/revisions/{steps}.parquet",
    log:
        "logs/{suite}/probe_revision/{steps}.log",
    benchmark:
        "benchmarks/{suite}/probe_revision/{steps}.tsv"
    wildcard_constraints:
        suite=suites_where(lambda suite: suite.source == "hub"),
    conda:
        "../envs/torch.yaml"
    threads: setting("threads")
    # Each running job has one checkpoint on disk. `--resources hub=…` limits their number.
    resources:
        gpu=gpus,
        hub=1,
        mem_mb=requested(plan_requests.revision_mb),
        runtime=requested(plan_requests.revision_minutes, "steps"),
    params:
        repo=setting("repo"),
        branches=planned(
            lambda suite, steps: {step: suite.branch(step) for step in suite.steps_in(steps)},
            "steps",
        ),
        probe=planned(plan.probe),
        layers=setting("kurtosis.layers"),
        tokens_per_step=planned(plan.tokens_per_step),
        folder="results/{suite}/unfinished/probe_revision/{steps}",
        code=code_hash("workflow_scripts/probe_revision.py"),
    message:
        "Fetching and probing {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/probe_revision.py"


# For a hub suite, either rule could make these files.
ruleorder: probe_revision > probe_checkpoints
ruleorder: probe_revision > measure_kurtosis
ruleorder: probe_revision > describe_checkpoints


rule describe_checkpoints:
    """Hashes, size, dtype and fingerprint of each checkpoint in a range."""
    input:
        checkpoints=checkpoints("revisions/{steps}.csv"),
    output:
        table="results/{suite}/revisions/{steps}.csv",
        fingerprints="results/{suite}/revisions/{steps}.parquet",
    log:
        "logs/{suite}/describe_checkpoints/{steps}.log",
    benchmark:
        "benchmarks/{suite}/describe_checkpoints/{steps}.tsv"
    priority: 10
    conda:
        "../envs/torch.yaml"
    resources:
        mem_mb=requested(plan_requests.describe_mb),
        runtime=requested(plan_requests.describe_minutes, "steps"),
    params:
        weights=planned(plan.weights, "steps"),
        states=planned(plan.checkpoint_states, "steps"),
        steps=planned(Suite.steps_in, "steps"),
        tokens_per_step=planned(plan.tokens_per_step),
        code=code_hash("workflow_scripts/describe_checkpoints.py"),
    message:
        "Describing {wildcards.suite} {wildcards.steps}"
    script:
        "../workflow_scripts/describe_checkpoints.py"


rule gather_suite:
    """The table of revisions. Stops if revisions do not have the weights that their names promise."""
    input:
        tables=of_ranges("results/{suite}/revisions/{steps}.csv"),
        fingerprints=of_ranges("results/{suite}/revisions/{steps}.parquet"),
    output:
        table=in_report("results/{suite}/suite.csv", "Audit", "Revisions"),
    log:
        "logs/{suite}/gather_suite.log",
    benchmark:
        "benchmarks/{suite}/gather_suite.tsv"
    localrule: True
    conda:
        "../envs/analysis.yaml"
    params:
        severity=planned(plan.integrity),
        measured_by=planned(lambda suite: "probe_revision" if suite.source == "hub" else None),
        refused="results/{suite}/unfinished/gather_suite/suite.csv",
        code=code_hash("workflow_scripts/gather_suite.py"),
    message:
        "Gathering the revisions of {wildcards.suite}"
    script:
        "../workflow_scripts/gather_suite.py"
