"""When Flat Minima Fail: a reproduction, from text to verdicts.

`snakemake --cores all` builds everything of the suite that config.yaml names. Every file under
results/ can also be built on its own.
"""

import os

from snakemake.utils import min_version

min_version("9.0")


# Beside this file, because the workflow may be run from another folder or as a module.
configfile: os.path.relpath(workflow.current_basedir.join("config.yaml").get_path_or_uri(True))


report: "rules/report/workflow.rst"


include: "rules/common.smk"


wildcard_constraints:
    suite=r"[^/]+",
    steps=r"step\d+(-step\d+)?",
    step=r"\d+",
    series=r"forks|cycles|variants|cooled",
    condition=r"[^/]+?",
    seed=r"\d+",
    split=r"validation|train",
    part=r"headline|table1|measured",


localrules:
    all,
    extended,


# Final files, by the part of a suite that they need. `ledger` needs forks and an even grid.
OUTPUTS = {
    "checkpoints": [
        *("suite.csv", "audit.csv", "kurtosis.csv", "phases.json", "scaling_law.json"),
        *multiext("tables/table1", ".csv", ".md", ".tex"),
        *multiext("figures/fig1_audit", ".pdf", ".svg", ".png"),
        *multiext("figures/fig2_kurtosis", ".pdf", ".svg", ".png"),
        *multiext("figures/fig5_bit_widths", ".pdf", ".svg", ".png"),
        *multiext("figures/fig14_scaling_law", ".pdf", ".svg", ".png"),
        *("index.html", "notebooks/audit.html"),
    ],
    "forks": [
        *("forks.csv", "statistics.csv"),
        *multiext("tables/table2", ".csv", ".md", ".tex"),
        *multiext("figures/fig3_forks", ".pdf", ".svg", ".png"),
        *("notebooks/tour.html", "notebooks/kurtosis.html", "notebooks/forks.html"),
    ],
    "learning rate": ["early_warning.csv"],
    "ledger": multiext("claims", ".csv", ".md", ".html"),
}


# `snakemake` without a target builds the first rule.
rule all:
    input:
        of_suite(plan.final_outputs, suite_of(checked_config.suite), outputs=OUTPUTS),
        multiext("results/paper/claims", ".csv", ".md", ".html"),
        multiext("results/paper/figures/fig4_lambada", ".pdf", ".png"),


# Everything beyond the paper that the configuration of the suite requests.
rule extended:
    input:
        lambda wildcards: one_line(
            plan_mechanism.extended_outputs,
            suite_of(checked_config.suite),
            FIGURES_BEYOND_THE_PAPER,
        ),
        plan_mechanism.control_outputs(checked_config.suites, checked_config.suite),


include: "rules/data.smk"
include: "rules/suite.smk"
include: "rules/probe.smk"
include: "rules/fork.smk"
include: "rules/statistics.smk"
include: "rules/figures.smk"
include: "rules/parts.smk"
include: "rules/published.smk"
include: "rules/notebooks.smk"
include: "rules/example.smk"
include: "rules/mechanism.smk"
