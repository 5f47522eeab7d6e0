"""Steps without numbers, and how tables and figures name them.

The hub does not have the revision (the published checkpoint) of a *missing* step. The
checkpoint of a *diverged* step exists, but its weights or its perplexity are not finite.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd

from flatminima.errors import Diverged

logger = logging.getLogger(__name__)
# The column status of suite.csv.
PRESENT = "present"
MISSING = "missing"

DIVERGED = "diverged"
_MOST_NAMED = 6  # steps of a list; the others are counted


def missing_steps(suite_table: pd.DataFrame) -> list[int]:
    """Steps of ``suite.csv`` whose revision is missing."""
    return [int(step) for step in suite_table.loc[suite_table["status"] == MISSING, "step"]]


def diverged_steps(suite_table: pd.DataFrame, audit: pd.DataFrame) -> list[int]:
    """Steps whose checkpoint is present and that the probe left out of ``audit.csv``."""
    present_steps = suite_table.loc[suite_table["status"] == PRESENT, "step"]
    return sorted(int(step) for step in set(present_steps) - set(audit["step"]))


@contextmanager
def leaving_out_diverged(step: int) -> Iterator[None]:
    """Leave the block if the checkpoint of ``step`` has diverged, and name the step in the log.

    The other checkpoints of a run are measured, as in ``scoring.Prober.checkpoint``.
    """
    try:
        yield
    except Diverged as error:
        logger.warning("step %s is left out: %s", step, error)


def even_steps(steps: Iterable[int], spacing: int) -> np.ndarray:
    """The multiples of ``spacing`` among ``steps``, each once and in order, without step 0."""
    unique_steps = np.unique(np.asarray(steps))
    return unique_steps[(unique_steps > 0) & (unique_steps % spacing == 0)]


def holes(steps: Iterable[int], spacing: int) -> list[int]:
    """Multiples of ``spacing`` up to the last of ``steps`` that are not in ``steps``.

    A ``spacing`` of 1 means that the steps follow no grid. Such steps have no holes.
    """
    if spacing == 1:
        return []
    measured_steps = set(steps)
    last = max(measured_steps, default=0)
    return [step for step in range(spacing, last + 1, spacing) if step not in measured_steps]


def hole_words(steps: Iterable[int], spacing: int, phases: Mapping) -> str:
    """``left_out_words`` of the ``holes`` among measured ``steps``.

    A hole that phases.json does not list as diverged counts as missing.
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
    """``missing: steps 4, 8 and 3 more``; empty without steps."""
    if not steps:
        return ""
    ordered = sorted(steps)
    noun = "step" if len(ordered) == 1 else "steps"
    words = f"{kind}: {noun} " + ", ".join(f"{step:,}" for step in ordered[:_MOST_NAMED])
    unnamed = len(ordered) - _MOST_NAMED
    return f"{words} and {unnamed} more" if unnamed > 0 else words
