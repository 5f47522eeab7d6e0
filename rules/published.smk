"""Published suites: stored measurements are copied to the results instead of measured."""

# One rule per suite: its list of digests decides the outputs. Snakemake prefers a rule without
# wildcards to the rules that measure.
for suite in [suite_of(name) for name in checked_config.suites]:
    if suite.source != "published":
        continue

    rule:
        """Compares every stored file with its digest and copies it to the results."""
        name:
            f"restore_measurements_{suite.name}"
        input:
            of_suite(plan.frozen_files, suite),
        output:
            [f"{suite.root}/{name}" for name in one_line(plan.frozen_names, suite)],
        log:
            f"logs/{suite.name}/restore_measurements.log",
        benchmark:
            f"benchmarks/{suite.name}/restore_measurements.tsv"
        localrule: True
        conda:
            "../envs/analysis.yaml"
        params:
            folder=own_path(suite.config.measurements),
            code=code_hash("workflow_scripts/restore_measurements.py"),
        message:
            f"Restoring the measurements of {suite.name}"
        script:
            "../workflow_scripts/restore_measurements.py"
