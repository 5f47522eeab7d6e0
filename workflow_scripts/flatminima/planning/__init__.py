"""What a suite of the configuration means in files and settings.

A ``SuitePlan`` turns one checked entry of ``config.yaml`` into the paths and the
parameter values of its rules. Parameters hold only the keys that the job reads, so
that a change of another key reruns nothing. One module a stage; a new line goes to
the stage whose rules read it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flatminima.config import ROOT, find_suite, read_config
from flatminima.planning.mechanism import RANGED
from flatminima.planning.pretraining import PretrainingJob
from flatminima.planning.published import PublishedPlan

__all__ = [
    "RANGED",
    "PretrainingJob",
    "SuitePlan",
    "final_outputs",
    "read_plan",
]


class SuitePlan(PublishedPlan):
    """Everything that rules ask of one suite."""


def read_plan(suite: str | None, files: Sequence[str | Path]) -> SuitePlan:
    """The plan of a suite, or of the one that the configuration names, outside Snakemake."""
    config = read_config(files)
    name = suite or config["suite"]
    tables = (ROOT / "resources/revisions").as_posix()
    return SuitePlan(name, find_suite(config, name), config["quantizers"], tables)


# What exists only of a suite that has forks; the ledger of claims reads them as well.
OF_FORKS = ("forks.csv", "statistics.csv", "table2", "fig3_forks")
LEDGER = ("claims.csv", "claims.md", "claims.html")


def final_outputs(
    plan: SuitePlan, *, tables: list, figures: list, notebooks: Mapping[str, list[str]]
) -> list[str]:
    """Everything of a suite that a reader looks at.

    ``notebooks`` maps each one to the results that it reads. A suite without forks has
    what can be said of its own run, and one whose learning rate is not known no rules
    that warn early.
    """
    names = ["suite.csv", "audit.csv", "kurtosis.csv", "phases.json", "forks.csv", "statistics.csv"]
    names += ["early_warning.csv", *LEDGER]
    names += [f"tables/{table}.{suffix}" for table in tables for suffix in ("csv", "md", "tex")]
    names += [
        f"figures/{figure}.{suffix}" for figure in figures for suffix in ("pdf", "svg", "png")
    ]
    names += ["index.html"]
    names += [
        f"notebooks/{notebook}.html"
        for notebook, needed in notebooks.items()
        if plan.has_forks or not any(_is_of_forks(name) for name in needed)
    ]
    left_out = () if plan.has_forks and plan.is_even else LEDGER
    left_out += () if plan.schedule else ("early_warning.csv",)
    return [
        f"{plan.root}/{name}"
        for name in names
        if name not in left_out and (plan.has_forks or not _is_of_forks(name))
    ]


def _is_of_forks(name: str) -> bool:
    return Path(name).name in OF_FORKS or Path(name).stem in OF_FORKS
