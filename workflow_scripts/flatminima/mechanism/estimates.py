"""A number with its interval, and the few ways in which the findings are made into one."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from flatminima.intervals import CONFIDENCE, FEWEST_PROBES, stationary_bootstrap

RESAMPLES = 2_000


@dataclass(frozen=True)
class Value:
    """A value, its 95 % interval, how many units it rests on, and which these are."""

    value: float
    low: float
    high: float
    n: int
    unit: str


def exact(value: float, n: int, unit: str) -> Value:
    """A number that is known without error."""
    return Value(float(value), float(value), float(value), n, unit)


def mean_of(values: np.ndarray, unit: str) -> Value:
    """Mean with Student's t interval; units that are independent."""
    values = np.asarray(values, dtype=float)
    mean, error = float(values.mean()), float(stats.sem(values)) if len(values) > 1 else np.nan
    if not error > 0:
        return Value(mean, mean, mean, len(values), unit)
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, mean, error)
    return Value(mean, float(low), float(high), len(values), unit)


def mean_of_series(values: np.ndarray, unit: str) -> Value:
    """Mean of a series whose neighbours depend on each other (stationary bootstrap).

    NaN as the interval where the series is too short for one.
    """
    values = np.asarray(values, dtype=float)
    mean = float(values.mean()) if len(values) else np.nan
    if len(values) < FEWEST_PROBES:
        return Value(mean, np.nan, np.nan, len(values), unit)
    found = stationary_bootstrap(values[:, None])
    return Value(mean, found.low, found.high, len(values), unit)


def growth(last: Value, first: Value) -> Value:
    """Ratio of two estimates, their errors taken as independent and normal in logarithms.

    Both rest on the same sequences, which makes the true interval narrower. NaN where an
    interval reaches zero.
    """
    ratio = last.value / first.value
    ends = np.array([last.low, last.high, first.low, first.high])
    if not (ends > 0).all():
        return Value(ratio, np.nan, np.nan, min(last.n, first.n), last.unit)
    half = np.hypot(np.log(last.high / last.low), np.log(first.high / first.low)) / 2
    return Value(ratio, ratio / np.exp(half), ratio * np.exp(half), last.n, last.unit)


def rank_correlation(x: np.ndarray, y: np.ndarray, unit: str) -> Value:
    """Spearman's rank correlation with a percentile bootstrap over pairs.

    Neighbouring checkpoints are no independent pairs: the interval is too narrow. NaN
    where there are fewer than four pairs or one of the two is constant.
    """
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Value(np.nan, np.nan, np.nan, len(x), unit)

    def spearman(a: np.ndarray, b: np.ndarray) -> float:
        return float(stats.spearmanr(a, b).statistic)

    found = stats.bootstrap(
        (np.asarray(x), np.asarray(y)), spearman, paired=True, vectorized=False,
        n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Value(spearman(x, y), float(found.low), float(found.high), len(x), unit)
