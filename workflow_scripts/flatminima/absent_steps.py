"""Steps without numbers, and how that is said beside the numbers of the others.

The revision of a *missing* step is not on the hub. A *diverged* checkpoint is there, and its
weights or its perplexity are not finite.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd

from flatminima.errors import Diverged

logger = logging.getLogger(__name__)
PRESENT, MISSING = "present", "missing"  # the column status of suite.csv
DIVERGED = "diverged"
_MOST_NAMED = 6


def missing_steps(suite_table: pd.DataFrame) -> list[int]:
    """Steps of ``suite.csv`` whose revision is missing."""
    return [int(step) for step in suite_table.loc[suite_table["status"] == MISSING, "step"]]


def diverged_steps(suite_table: pd.DataFrame, audit: pd.DataFrame) -> list[int]:
    """Steps whose checkpoint is there and that the probe left out of ``audit.csv``."""
    there = suite_table.loc[suite_table["status"] == PRESENT, "step"]
    return sorted(int(step) for step in set(there) - set(audit["step"]))


@contextmanager
def leaving_out_diverged(step: int) -> Iterator[None]:
    """Leave the block where the checkpoint of ``step`` has diverged, and name it in the log.

    The other checkpoints of a run go on, as in ``scoring.Prober.checkpoint``.
    """
    try:
        yield
    except Diverged as error:
        logger.warning("step %s is left out: %s", step, error)


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


def hole_words(steps: Iterable[int], spacing: int, phases: Mapping) -> str:
    """``left_out_words`` of the ``holes`` among measured ``steps``.

    A hole that is not among the diverged steps of phases.json counts as missing.
    """
    absent = holes(steps, spacing)
    diverged = [step for step in absent if step in phases.get(DIVERGED, ())]
    missing = [step for step in absent if step not in diverged]
    return left_out_words({MISSING: missing, DIVERGED: diverged})


def left_out_words(phases: Mapping) -> str:
    """The missing and the diverged steps of phases.json: ``missing: step 7; diverged: step 9``."""
    words = [_named_steps(kind, phases.get(kind, ())) for kind in (MISSING, DIVERGED)]
    return "; ".join(filter(None, words))


def _named_steps(kind: str, steps: Collection[int]) -> str:
    if not steps:
        return ""
    steps = sorted(steps)
    named = ", ".join(f"{step:,}" for step in steps[:_MOST_NAMED])
    more = len(steps) - _MOST_NAMED
    return f"{kind}: step{'s' * (len(steps) > 1)} {named}" + (
        f" and {more} more" if more > 0 else ""
    )
