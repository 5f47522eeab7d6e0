"""Standard tests as rows of ``statistics.csv``; scipy and statsmodels do the arithmetic.

If a test cannot be computed (one seed, no variance, no such probes), its row has an empty
value and a note with the reason. One test is chosen in the configuration before anything is
measured. It is the ``primary`` family by itself. Every other test with a p is
``exploratory``, and Holm's correction covers all of these together.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import comb

import numpy as np
import pandas as pd
from scipy import signal, stats
from statsmodels.stats.multitest import multipletests

from flatminima.errors import UserError
from flatminima.intervals import CONFIDENCE

NAN = float("nan")
ONE_RUN = "unit: one run; its seed fixes the order of the data"
PROBES_DEPEND = (
    "unit: one probe; those of one run are "
    "not independent, so p is too small and the interval too narrow"
)
FEWEST_PAIRS = 8  # checkpoints, for a correlation along a run
# scipy enumerates all sign flips exactly if there are fewer than this, so up to 13 pairs.
_PERMUTATIONS = 9_999
_ROUNDING = 1e-12  # relative; a smaller spread is floating-point noise
# A trend's autocorrelation would otherwise reach 1, and leave no independent checkpoint.
_LARGEST_AUTOCORRELATION = 0.99


@dataclass(frozen=True)
class Row:
    """One row of ``statistics.csv``.

    ``unit`` is what counts as one observation. ``a`` and ``b`` are the two sides of
    ``comparison`` in its order ("a v b"). ``measure`` names the compared quantity with
    its unit. ``difference`` is mean a minus mean b. ``interval_low`` and ``interval_high``
    are its 95 % interval, or that of ``value`` if nothing is subtracted. ``cohens_d`` is the
    difference in pooled standard deviations. ``cliffs_delta`` is the share of pairs with
    the higher value in a, minus the share with the lower value in a. ``p_adjusted`` is Holm's
    p within ``family`` (primary or exploratory).
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


def join_notes(*notes: str) -> str:
    """Join the notes that are not empty."""
    return "; ".join(note for note in notes if note)


def moments(sample: np.ndarray, side: str) -> dict:
    """Size, mean and standard deviation of one side, as columns of a row.

    A mean of no values and a deviation of fewer than two are NaN.
    """
    series = pd.Series(sample, dtype=float)
    return {f"n_{side}": len(series), f"mean_{side}": series.mean(), f"sd_{side}": series.std()}


def is_constant(sample: np.ndarray) -> bool:
    """Whether the values differ by rounding only, so that scipy would divide noise by noise."""
    return len(sample) < 2 or np.ptp(sample) <= _ROUNDING * max(1e-300, np.abs(sample).max())


def describe(a: np.ndarray, b: np.ndarray) -> dict:
    """Moments, difference, Cohen's d and Cliff's delta of two samples, as columns of a row."""
    columns = moments(a, "a") | moments(b, "b")
    columns["difference"] = columns["mean_a"] - columns["mean_b"]
    if len(a) and len(b):
        columns["cliffs_delta"] = float(np.sign(a[:, None] - b).mean())
    if min(len(a), len(b)) > 1 and not (is_constant(a) and is_constant(b)):
        squares = (len(a) - 1) * np.var(a, ddof=1) + (len(b) - 1) * np.var(b, ddof=1)
        pooled_sd = np.sqrt(squares / (len(a) + len(b) - 2))
        columns["cohens_d"] = columns["difference"] / pooled_sd
    return columns


def smallest_p(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of an exact rank test of ``n_a`` and ``n_b`` units."""
    # The division is of integers: the number of orders may be too large for a float.
    return min(1.0, 2 / comb(n_a + n_b, n_a))


def t_columns(t_test: object) -> dict[str, float]:
    """Columns of a row from scipy's answer to a t-test."""
    low, high = t_test.confidence_interval(CONFIDENCE)
    return {
        "value": t_test.statistic,
        "dof": t_test.df,
        "p_value": t_test.pvalue,
        "interval_low": low,
        "interval_high": high,
    }


def t_tests(a: np.ndarray, b: np.ndarray, labels: dict, note: str = "") -> Iterator[Row]:
    """Welch's two-sample t-test, and Student's if the probe is the unit.

    The paper may have used Student's test for probes. ``labels`` contains comparison, unit and
    measure.
    """
    obstacle = ""
    if min(len(a), len(b)) < 2:
        obstacle = f"a t-test takes two or more units on each side, not {len(a)} and {len(b)}"
    elif is_constant(a) and is_constant(b):
        obstacle = "no variance on either side"

    tests = {"Welch t": False}
    if labels["unit"] == "probe":
        tests["Student t"] = True
    for test, equal_variances in tests.items():
        columns = {}
        if not obstacle:
            columns = t_columns(stats.ttest_ind(a, b, equal_var=equal_variances))
        yield Row(
            test,
            **labels,
            statistic="t",
            **columns,
            **describe(a, b),
            note=join_notes(note, obstacle),
        )


def paired_tests(differences: np.ndarray, labels: dict, note: str = "") -> Iterator[Row]:
    """Student's paired t and the exact sign-flip permutation of ``differences`` ``[pairs]``.

    Seeds are pairs: the same seed gives the same start and the same order of the data.
    """
    pairs = len(differences)
    moments_of_pairs = {
        "n_a": pairs,
        "n_b": pairs,
        "difference": pd.Series(differences).mean(),
    }

    obstacle = ""
    columns = {}
    if pairs < 2:
        obstacle = f"takes two or more pairs, not {pairs}"
    elif is_constant(differences):
        obstacle = "the difference does not vary"
    else:
        columns = t_columns(stats.ttest_1samp(differences, 0.0))
    note = join_notes(note, obstacle)
    yield Row("paired t", **labels, statistic="t", **columns, **moments_of_pairs, note=note)

    p_value = NAN
    if pairs > 1:
        # With "samples" scipy exchanges the two members of a pair, which flips a sign. Up to this
        # number of resamples it goes through all 2^n sign patterns, so the p is exact.
        permutations = stats.permutation_test(
            (differences,),
            np.mean,
            vectorized=True,
            permutation_type="samples",
            n_resamples=_PERMUTATIONS,
            rng=np.random.default_rng(0),
        )
        p_value = permutations.pvalue
    floor = f"smallest two-sided p of {pairs} pairs: {min(1.0, 2.0 ** (1 - pairs)):.3g}"
    yield Row(
        "paired permutation",
        **labels,
        statistic="pairs lower",
        value=int((differences < 0).sum()),
        p_value=p_value,
        **moments_of_pairs,
        note=join_notes(note, floor),
    )


def exact_tests(a: np.ndarray, b: np.ndarray, labels: dict, note: str = "") -> Iterator[Row]:
    """Pairwise wins with the exact two-sided Mann-Whitney p.

    A win is a pair in which ``a`` is lower, as in the paper's Table 2.
    """
    pairs = len(a) * len(b)
    wins = NAN
    p_value = NAN
    obstacle = ""
    if not pairs:
        obstacle = "no pairs"
    else:
        # Every unit of a against every unit of b.
        wins = int(np.less.outer(a, b).sum())
        # The exact distribution of Mann-Whitney assumes that no two values are equal.
        if len(np.unique([*a, *b])) == len(a) + len(b):
            p_value = stats.mannwhitneyu(a, b, method="exact").pvalue
        else:
            obstacle = "ties, for which the exact distribution does not hold"

    floor = f"smallest two-sided p of {len(a)} v {len(b)} units: {smallest_p(len(a), len(b)):.3g}"
    yield Row(
        "pairwise wins",
        **labels,
        statistic="wins",
        value=wins,
        p_value=p_value,
        **describe(a, b),
        note=join_notes(note, f"of {pairs} pairs; p: exact Mann-Whitney", obstacle, floor),
    )


def lag_one(series: np.ndarray) -> float:
    """Lag-1 autocorrelation of ``[n]``, with Kendall's correction of its bias, below 1."""
    centred = series - series.mean()
    power = float(centred @ centred)
    if power <= 0.0 or len(series) < 6:
        return 0.0
    uncorrected = float(centred[1:] @ centred[:-1]) / power
    # Kendall (1954): the estimate is too low by about (1 + 4 rho) / n.
    corrected = (len(series) * uncorrected + 1.0) / (len(series) - 4.0)
    return min(corrected, _LARGEST_AUTOCORRELATION)


def correlate(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Value, dof, p_value and Fisher's 95 % interval of r of two autocorrelated series ``[n]``.

    All of them use the number of independent pairs that the series are worth. Bartlett's
    formula gives n (1 - a) / (1 + a), with a the product of both lag-1 autocorrelations (not
    below zero).
    """
    product = max(lag_one(x) * lag_one(y), 0.0)
    effective_pairs = max(len(x) * (1.0 - product) / (1.0 + product), 4.0)
    dof = effective_pairs - 2.0

    r = float(np.corrcoef(x, y)[0, 1])
    # At r = 1 or -1 the transformations below are infinite.
    bounded = min(max(r, -1.0 + 1e-12), 1.0 - 1e-12)
    t = bounded * np.sqrt(dof / (1.0 - bounded**2))
    t_quantile = stats.t.ppf((1.0 + CONFIDENCE) / 2.0, dof)
    half_width = t_quantile / np.sqrt(max(effective_pairs - 3.0, 1.0))
    low, high = np.tanh(np.arctanh(bounded) + np.array([-half_width, half_width]))
    return {
        "value": r,
        "dof": dof,
        "p_value": float(2.0 * stats.t.sf(abs(t), dof)),
        "interval_low": float(low),
        "interval_high": float(high),
    }


def correlations(x: np.ndarray, y: np.ndarray, labels: dict, note: str = "") -> Iterator[Row]:
    """Pearson's r of two series along a run ``[n]``: levels, detrended and differences.

    Any two series with a trend correlate, so the levels alone show nothing. A test measures
    that the intervals cover the true value in more than 92 of 100 cases, for autocorrelations
    up to 0.9 at 16, 28 and 42 points.
    """
    transformations = {
        "levels": (np.asarray, "two trends correlate by themselves"),
        "detrended": (signal.detrend, "each less its own straight line"),
        "differences": (np.diff, "changes between neighbours"),
    }
    obstacle = ""
    if len(x) < FEWEST_PAIRS:
        obstacle = (
            f"a correlation along a run takes {FEWEST_PAIRS} or more checkpoints, not {len(x)}"
        )
    elif is_constant(x) or is_constant(y):
        obstacle = "one side does not vary"

    for name, (transform, meaning) in transformations.items():
        columns = {}
        remark = obstacle
        if not obstacle:
            # Autocorrelation makes neighbours repeat each other. Fewer effective pairs are left.
            columns = correlate(transform(x), transform(y))
            remark = f"{columns['dof'] + 2:.1f} effective pairs of {len(x)}"
        yield Row(
            f"Pearson r, {name}",
            **labels,
            statistic="r",
            **columns,
            **moments(x, "a"),
            **moments(y, "b"),
            note=join_notes(meaning, remark, note),
        )


def in_families(rows: Iterable[Row], primary: Mapping[str, str] | None) -> pd.DataFrame:
    """``rows`` as ``statistics.csv`` has them, with the family of every p and Holm's p.

    ``primary`` gives test, comparison, unit and measure of the test that was chosen before
    the measurement; without it no test is primary. Holm's step-down bounds the chance of one
    false finding in a family, whatever the dependence between its tests. Raises ``UserError``
    if no row is the chosen test.
    """
    table = pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).astype({"n_b": "Int64"})
    has_p = table["p_value"].notna()
    table.loc[has_p, "family"] = "exploratory"
    if primary:
        is_primary = (table[list(primary)] == pd.Series(primary)).all(axis=1)
        if not is_primary.any():
            wanted_keys = ", ".join(f"{key} {name!r}" for key, name in primary.items())
            raise UserError(
                f"config key fork.primary: no test has {wanted_keys}; see fork.schedules"
            )
        table.loc[is_primary, "family"] = "primary"  # also without a p; the note has the reason
    families = table[has_p].groupby("family")["p_value"]
    table["p_adjusted"] = families.transform(lambda p: multipletests(p, method="holm")[1])
    return table
