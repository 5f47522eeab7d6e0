"""Standard tests as rows of ``statistics.csv``; scipy and statsmodels do the arithmetic.

What cannot be computed (one seed, no variance, no such probes) is a row with an empty
value and a note that says why. A family is one test of one measure on one unit, applied
to all comparisons of a subject (such as three schedules against one control); Holm's
correction is within it. Different tests of the same comparison are not a family: they are
alternatives shown beside each other.
"""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from math import comb

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from flatminima.intervals import CONFIDENCE

NAN = float("nan")
_DEPEND = "not independent, so p is too small and the interval too narrow"
ONE_RUN = "unit: one run; its seed fixes the order of the data"
PROBES_DEPEND = f"unit: one probe; those of one run are {_DEPEND}"
CHECKPOINTS_DEPEND = f"unit: one checkpoint; neighbouring ones are {_DEPEND}"


@dataclass(frozen=True)
class Row:
    """One row of ``statistics.csv``.

    ``unit`` is what counts as one observation; ``a`` and ``b`` are the two sides of
    ``comparison`` in its order ("a v b"). ``measure`` names the compared quantity with
    its unit. ``difference`` is mean a minus mean b; ``interval_low`` and
    ``interval_high`` are its 95 % interval or, where nothing is subtracted, that of
    ``value``. ``cohens_d`` is the difference in pooled standard deviations,
    ``cliffs_delta`` the share of pairs with the higher value in a minus the share with
    the lower one. ``p_adjusted`` is Holm's p within ``family``.
    """

    test: str
    comparison: str
    unit: str
    measure: str
    statistic: str
    value: float = NAN
    interval_low: float = NAN
    interval_high: float = NAN
    dof: float = NAN
    p_value: float = NAN
    family: str = ""
    p_adjusted: float = NAN
    n_a: int = 0
    n_b: int | None = None
    mean_a: float = NAN
    sd_a: float = NAN
    mean_b: float = NAN
    sd_b: float = NAN
    difference: float = NAN
    cohens_d: float = NAN
    cliffs_delta: float = NAN
    note: str = ""


COLUMNS = [field.name for field in fields(Row)]


def join_notes(*parts: str) -> str:
    """Join the remarks that are not empty."""
    return "; ".join(part for part in parts if part)


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


SMALL_SAMPLE = 20
NOT_OF_PAIRS = ("difference", "cohens_d", "cliffs_delta")


def _rank_permutation_p(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sided p of Spearman's rho by permutation: exact up to 7 pairs, then sampled."""
    ranks = stats.zscore(stats.rankdata(y))
    return stats.permutation_test(
        (stats.zscore(stats.rankdata(x)),), lambda r, axis: (r * ranks).mean(axis=axis),
        vectorized=True, permutation_type="pairings", rng=np.random.default_rng(0),
    ).pvalue  # fmt: skip


def correlations(x: np.ndarray, y: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Pearson's (with Fisher's interval) and Spearman's correlation of observations ``[n]``."""
    described = {k: v for k, v in describe(x, y).items() if k not in NOT_OF_PAIRS}
    why = ""
    if len(x) < 3:
        why = f"a correlation takes three or more observations, not {len(x)}"
    elif is_constant(x) or is_constant(y):
        why = "one side does not vary"
    tests = (("Pearson r", "r", stats.pearsonr), ("Spearman rho", "rho", stats.spearmanr))
    for test, statistic, function in tests:
        found, how = {}, ""
        if not why:
            result = function(x, y)
            p = float(result.pvalue)
            # The t approximation gives p = 0 where few ranks agree completely.
            if function is stats.spearmanr and len(x) < SMALL_SAMPLE:
                p, how = float(_rank_permutation_p(x, y)), "p: permutation of ranks"
            found = {"value": float(result.statistic), "p_value": p, "dof": len(x) - 2}
            if function is stats.pearsonr and len(x) > 3:
                low, high = result.confidence_interval(CONFIDENCE)
                found |= {"interval_low": float(low), "interval_high": float(high)}
        yield Row(
            test,
            **where,
            statistic=statistic,
            **found,
            **described,
            note=join_notes(note, how, why),
        )


def in_family(rows: Iterable[Row], subject: str) -> Iterator[Row]:
    """Name the family of every row that has a p."""
    for row in rows:
        name = f"{subject}: {row.test} of {row.measure} by {row.unit}"
        yield row if np.isnan(row.p_value) else replace(row, family=name)


def adjust(table: pd.DataFrame) -> pd.DataFrame:
    """Fill ``p_adjusted`` of ``statistics.csv`` from ``p_value`` and ``family``.

    Holm's step-down bounds the chance of one false finding in a family, whatever the
    dependence between its tests.
    """
    tested = table[table["family"] != ""]
    # multipletests collects garbage in every call, which takes a tenth of a second while
    # it looks at everything that is loaded.
    gc.freeze()
    try:
        adjusted = tested.groupby("family")["p_value"].transform(
            lambda p: multipletests(p.to_numpy(), method="holm")[1]
        )
    finally:
        gc.unfreeze()
    return table.assign(p_adjusted=adjusted.reindex(table.index))
