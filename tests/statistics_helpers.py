"""What tests of ``statistics.csv`` share."""

import numpy as np
import pandas as pd
import pytest
from scipy import signal

WHERE = {"comparison": "x v y", "unit": "seed", "measure": "gap_pct"}


def sequence_scores(step, role, nll_nats, scored=63, **columns) -> pd.DataFrame:
    """Per-sequence scores of one model; ``nll_nats`` are sums over the tokens of each."""
    about = {"step": step, "quantizer": role, "role": role, "sequence": range(len(nll_nats))}
    scores = {"nll_nats": nll_nats, "kl_nats": 0.0, "top1_changed": 0.0, "scored": scored}
    return pd.DataFrame(about | scores | columns)


def rows_of(generated) -> pd.DataFrame:
    """Rows as a table."""
    return pd.DataFrame([vars(row) for row in generated])


def select(table: pd.DataFrame, **columns):
    """The one row with these values."""
    for name, value in columns.items():
        table = table[table[name] == value]
    assert len(table) == 1, f"{columns}: {len(table)} rows"
    return table.iloc[0]


def close(ours, theirs) -> bool:
    """Equal to rounding."""
    return ours == pytest.approx(theirs, rel=1e-12, abs=1e-14)


def ar1(rng: np.random.Generator, count: int, rho: float) -> np.ndarray:
    """A stationary series with lag-1 autocorrelation ``rho`` and variance 1."""
    noise = rng.normal(size=count)
    noise[1:] *= np.sqrt(1 - rho**2)
    return signal.lfilter([1.0], [1.0, -rho], noise)
