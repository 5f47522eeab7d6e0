"""How far a run is: what is done, running and left, and the newest gap of each fork.

Read from what Snakemake and the jobs leave on disk, so that it can be asked while a run
goes on and disturbs nothing.
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table


@dataclass(frozen=True)
class ForkProgress:
    """A fork in training: its name, its last probed step and the gap there (percent)."""

    name: str
    step: int
    gap_pct: float


def jobs_left(plan: str) -> dict[str, int]:
    """Jobs by rule of what ``snakemake --dry-run`` printed; empty where nothing is left."""
    if "Job stats:" not in plan:
        return {}
    table = plan.split("Job stats:", 1)[1].split("\n\n", 1)[0]
    jobs = dict(re.findall(r"^(\w[\w-]*) +(\d+)$", table, flags=re.MULTILINE))
    return {rule: int(n) for rule, n in jobs.items() if rule not in ("total", "all")}


def unfinished_outputs(folder: Path) -> list[str]:
    """Outputs of jobs that were started and have not ended, in ``folder`` (``.snakemake``).

    Snakemake keeps a marker for each, named by the path in base64. Cut-off jobs leave
    theirs behind as well, until they run again.
    """
    found = []
    root = folder / "incomplete"
    for marker in root.rglob("*"):
        if marker.is_file():
            encoded = "".join(part.removeprefix("@") for part in marker.relative_to(root).parts)
            try:
                found.append(base64.b64decode(encoded, validate=True).decode())
            except (binascii.Error, UnicodeDecodeError):
                continue
    return sorted(found)


def mean_seconds(benchmarks: Path, rule: str) -> float | None:
    """Mean wall clock in seconds of a rule's finished jobs; ``None`` where there are none."""
    files = [*benchmarks.glob(f"*/{rule}.tsv"), *benchmarks.glob(f"*/{rule}/*.tsv")]
    seconds = [pd.read_csv(path, sep="\t")["s"].iloc[0] for path in files]
    return float(pd.Series(seconds).mean()) if seconds else None


def fork_progress(root: Path) -> list[ForkProgress]:
    """The newest probe of each fork of a suite (its results folder) that is in training."""
    found = []
    for folder in sorted(root.glob("unfinished/train_fork/*")):
        steps = {int(path.stem.removeprefix("step")): path for path in folder.glob("step*.parquet")}
        if steps:
            step = max(steps)
            sums = pd.read_parquet(steps[step]).groupby("role")[["nll_nats", "scored"]].sum()
            nll = sums["nll_nats"] / sums["scored"]
            gap = 100 * math.expm1(nll["low_bit"] - nll["fp32"])
            found.append(ForkProgress(folder.name, step, gap))
    return found


def describe(left: Mapping[str, int], benchmarks: Path, running: list[str]) -> Table:
    """A table with a row per rule that has jobs left: how many, and how long they take here."""
    table = Table(title=f"{sum(left.values())} jobs left, {len(running)} files in the making")
    for column in ("rule", "left", "seconds each", "seconds in all"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for rule, count in left.items():
        seconds = mean_seconds(benchmarks, rule)
        known = ("-", "-") if seconds is None else (f"{seconds:.0f}", f"{seconds * count:.0f}")
        table.add_row(rule, str(count), *known)
    return table
