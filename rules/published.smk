"""Suites of frozen measurements: what was measured is restored, and not measured again."""

# A rule per suite: which files there are stands in its list of digests. Without wildcards,
# it comes before the rules that measure.
for suite in [suite_of(name) for name in checked_config.suites]:
    if suite.source != "published":
        continue

    rule:
        """Every frozen file, compared with its digest and copied to where the rules look."""
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
            folder=suite.config.measurements,
            code=code_hash("workflow_scripts/restore_measurements.py"),
        message:
            f"Restoring the measurements of {suite.name}"
        script:
            "../workflow_scripts/restore_measurements.py"
