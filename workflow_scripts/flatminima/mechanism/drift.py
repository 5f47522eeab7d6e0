"""Weights along training: how they sit in their grids, which codes flip, how far they move."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from flatminima.layers import matrices_of
from flatminima.mechanism.code_flips import code_flips
from flatminima.mechanism.displacement import displacements, flatten
from flatminima.mechanism.misalignment import misalignment
from flatminima.model import load_model
from flatminima.quantizer_specs import AffineQuantizer

_FLIPS = ("flipped_own", "flipped_fixed", "flipped_expected", "mean_move_in_steps")


def block_weights(path: str, layers: str) -> dict[str, Tensor]:
    """Float32 matrices of a checkpoint that a probe of ``layers`` quantizes, by name.

    ``path`` is its file of weights or the index of its shards.
    """
    return matrices_of(load_model(Path(path).parent), layers)


def drift_rows(
    states: Iterable[tuple[int, str]], spec: AffineQuantizer, *, layers: str, spacing: int
) -> tuple[list[dict], list[dict]]:
    """Rows of drift.csv (every step) and displacement.csv (evenly spaced steps and lags).

    ``states`` yields steps in order with their weights files; few of them are in memory
    at a time. The codes of a step are compared with those of the step before it.
    """
    positions: list[dict] = []

    def even() -> Iterator[tuple[int, np.ndarray]]:
        before, earlier = None, None
        for step, path in states:
            weights = block_weights(path, layers)
            row = {"step": step, "previous_step": earlier,
                   **misalignment(weights, spec, seed=step)}  # fmt: skip
            flips = code_flips(before, weights, spec) if before else dict.fromkeys(_FLIPS, np.nan)
            positions.append(row | flips)
            before, earlier = weights, step
            if step % spacing == 0 and step > 0:
                yield step, flatten(weights)

    distances = list(displacements(even(), spacing))
    return positions, distances
