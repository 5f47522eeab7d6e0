"""Pearson's and Spearman's correlation as rows of ``statistics.csv``; scipy does the arithmetic."""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from flatminima.statistics.intervals import CONFIDENCE
from flatminima.statistics.rows import Row, join_notes
from flatminima.statistics.two_sample_tests import describe, is_constant

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
