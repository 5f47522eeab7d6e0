"""Frozen tables of a suite's revisions: which branch holds which step, at which commit.

They are read from the hub's list of branches once and committed, so that planning needs
no network: ``resources/revisions/{suite}.csv`` with the columns step, branch, commit.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from flatminima.revisions.names import step_of

COLUMNS = ["step", "branch", "commit"]


def table_of_branches(pattern: str, branches: Mapping[str, str]) -> pd.DataFrame:
    """The branches (name to commit) that hold a step, in step order.

    Raises ``ValueError`` where no branch fits the pattern or two hold the same step.
    """
    rows = [
        (step, branch, commit)
        for branch, commit in branches.items()
        if (step := step_of(pattern, branch)) is not None
    ]
    if not rows:
        shown = ", ".join(sorted(branches)[:3]) or "none"
        raise ValueError(f"none of {len(branches)} branches fits {pattern!r}; there are {shown}")
    table = pd.DataFrame(sorted(rows), columns=COLUMNS)
    twice = table[table.duplicated("step", keep=False)]
    if len(twice):
        names = " and ".join(twice[twice["step"] == twice["step"].iloc[0]]["branch"])
        raise ValueError(f"branches {names} are both step {twice['step'].iloc[0]}")
    return table


def read_table(path: Path) -> dict[int, str] | None:
    """Branch of each step, in step order; ``None`` where the table does not exist.

    Raises ``ValueError`` for a file that is no such table.
    """
    if not path.is_file():
        return None
    table = pd.read_csv(path, dtype={"branch": str, "commit": str})
    if list(table.columns) != COLUMNS or table.empty or not table["step"].is_monotonic_increasing:
        raise ValueError(f"{path} is no table of {', '.join(COLUMNS)} in step order")
    return dict(zip(table["step"].tolist(), table["branch"], strict=True))
