"""Weight excess kurtosis under three definitions; section 4.5 does not say which it uses.

``per_tensor``: the kurtosis of each weight matrix. ``mean_over_tensors``: their unweighted
mean. ``pooled``: the kurtosis of all weights of all matrices as one sample. All are Fisher's
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
    """Excess kurtosis of the numbers of all ``arrays`` as one sample.

    The result equals ``scipy.stats.kurtosis`` of one float64 array of them, to the last bit.
    Such an array, and three more that scipy makes, would take ten times the memory of the
    weights.
    """
    flat_arrays = [array.ravel() for array in arrays]
    starts = np.cumsum([0, *map(len, flat_arrays)])

    def part(start: int, stop: int) -> np.ndarray:
        """Numbers ``start`` to ``stop`` of the sample, in float64."""
        pieces = [
            array[max(0, start - first) : max(0, stop - first)]
            for first, array in zip(starts[:-1], flat_arrays, strict=True)
        ]
        return np.concatenate(pieces, dtype=np.float64)

    def power_sum(start: int, stop: int, power: int, center: float) -> float:
        """Sum of the powers of the distances to ``center``."""
        if stop - start > PART:
            # Divided where numpy's pairwise sum of one array divides, so that rounding is equal.
            half = (stop - start) // 2
            middle = start + half - half % 8
            lower = power_sum(start, middle, power, center)
            return lower + power_sum(middle, stop, power, center)
        numbers = part(start, stop)
        if power > 1:
            numbers -= center
        for _ in range(power // 2):
            np.square(numbers, out=numbers)
        return numbers.sum()

    count = int(starts[-1])
    mean = power_sum(0, count, 1, 0.0) / count
    second = power_sum(0, count, 2, mean) / count
    fourth = power_sum(0, count, 4, mean) / count
    return float(fourth / second**2 - 3.0)


def kurtosis_table(step: int, weights: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Rows of one checkpoint: step, statistic, tensor, n_weights, excess_kurtosis.

    ``weights`` maps tensor names to ``[out, in]`` arrays of finite numbers. Raises ``Diverged``
    if all weights of an array are equal, since their kurtosis is not finite.
    """
    for name, array in weights.items():
        if array.min() == array.max():
            raise Diverged(f"step {step}: the weights of {name} are all equal: no kurtosis")

    count = sum(array.size for array in weights.values())
    rows = []
    tensor_kurtoses = []
    for name, array in weights.items():
        excess = stats.kurtosis(array.astype(float), axis=None)
        tensor_kurtoses.append(excess)
        rows.append(("per_tensor", name, array.size, excess))
    rows += [
        ("mean_over_tensors", "all", count, np.mean(tensor_kurtoses)),
        ("pooled", "all", count, pooled_kurtosis(list(weights.values()))),
    ]
    columns = ["step", "statistic", "tensor", "n_weights", "excess_kurtosis"]
    return pd.DataFrame([(step, *row) for row in rows], columns=columns)


def kurtosis_of_checkpoint(step: int, weights: str | Path, layers: str) -> list[pd.DataFrame]:
    """``kurtosis_table`` of the matrices that a quantizer with the same ``layers`` rounds.

    ``weights`` is the checkpoint's file of weights or the index of its shards. The list is empty
    if the checkpoint has diverged, and the log names its step.
    """
    with leaving_out_diverged(step):
        matrices = matrices_of(load_model(Path(weights).parent), layers)
        arrays = {name: matrix.numpy() for name, matrix in matrices.items()}
        return [kurtosis_table(step, arrays)]
    return []
