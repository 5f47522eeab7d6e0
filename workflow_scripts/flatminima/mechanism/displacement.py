"""Do weights walk at random? Angles between successive moves, and how distances grow.

A random walk has a cosine of 0 between successive moves and a distance that grows with
the square root of the number of moves (exponent 1/2); a straight line has 1 and 1.
"""

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from torch import Tensor

Weights = Mapping[str, Tensor]
LAGS = (1, 2, 4, 8, 16)
COLUMNS = ["step", "lag", "distance", "weight_norm", "cosine"]


def flatten(weights: Weights) -> np.ndarray:
    """All weights as one float64 vector."""
    return np.concatenate([w.reshape(-1).double().cpu().numpy() for w in weights.values()])


def displacements(states: Iterator[tuple[int, np.ndarray]], spacing: int) -> Iterator[dict]:
    """Distances back from each state, one row per lag in ``LAGS``.

    ``states`` yields steps in order with their flat weights, ``spacing`` steps apart (where
    one is missing the past is forgotten); no more than the largest lag of them are kept.
    Rows: step (the later one), lag, distance (Euclidean), weight_norm of the later state,
    and for lag 1 the cosine of this move and the one before.
    """
    kept: deque[tuple[int, np.ndarray]] = deque(maxlen=max(LAGS) + 1)
    for step, state in states:
        if kept and step - kept[-1][0] != spacing:
            kept.clear()
        kept.append((step, state))
        norm = float(np.linalg.norm(state))
        for lag in LAGS:
            if lag >= len(kept):
                break
            move = state - kept[-1 - lag][1]
            row = {"step": step, "lag": lag, "distance": float(np.linalg.norm(move)),
                   "weight_norm": norm, "cosine": np.nan}  # fmt: skip
            if lag == 1 and len(kept) > 2:
                before = kept[-2][1] - kept[-3][1]
                scale = np.linalg.norm(move) * np.linalg.norm(before)
                row["cosine"] = float(move @ before / scale) if scale else np.nan
            yield row


def exponents(table: pd.DataFrame, first_step: int, spacing: int) -> pd.Series:
    """Growth exponent of the distance for each later step whose whole past is after a step.

    Slope of log distance over log lag, by step. 1/2: random walk; 1: straight line; below
    1/2: the weights turn back.
    """
    wide = table.pivot(index="step", columns="lag", values="distance").dropna()
    wide = wide[wide.index - spacing * wide.columns.max() >= first_step]
    if wide.empty:
        return pd.Series(dtype=float)
    slopes = np.polyfit(np.log(wide.columns.to_numpy(float)), np.log(wide.to_numpy().T), 1)[0]
    return pd.Series(slopes, index=wide.index)
