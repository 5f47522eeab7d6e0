"""Two groups of units compared: t-tests, ranks and permutations, with effect sizes.

scipy does the arithmetic.
"""

from collections.abc import Iterator
from math import comb

import numpy as np
from scipy import stats

from flatminima.statistics.intervals import CONFIDENCE
from flatminima.statistics.rows import NAN, Row, join_notes

_PERMUTATIONS = 9_999


def mean(sample: np.ndarray) -> float:
    """Mean; not a number for an empty sample."""
    return float(np.mean(sample)) if len(sample) else NAN


def standard_deviation(sample: np.ndarray) -> float:
    """Sample standard deviation; not a number below two units."""
    return float(np.std(sample, ddof=1)) if len(sample) > 1 else NAN


def is_constant(sample: np.ndarray) -> bool:
    """No spread beyond rounding, where scipy would divide noise by noise."""
    return len(sample) < 2 or np.ptp(sample) <= 1e-12 * max(1e-300, np.abs(sample).max())


def describe(a: np.ndarray, b: np.ndarray) -> dict:
    """Sizes, means, standard deviations, difference, Cohen's d and Cliff's delta of two samples."""
    described = {
        "n_a": len(a), "n_b": len(b), "mean_a": mean(a), "sd_a": standard_deviation(a),
        "mean_b": mean(b), "sd_b": standard_deviation(b), "difference": mean(a) - mean(b),
    }  # fmt: skip
    if len(a) and len(b):
        described["cliffs_delta"] = float(np.sign(a[:, None] - b).mean())
    if len(a) > 1 and len(b) > 1 and not (is_constant(a) and is_constant(b)):
        pooled = ((len(a) - 1) * np.var(a, ddof=1) + (len(b) - 1) * np.var(b, ddof=1)) / (
            len(a) + len(b) - 2
        )
        described["cohens_d"] = float(described["difference"] / np.sqrt(pooled))
    return described


def smallest_p(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of an exact rank or permutation test of ``n_a`` and ``n_b`` units."""
    return min(1.0, 2 / comb(n_a + n_b, n_a))  # of integers: the number may exceed a float


def t_tests(a: np.ndarray, b: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Student's and Welch's two-sample t-test; ``where`` holds comparison, unit and measure."""
    if min(len(a), len(b)) < 2:
        why = f"a t-test takes two or more units on each side, not {len(a)} and {len(b)}"
    else:
        why = "no variance on either side" if is_constant(a) and is_constant(b) else ""
    for test, equal in (("Student t", True), ("Welch t", False)):
        found = {}
        if not why:
            result = stats.ttest_ind(a, b, equal_var=equal)
            found = {
                "value": float(result.statistic),
                "dof": float(result.df),
                "p_value": float(result.pvalue),
            }
            low, high = result.confidence_interval(CONFIDENCE)
            found |= {"interval_low": float(low), "interval_high": float(high)}
        yield Row(
            test, **where, statistic="t", **found, **describe(a, b), note=join_notes(note, why)
        )


def exact_tests(a: np.ndarray, b: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Pairwise wins with the exact Mann-Whitney p, and a permutation test of the means.

    A win is a pair in which ``a`` is lower, as in the paper's Table 2. Both tests are
    two-sided; with more than 9,999 permutations a seeded sample of them is used.
    """
    described = describe(a, b)
    smallest = smallest_p(len(a), len(b))
    floor = f"smallest two-sided p of {len(a)} v {len(b)} units: {smallest:.3g}"
    wins, p, why = NAN, NAN, "no pairs"
    if len(a) and len(b):
        wins = int((a[:, None] < b).sum())
        why = "ties, for which the exact distribution does not hold"
        if len(np.unique(np.concatenate([a, b]))) == len(a) + len(b):
            p, why = float(stats.mannwhitneyu(a, b, method="exact").pvalue), ""
    pairs = f"of {len(a) * len(b)} pairs; p: exact Mann-Whitney"
    yield Row(
        "pairwise wins", **where, statistic="wins", value=wins, p_value=p, **described,
        note=join_notes(note, pairs, why, floor),
    )  # fmt: skip
    if smallest < 2 / (_PERMUTATIONS + 1):
        floor = f"smallest p of {_PERMUTATIONS:,} permutations: {2 / (_PERMUTATIONS + 1):g}"
    p, why = NAN, "takes two or more units on each side"
    if min(len(a), len(b)) > 1:
        why = ""
        p = stats.permutation_test(
            (a, b), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), vectorized=True,
            n_resamples=_PERMUTATIONS, rng=np.random.default_rng(0),
        ).pvalue  # fmt: skip
    yield Row(
        "permutation", **where, statistic="difference of means", value=described["difference"],
        p_value=float(p), **described, note=join_notes(note, why, floor),
    )  # fmt: skip
