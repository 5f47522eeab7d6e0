"""The mean of a series of differences whose neighbours are not independent.

Two ways beside each other, because a run has few probes: the stationary bootstrap, which
resamples stretches of the series, and a t-test on the means of a few long segments. For
three series of 30 points with a lag-1 autocorrelation of 0.5 the 95 % interval of the
first holds the true mean in about 78 of 100 cases, that of the second in about 92, and
that of a t-test on all 90 points in about 72 (a test measures this).
"""

from dataclasses import dataclass

import numpy as np
from arch.bootstrap import StationaryBootstrap, optimal_block_length
from scipy import stats

from flatminima.statistics.intervals import CONFIDENCE, percentile_interval, two_sided_p

FEWEST_PROBES = 12  # below, the choice of the block length has no autocorrelations to look at
SEGMENTS = 5
RESAMPLES = 4_999


@dataclass(frozen=True)
class BlockResult:
    """Mean difference over blocks of neighbouring probes: 95 % interval and two-sided p.

    ``length``: mean number of probes in a block.
    """

    low: float
    high: float
    p_value: float
    length: float


def stationary_bootstrap(
    differences: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> BlockResult:
    """Politis and Romano's bootstrap of the mean of ``differences`` ``[probes, series]``.

    A resample takes the same stretches from all series, so that what they share at a step
    stays together. The mean length of a stretch is Politis and White's choice for the
    mean over series, rounded up. Raises ``ValueError`` below ``FEWEST_PROBES`` probes.
    """
    if len(differences) < FEWEST_PROBES:
        raise ValueError(f"{len(differences)} probes: blocks need {FEWEST_PROBES} or more")
    lengths = optimal_block_length(differences.mean(axis=1))
    length = max(1, int(np.ceil(lengths["stationary"].iloc[0])))
    bootstrap = StationaryBootstrap(length, differences, seed=np.random.default_rng(seed))
    draws = bootstrap.apply(np.mean, resamples)[:, 0]
    return BlockResult(*percentile_interval(draws), two_sided_p(draws), length)


@dataclass(frozen=True)
class SegmentResult:
    """One-sample t-test of segment means against zero, with the 95 % interval of their mean."""

    t: float
    dof: float
    p_value: float
    mean: float
    low: float
    high: float


def segment_t_test(differences: np.ndarray) -> SegmentResult:
    """Student's t on the means of equal stretches of ``differences`` ``[probes, series]``.

    Means of long stretches depend on each other little, which is all that the test asks for.
    """
    parts = np.array_split(differences.mean(axis=1), SEGMENTS)
    means = np.array([part.mean() for part in parts])
    result = stats.ttest_1samp(means, 0.0)
    low, high = result.confidence_interval(CONFIDENCE)
    return SegmentResult(
        float(result.statistic), float(result.df), float(result.pvalue), float(means.mean()),
        float(low), float(high),
    )  # fmt: skip
