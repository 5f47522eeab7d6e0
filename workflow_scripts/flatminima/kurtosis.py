"""Weight excess kurtosis under three definitions (section 4.5 does not say which it took).

``per_tensor``: of each weight matrix. ``mean_over_tensors``: their unweighted mean.
``pooled``: of all weights of all matrices taken as one sample. All are Fisher's
excess kurtosis (0 for a normal distribution) without bias correction, in float64.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.absent_steps import leaving_out_diverged
from flatminima.errors import Diverged
from flatminima.layers import matrices_of
from flatminima.model import load_model

PART = 2**22  # numbers that are in memory in float64 at a time


def pooled_kurtosis(arrays: Sequence[np.ndarray]) -> float:
    """Excess kurtosis of the numbers of all ``arrays`` taken as one sample.

    To the last bit what ``scipy.stats.kurtosis`` gives for all of them in one float64 array.
    That takes ten times the memory of the weights: the array and three more like it.
    """
    flat = [array.ravel() for array in arrays]
    starts = np.cumsum([0, *map(len, flat)])

    def part(start: int, stop: int) -> np.ndarray:
        """Numbers ``start`` to ``stop`` of the sample, in float64."""
        pieces = [
            array[max(0, start - first) : max(0, stop - first)]
            for first, array in zip(starts[:-1], flat, strict=True)
        ]
        return np.concatenate(pieces, dtype=np.float64)

    def total(start: int, stop: int, power: int, center: float) -> float:
        """Sum of the powers of distances to ``center``, added up as numpy adds up one array."""
        if stop - start > PART:
            half = (stop - start) // 2
            middle = start + half - half % 8  # where numpy's pairwise sum divides
            return total(start, middle, power, center) + total(middle, stop, power, center)
        values = part(start, stop)
        if power > 1:
            values -= center
        for _ in range(power // 2):
            np.square(values, out=values)
        return values.sum()

    count = int(starts[-1])
    mean = total(0, count, 1, 0.0) / count
    second = total(0, count, 2, mean) / count
    fourth = total(0, count, 4, mean) / count
    return float(fourth / second**2 - 3.0)


def kurtosis_table(step: int, weights: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Rows of one checkpoint: step, statistic, tensor, n_weights, excess_kurtosis.

    ``weights`` maps tensor names to ``[out, in]`` arrays of finite numbers. Raises ``Diverged``
    where those of one are all equal, since their kurtosis is not finite.
    """
    for name, w in weights.items():
        if w.min() == w.max():
            raise Diverged(f"step {step}: the weights of {name} are all equal: no kurtosis")
    count = sum(w.size for w in weights.values())
    excess = {name: stats.kurtosis(w.astype(float), axis=None) for name, w in weights.items()}
    rows = [("per_tensor", name, w.size, excess[name]) for name, w in weights.items()]
    rows += [
        ("mean_over_tensors", "all", count, np.mean(list(excess.values()))),
        ("pooled", "all", count, pooled_kurtosis(list(weights.values()))),
    ]
    columns = ["step", "statistic", "tensor", "n_weights", "excess_kurtosis"]
    return pd.DataFrame([(step, *row) for row in rows], columns=columns)


def kurtosis_of_checkpoint(step: int, weights: str | Path, layers: str) -> list[pd.DataFrame]:
    """``kurtosis_table`` of the matrices that a quantizer with the same ``layers`` takes.

    ``weights`` is the checkpoint's file of weights or the index of its shards. Of a checkpoint
    that has diverged there is no table, and the log names it.
    """
    with leaving_out_diverged(step):
        matrices = matrices_of(load_model(Path(weights).parent), layers)
        arrays = {name: matrix.numpy() for name, matrix in matrices.items()}
        return [kurtosis_table(step, arrays)]
    return []
