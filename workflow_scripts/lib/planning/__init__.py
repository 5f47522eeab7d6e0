"""What a suite of the configuration means in files and settings.

A ``SuitePlan`` turns one checked entry of ``config.yaml`` into the paths and the
parameter values of its rules. Parameters hold only the keys that the job reads, so
that a change of another key reruns nothing. One module a stage; a new line goes to
the stage whose rules read it.
"""

from workflow_scripts.lib.planning.facts import FactsPlan
from workflow_scripts.lib.planning.pretraining import PretrainingJob

__all__ = ["PretrainingJob", "SuitePlan", "final_outputs"]


class SuitePlan(FactsPlan):
    """Everything that rules ask of one suite."""


def final_outputs(plan: SuitePlan, *, tables: list, figures: list, notebooks: list) -> list[str]:
    """Everything of a suite that a reader looks at."""
    names = ["suite.csv", "audit.csv", "kurtosis.csv", "phases.json", "forks.csv", "statistics.csv"]
    names += ["early_warning.csv", "claims.csv", "claims.md"]
    names += [f"tables/{table}.{suffix}" for table in tables for suffix in ("csv", "md", "tex")]
    names += [
        f"figures/{figure}.{suffix}" for figure in figures for suffix in ("pdf", "svg", "png")
    ]
    names += ["figures/fig1_audit.html"]
    names += [f"notebooks/{notebook}.html" for notebook in notebooks]
    return [f"{plan.root}/{name}" for name in names]
