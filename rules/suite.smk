"""The checkpoints of a suite, and the table that says what they are.

A hub suite keeps no checkpoint: probe_revision fetches, measures and deletes each.
"""

# A rule per training job: what a job writes depends on the grid of its suite, which
# wildcards cannot say.
for job in [job for name in checked_config.suites for job in plan.pretraining_jobs(suite_of(name))]:

    rule:
        """Training from the step before to this one, with all checkpoints due on the way."""
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


rule fetch_checkpoint:
    """One revision from the hub for a fork; deleted once nothing needs it any more."""
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
    """One revision, or a short range, fetched, described, probed, its kurtosis taken, deleted."""
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
    # A checkpoint is on disk for each job at work: `--resources hub=…` says how many may be.
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


# Of a hub suite both could make these files.
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
    """The table of revisions; stops where they are not what their names say."""
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
