"""Weight excess kurtosis under three definitions (section 4.5 does not say which it took).

``per_tensor``: of each weight matrix. ``mean_over_tensors``: their unweighted mean.
``pooled``: of all weights of all matrices taken as one sample. All are Fisher's
excess kurtosis (0 for a normal distribution) without bias correction, in float64.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.errors import Diverged
from flatminima.layers import matrices_of
from flatminima.missing import leaving_out_diverged
from flatminima.model import load_model


def kurtosis_table(step: int, weights: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Rows of one checkpoint: step, statistic, tensor, n_weights, excess_kurtosis.

    ``weights`` maps tensor names to ``[out, in]`` arrays of finite numbers. Raises ``Diverged``
    where those of one are all equal, since their kurtosis is not finite.
    """
    for name, w in weights.items():
        if w.min() == w.max():
            raise Diverged(f"step {step}: the weights of {name} are all equal: no kurtosis")
    pooled = np.concatenate([w.ravel() for w in weights.values()])
    excess = {name: stats.kurtosis(w.astype(float), axis=None) for name, w in weights.items()}
    rows = [("per_tensor", name, w.size, excess[name]) for name, w in weights.items()]
    rows += [
        ("mean_over_tensors", "all", pooled.size, np.mean(list(excess.values()))),
        ("pooled", "all", pooled.size, stats.kurtosis(pooled.astype(float))),
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
