"""When Flat Minima Fail: a reproduction, from text to verdicts.

`snakemake --cores` builds everything of the suite that config.yaml names. Every
file under results/ is a target of its own.
"""

from snakemake.utils import min_version

min_version("9.0")


configfile: "config.yaml"


report: "rules/report/workflow.rst"


include: "rules/common.smk"


wildcard_constraints:
    suite=r"[^/]+",
    steps=r"step\d+(-step\d+)?",
    step=r"\d+",
    series=r"forks|cycles|variants",
    condition=r"[^/]+?",
    seed=r"\d+",


localrules:
    all,
    extended,


# The first rule is what `snakemake` builds when no target is named.
rule all:
    input:
        final_outputs(plan_of(config["suite"]), tables=TABLES, figures=FIGURES, notebooks=NOTEBOOKS),
        [f"results/paper/{name}" for name in PRINTED],


# Everything that goes beyond the paper, for the suites whose configuration asks for it.
rule extended:
    input:
        plan_of(config["suite"]).extended_outputs,


include: "rules/data.smk"
include: "rules/suite.smk"
include: "rules/probe.smk"
include: "rules/kurtosis.smk"
include: "rules/fork.smk"
include: "rules/variants.smk"
include: "rules/statistics.smk"
include: "rules/figures.smk"
include: "rules/published.smk"
include: "rules/notebooks.smk"
include: "rules/example.smk"
include: "rules/mechanism.smk"
include: "rules/findings.smk"
