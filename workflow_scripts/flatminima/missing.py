"""Revisions that could not be had: which they are, and how that is said beside numbers."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pandas as pd

PRESENT, MISSING = "present", "missing"  # the column status of suite.csv
_MOST_NAMED = 6


def missing_steps(suite_table: pd.DataFrame) -> list[int]:
    """Steps of ``suite.csv`` whose revision could not be had."""
    return [int(step) for step in suite_table.loc[suite_table["status"] == MISSING, "step"]]


def even_steps(steps: Iterable[int], spacing: int) -> np.ndarray:
    """The evenly spaced ones of ``steps``, each once and in order: multiples after step 0."""
    steps = np.unique(np.asarray(steps))
    return steps[(steps > 0) & (steps % spacing == 0)]


def holes(steps: Iterable[int], spacing: int) -> list[int]:
    """Multiples of ``spacing`` up to the last of ``steps`` that are not among them.

    None where ``spacing`` is 1, which stands for steps without any order.
    """
    if spacing == 1:
        return []
    there = set(steps)
    return [
        step for step in range(spacing, max(there, default=0) + 1, spacing) if step not in there
    ]


def missing_words(missing: Collection[int] | Mapping) -> str:
    """``missing: step 70,000``, or nothing; ``missing`` is a list of steps, or phases.json."""
    if isinstance(missing, Mapping):
        missing = missing.get("missing", [])
    if not missing:
        return ""
    steps = sorted(missing)
    named = ", ".join(f"{step:,}" for step in steps[:_MOST_NAMED])
    more = len(steps) - _MOST_NAMED
    return f"missing: step{'s' * (len(steps) > 1)} {named}" + (
        f" and {more} more" if more > 0 else ""
    )
