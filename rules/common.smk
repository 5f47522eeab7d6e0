"""The checked configuration and what its suites mean. Defines no rule."""

import re
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import yaml
from snakemake.utils import update_config

# Snakemake puts the folder of a script on the path of its job, but not on its own.
sys.path.insert(0, Path(workflow.basedir, "workflow_scripts").as_posix())

from flatminima.code_hash import code_hash
from flatminima.config import find_suite, whole_config
from flatminima.errors import ConfigError
from flatminima.planning import RANGED, SuitePlan, final_outputs
from flatminima.suites import as_in_a_file, read_yaml

FIGURES = ["fig1_audit", "fig2_kurtosis", "fig3_forks", "fig5_bit_widths"]
# What the paper's printed numbers and the published ones show without any suite.
PRINTED = [f"claims.{suffix}" for suffix in ("csv", "md", "html")]
PRINTED += ["figures/fig4_lambada.pdf", "figures/fig4_lambada.png"]
TABLES = ["table1", "table2"]
# Companion notebooks and the results of a suite that each one reads.
NOTEBOOKS = {
    "tour": [
        *("suite.csv", "audit.csv", "kurtosis.csv", "forks.csv"),
        *("figures/fig1_audit.png", "figures/fig2_kurtosis.png", "figures/fig3_forks.png"),
    ],
    "audit": [
        *("suite.csv", "audit.csv", "phases.json", "tables/table1.md"),
        *("figures/fig1_audit.png", "figures/fig5_bit_widths.png"),
    ],
    "kurtosis": ["audit.csv", "kurtosis.csv", "statistics.csv", "figures/fig2_kurtosis.png"],
    "forks": ["forks.csv", "statistics.csv", "tables/table2.md", "figures/fig3_forks.png"],
}
# Notebooks of the target extended.
EXTENDED_NOTEBOOKS = {
    "mechanism": [
        *("mechanism/findings.csv", "mechanism/sensitivity.csv", "rivals.csv"),
        *("figures/fig6_factorial.png", "figures/fig7_layers.png", "figures/fig8_rivals.png"),
        *("figures/fig9_sensitivity.png", "figures/fig10_curvature.png"),
        *("figures/fig11_drift.png", "figures/fig12_activations.png"),
        "figures/fig13_replication.png",
    ],
}
# What the ledger of claims reads of the paper.
OF_THE_PAPER = {
    "claims": "resources/paper/claims.yaml",
    "excerpts": "resources/paper/excerpts.yaml",
    "table1": "resources/paper/table1.csv",
    "table2": "resources/paper/table2.csv",
    "lambada": "resources/paper/pythia_lambada.csv",
    "page_html": "resources/paper/page.html.j2",
    "page_md": "resources/paper/page.md.j2",
}
TABLES_OF_REVISIONS = Path(workflow.basedir, "resources/revisions").as_posix()

for key, value in (workflow.config_settings.config or {}).items():
    update_config(config, {key: as_in_a_file(value)} if isinstance(value, dict) else {})

try:
    for path in workflow.configfiles:  # again, for keys that stand twice
        read_yaml(Path(path))
    whole_config(config, Path(workflow.basedir, "resources"))
except ConfigError as error:
    sys.exit(f"Error: {error}")


@cache
def plan_of(name):
    """The plan of a suite by its name."""
    suite = find_suite(config, name)
    return SuitePlan(name, suite, config["quantizers"], TABLES_OF_REVISIONS)


@cache
def say_what_was_skipped(name):
    """Name the folders of a local suite that are no whole checkpoint, once and not in jobs."""
    for line in plan_of(name).skipped if workflow.is_main_process else []:
        print(f"suite {name}: skipped {line}", file=sys.stderr)


def planned(what, *names, **fixed):
    """Function of the wildcards: a property or, given arguments, a method of the plan.

    ``names`` are wildcards whose values are passed, ``fixed`` is passed as it is. A mistake
    in a target ends in one line: Snakemake adds a traceback to any other exception of such a
    function.
    """

    def value(wildcards):
        try:
            say_what_was_skipped(wildcards.suite)
            found = getattr(plan_of(wildcards.suite), what)
            if not (names or fixed):
                return found
            return found(*(wildcards[name] for name in names), **fixed)
        except ConfigError as error:
            sys.exit(f"Error: {error}")

    return value


def facts_of_claim(wildcards):
    """The ledger's facts of a suite; one line where the ledger never had such a claim."""
    path = OF_THE_PAPER["claims"]
    rows = yaml.safe_load(Path(workflow.basedir, path).read_text())["rows"]
    known = sorted(name for row in rows for name in (row["id"], *row.get("merges", ())))
    if wildcards.claim not in known:
        sys.exit(f"Error: {path} has no claim {wildcards.claim!r}; valid: {', '.join(known)}")
    return planned("ledger_facts")(wildcards)


def page_links(wildcards):
    """What the front page of a suite leads to, by names beside it."""
    plan = plan_of(wildcards.suite)
    names = final_outputs(plan, tables=TABLES, figures=FIGURES, notebooks=NOTEBOOKS)
    linked = (Path(name).relative_to(plan.root).as_posix() for name in names)
    return [name for name in linked if name != "index.html" and not name.endswith((".svg", ".tex"))]


def published_suites():
    """Plans of the suites of frozen measurements; one line where a list of them is lost."""
    names = [name for name, suite in config["suites"].items() if suite["source"] == "published"]
    try:
        return [plan_of(name) for name in names if plan_of(name).frozen_names]
    except ConfigError as error:
        sys.exit(f"Error: {error}")


def frozen_files(plan):
    """Function of no wildcard: the frozen files of a suite; one line where one is lost."""
    return lambda wildcards: planned("frozen_files")(SimpleNamespace(suite=plan.name))


def code_of_measure(wildcards):
    """The hash of the code of one measurement beyond the paper."""
    return code_hash(f"workflow_scripts/measure_{wildcards.measure}.py")


def suites_from(source):
    """Pattern that matches the names of the suites with this source, and nothing else."""
    return _any_of(name for name, suite in config["suites"].items() if suite["source"] == source)


def _any_of(names):
    """Pattern that matches these names of suites, and nothing else."""
    return "|".join(map(re.escape, names)) or r"(?!)"


def suites_that_keep_forks(kept):
    """Pattern of the suites whose forks' weights stay on disk, or of those whose do not."""
    return _any_of(name for name in config["suites"] if plan_of(name).keeps_forks == kept)


def suites_whose_tokenizer_has(key):
    """Pattern of the suites whose tokenizer is given by this key; by a file where it is none."""
    kinds = {
        name: next((k for k in ("vocab_size", "repo") if k in suite["tokenizer"]), None)
        for name, suite in config["suites"].items()
    }
    return _any_of(name for name, kind in kinds.items() if kind == key)


def suites_without(key, section):
    """Pattern of the suites that lack a key of a section."""
    return _any_of(name for name, suite in config["suites"].items() if key not in suite[section])


def in_report(path, caption, category, **labels):
    """The file as a part of `snakemake --report`, with a caption from rules/report/."""
    return report(path, caption=f"report/{caption}.rst", category=category, labels=labels)


def figure(stem, category, number):
    """The three files of a figure; the SVG is part of the report."""
    name = Path(stem).name
    suite = "{suite}" if "{suite}" in stem else "published"
    shown = in_report(f"{stem}.svg", name, category, item=f"Figure {number}", suite=suite)
    return [f"{stem}.pdf", shown, f"{stem}.png"]


def table(stem, category, number):
    """The three files of a table; the CSV is part of the report."""
    shown = in_report(
        f"{stem}.csv", Path(stem).name, category, item=f"Table {number}", suite="{suite}"
    )
    return [shown, f"{stem}.md", f"{stem}.tex"]


PUBLISHED = published_suites()
PRETRAINING_JOBS = [job for name in config["suites"] for job in plan_of(name).pretraining_jobs]
