"""Suites of frozen measurements: what was measured is restored, and not measured again.

REQUIRED INPUTS  resources/published/{suite}/SHA256SUMS and the files that it names
OUTPUTS          the same files under results/{suite}-published/
"""

# A rule per suite: which files there are stands in its list of digests. Without wildcards,
# it comes before the rules that measure.
for plan in PUBLISHED:

    rule:
        """Every frozen file, compared with its digest and copied to where the rules look."""
        name:
            f"restore_measurements_{plan.name}"
        input:
            frozen=frozen_files(plan),
        output:
            plan.restored_files,
        log:
            f"logs/{plan.name}/restore_measurements.log",
        benchmark:
            f"benchmarks/{plan.name}/restore_measurements.tsv"
        localrule: True
        conda:
            "../envs/analysis.yaml"
        params:
            folder=plan.frozen_folder,
            code=code_hash("workflow_scripts/restore_measurements.py"),
        message:
            f"Restoring the measurements of {plan.name}"
        script:
            "../workflow_scripts/restore_measurements.py"
