"""Standard tests as rows of ``statistics.csv``; scipy and statsmodels do the arithmetic.

What cannot be computed (one seed, no variance, no such probes) is a row with an empty
value and a note that says why. One test is named beforehand in the configuration and is
the ``primary`` family by itself; every other test with a p is ``exploratory``, and Holm's
correction is over all of them together.
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
_DEPEND = "not independent, so p is too small and the interval too narrow"
ONE_RUN = "unit: one run; its seed fixes the order of the data"
PROBES_DEPEND = f"unit: one probe; those of one run are {_DEPEND}"
_PERMUTATIONS = 9_999
FEWEST_PAIRS = 8


@dataclass(frozen=True)
class Row:
    """One row of ``statistics.csv``.

    ``unit`` is what counts as one observation; ``a`` and ``b`` are the two sides of
    ``comparison`` in its order ("a v b"). ``measure`` names the compared quantity with
    its unit. ``difference`` is mean a minus mean b; ``interval_low`` and
    ``interval_high`` are its 95 % interval or, where nothing is subtracted, that of
    ``value``. ``cohens_d`` is the difference in pooled standard deviations,
    ``cliffs_delta`` the share of pairs with the higher value in a minus the share with
    the lower one. ``p_adjusted`` is Holm's p within ``family`` (primary or exploratory).
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


def moments(sample: np.ndarray, side: str) -> dict:
    """Size, mean and standard deviation of one side; not a number where there are too few."""
    series = pd.Series(sample, dtype=float)
    return {f"n_{side}": len(series), f"mean_{side}": series.mean(), f"sd_{side}": series.std()}


def is_constant(sample: np.ndarray) -> bool:
    """No spread beyond rounding, where scipy would divide noise by noise."""
    return len(sample) < 2 or np.ptp(sample) <= 1e-12 * max(1e-300, np.abs(sample).max())


def describe(a: np.ndarray, b: np.ndarray) -> dict:
    """Moments, difference, Cohen's d and Cliff's delta of two samples."""
    found = moments(a, "a") | moments(b, "b")
    found["difference"] = found["mean_a"] - found["mean_b"]
    if len(a) and len(b):
        found["cliffs_delta"] = float(np.sign(a[:, None] - b).mean())
    if min(len(a), len(b)) > 1 and not (is_constant(a) and is_constant(b)):
        squares = (len(a) - 1) * np.var(a, ddof=1) + (len(b) - 1) * np.var(b, ddof=1)
        found["cohens_d"] = found["difference"] / np.sqrt(squares / (len(a) + len(b) - 2))
    return found


def smallest_p(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of an exact rank test of ``n_a`` and ``n_b`` units."""
    return min(1.0, 2 / comb(n_a + n_b, n_a))  # of integers: the number may exceed a float


def t_columns(result: object) -> dict[str, float]:
    """Columns of a row from a t-test of scipy."""
    low, high = result.confidence_interval(CONFIDENCE)
    return {"value": result.statistic, "dof": result.df, "p_value": result.pvalue,
            "interval_low": low, "interval_high": high}  # fmt: skip


def t_tests(a: np.ndarray, b: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Welch's two-sample t-test, and Student's where the paper may have taken it (probes).

    ``where`` holds comparison, unit and measure.
    """
    why = ""
    if min(len(a), len(b)) < 2:
        why = f"a t-test takes two or more units on each side, not {len(a)} and {len(b)}"
    elif is_constant(a) and is_constant(b):
        why = "no variance on either side"
    note, both = join_notes(note, why), where["unit"] == "probe"
    for test, equal in (("Welch t", False), ("Student t", True))[: 1 + both]:
        found = {} if why else t_columns(stats.ttest_ind(a, b, equal_var=equal))
        yield Row(test, **where, statistic="t", **found, **describe(a, b), note=note)


def paired_tests(differences: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Student's paired t and the exact sign-flip permutation of ``differences`` ``[pairs]``.

    Seeds are pairs: the same seed is the same start and the same order of the data.
    """
    pairs, why, found, p = len(differences), "", {}, NAN
    described = {"n_a": pairs, "n_b": pairs, "difference": pd.Series(differences).mean()}
    if pairs < 2:
        why = f"takes two or more pairs, not {pairs}"
    elif is_constant(differences):
        why = "the difference does not vary"
    else:
        found = t_columns(stats.ttest_1samp(differences, 0.0))
    note = join_notes(note, why)
    yield Row("paired t", **where, statistic="t", **found, **described, note=note)
    floor = f"smallest two-sided p of {pairs} pairs: {min(1.0, 2.0 ** (1 - pairs)):.3g}"
    if pairs > 1:
        p = stats.permutation_test(
            (differences,), np.mean, vectorized=True, permutation_type="samples",
            n_resamples=_PERMUTATIONS, rng=np.random.default_rng(0),
        ).pvalue  # fmt: skip
    lower = int((differences < 0).sum())
    yield Row("paired permutation", **where, statistic="pairs lower", value=lower, p_value=p,
              **described, note=join_notes(note, floor))  # fmt: skip


def exact_tests(a: np.ndarray, b: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Pairwise wins with the exact two-sided Mann-Whitney p.

    A win is a pair in which ``a`` is lower, as in the paper's Table 2.
    """
    pairs, wins, p, why = len(a) * len(b), NAN, NAN, "no pairs"
    if pairs:
        wins, why = int(np.less.outer(a, b).sum()), ""
        if len(np.unique([*a, *b])) == len(a) + len(b):
            p = stats.mannwhitneyu(a, b, method="exact").pvalue
        else:
            why = "ties, for which the exact distribution does not hold"
    floor = f"smallest two-sided p of {len(a)} v {len(b)} units: {smallest_p(len(a), len(b)):.3g}"
    note = join_notes(note, f"of {pairs} pairs; p: exact Mann-Whitney", why, floor)
    yield Row("pairwise wins", **where, statistic="wins", value=wins, p_value=p, **describe(a, b),
              note=note)  # fmt: skip


def lag_one(series: np.ndarray) -> float:
    """Lag-1 autocorrelation of ``[n]``, with Kendall's correction of its bias, below 1."""
    centred = series - series.mean()
    power = float(centred @ centred)
    if power <= 0.0 or len(series) < 6:
        return 0.0
    raw = float(centred[1:] @ centred[:-1]) / power
    return min((len(series) * raw + 1.0) / (len(series) - 4.0), 0.99)


def correlate(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Value, dof, p_value and Fisher's 95 % interval of r of two autocorrelated series ``[n]``.

    All count the independent pairs that the series are worth, by Bartlett's formula:
    n (1 - a) / (1 + a), with a the product of the lag-1 autocorrelations, not below zero.
    """
    product = max(lag_one(x) * lag_one(y), 0.0)
    pairs = max(len(x) * (1.0 - product) / (1.0 + product), 4.0)
    r, dof = float(np.corrcoef(x, y)[0, 1]), pairs - 2.0
    bounded = min(max(r, -1.0 + 1e-12), 1.0 - 1e-12)
    t = bounded * np.sqrt(dof / (1.0 - bounded**2))
    half = stats.t.ppf((1.0 + CONFIDENCE) / 2.0, dof) / np.sqrt(max(pairs - 3.0, 1.0))
    low, high = np.tanh(np.arctanh(bounded) + np.array([-half, half]))
    return {"value": r, "dof": dof, "p_value": float(2.0 * stats.t.sf(abs(t), dof)),
            "interval_low": float(low), "interval_high": float(high)}  # fmt: skip


def correlations(x: np.ndarray, y: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Pearson's r of two series along a run ``[n]``: levels, detrended and differences.

    Two series that both drift correlate whatever they have to do with each other, so the
    levels alone say nothing. A test holds the coverage of the intervals above 92 % for
    autocorrelations up to 0.9 at 16, 28 and 42 points.
    """
    turns = {
        "levels": (np.asarray, "two trends correlate by themselves"),
        "detrended": (signal.detrend, "each less its own straight line"),
        "differences": (np.diff, "changes between neighbours"),
    }
    why = ""
    if len(x) < FEWEST_PAIRS:
        why = f"a correlation along a run takes {FEWEST_PAIRS} or more checkpoints, not {len(x)}"
    elif is_constant(x) or is_constant(y):
        why = "one side does not vary"
    for name, (turn, meaning) in turns.items():
        found = {} if why else correlate(turn(x), turn(y))
        said = why or f"{found['dof'] + 2:.1f} effective pairs of {len(x)}"
        yield Row(f"Pearson r, {name}", **where, statistic="r", **found, **moments(x, "a"),
                  **moments(y, "b"), note=join_notes(meaning, said, note))  # fmt: skip


def in_families(rows: Iterable[Row], primary: Mapping[str, str] | None) -> pd.DataFrame:
    """Rows as ``statistics.csv`` has them, with the family of every p and Holm's p within it.

    ``primary`` holds the test, comparison, unit and measure of the one that was named
    beforehand; nothing is primary without it. Holm's step-down bounds the chance of one false
    finding in a family, whatever the dependence between its tests. Raises ``UserError`` where
    the test that was named is not among the rows.
    """
    table = pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).astype({"n_b": "Int64"})
    tested = table["p_value"].notna()
    table.loc[tested, "family"] = "exploratory"
    if primary:
        chosen = (table[list(primary)] == pd.Series(primary)).all(axis=1)
        if not chosen.any():
            named = ", ".join(f"{key} {name!r}" for key, name in primary.items())
            raise UserError(f"config key fork.primary: no test has {named}; see fork.schedules")
        table.loc[chosen, "family"] = "primary"  # even without a p, of which its note says why
    families = table[tested].groupby("family")["p_value"]
    table["p_adjusted"] = families.transform(lambda p: multipletests(p, method="holm")[1])
    return table
