"""Standard tests: against scipy, statsmodels, simulations and the paper's printed numbers."""

from itertools import product

import numpy as np
import pytest
from scipy import signal, stats
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from flatminima.hypothesis_tests import (
    correlations,
    exact_tests,
    paired_tests,
    smallest_p,
    t_tests,
)
from tests.statistics_helpers import WHERE, ar1, close

pytestmark = pytest.mark.filterwarnings("error")
PROBE = WHERE | {"unit": "probe"}


def sample(mean, sd, count):
    """``count`` values with exactly this mean and sample standard deviation."""
    values = np.linspace(-1, 1, count)
    return mean + sd * values / np.std(values, ddof=1)


def test_the_papers_printed_numbers():
    """Table 2: not significant with three seeds; section 5.2's t is that of 60 pooled probes."""
    (welch,) = t_tests(sample(16.7, 2.7, 3), sample(12.3, 0.8, 3), WHERE)
    assert welch.value == pytest.approx(2.71, abs=0.01) and 2 < welch.dof < 3
    assert welch.p_value == pytest.approx(0.096, abs=0.001)
    _, student = t_tests(sample(5.3, 2.2, 60), sample(7.7, 2.55, 60), PROBE)
    assert student.value == pytest.approx(-5.5, abs=0.06)
    assert student.p_value < 1e-4 and student.dof == 118
    (welch,) = t_tests(sample(5.3, 2.2, 3), sample(7.7, 2.55, 3), WHERE)
    assert welch.p_value > 0.2


def test_wins_are_counted_and_have_scipys_exact_p():
    for a, b, wins in (
        ([4.0, 5, 6], [1.0, 2, 3], 0),
        ([1.0, 2, 9], [3.0, 4, 5], 6),
        ([1.0, 2.5, 4.2, 0.3], [3.1, 5.0, 6.5], 11),
    ):
        (row,) = exact_tests(np.array(a), np.array(b), WHERE)
        assert row.value == wins and f"of {row.n_a * 3} pairs" in row.note
        assert row.note.endswith(f"{row.n_a} v 3 units: {smallest_p(row.n_a, 3):.3g}")
        assert close(row.p_value, stats.mannwhitneyu(a, b, method="exact").pvalue)
    for a, b, wins, note in (([1.0, 2], [2.0, 3], 3, "ties"), ([], [2.0], np.nan, "no pairs")):
        (row,) = exact_tests(np.array(a), np.array(b), WHERE)
        assert row.value == pytest.approx(wins, nan_ok=True) and np.isnan(row.p_value)
        assert note in row.note
    assert smallest_p(3, 3) == pytest.approx(0.1) and smallest_p(4, 3) == pytest.approx(2 / 35)
    assert smallest_p(900, 900) == 0.0  # 2 in more ways than a float can count
    assert smallest_p(1, 1) == smallest_p(1, 0) == 1.0


def test_t_tests_agree_with_statsmodels_and_cliffs_delta_with_mann_and_whitney():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 7), rng.normal(0.5, 2, 11)
    compared = CompareMeans(DescrStatsW(a), DescrStatsW(b))
    for row, usevar in zip(t_tests(a, b, PROBE), ("unequal", "pooled"), strict=True):
        theirs = (
            *compared.ttest_ind(usevar=usevar),
            *compared.tconfint_diff(alpha=0.05, usevar=usevar),
            a.mean(),
            b.std(ddof=1),
            a.mean() - b.mean(),
            7,
            11,
        )
        assert close(
            (
                row.value,
                row.p_value,
                row.dof,
                row.interval_low,
                row.interval_high,
                row.mean_a,
                row.sd_b,
                row.difference,
                row.n_a,
                row.n_b,
            ),
            theirs,
        )
    pooled = np.sqrt((6 * a.var(ddof=1) + 10 * b.var(ddof=1)) / 16)
    assert close(row.cohens_d, (a.mean() - b.mean()) / pooled)
    for shift in (0.0, 9.0):
        a, b = rng.integers(0, 5, 12) + shift, rng.integers(0, 5, 15).astype(float)
        u = stats.mannwhitneyu(a, b, method="asymptotic").statistic
        assert close(next(t_tests(a, b, WHERE)).cliffs_delta, 2 * u / (12 * 15) - 1)


def test_pairs_have_students_t_and_all_sign_flips():
    differences = np.array([-0.5, -1.2, 0.1, -0.9])
    t, flips = paired_tests(differences, WHERE)
    theirs = stats.ttest_1samp(differences, 0)
    assert close(t.value, theirs.statistic) and close(t.p_value, theirs.pvalue)
    assert close(t.interval_low, theirs.confidence_interval().low)
    means = [np.mean(differences * signs) for signs in product((-1, 1), repeat=4)]
    tail = np.mean(np.array(means) <= differences.mean() + 1e-12)
    assert flips.value == 3 and close(flips.p_value, 2 * tail)
    _, three = paired_tests(np.array([-1.0, -2.0, -3.0]), WHERE)
    assert three.p_value == 0.25 and "0.25" in three.note
    for row in paired_tests(np.array([1.0]), WHERE):
        assert np.isnan(row.p_value) and row.note


def test_t_tests_without_an_answer_say_why():
    for a, b, note in (
        ([1.0], [2.0, 3.0], "two or more units on each side, not 1 and 2"),
        ([2.0, 2.0 + 4e-16], [3.0, 3.0], "no variance on either side"),
    ):
        (row,) = t_tests(np.array(a), np.array(b), WHERE)
        assert np.isnan(row.p_value) and np.isnan(row.value)
        assert note in row.note and (row.n_a, row.n_b) == (len(a), len(b))


# Series along a run


@pytest.mark.parametrize("count", [16, 28, 42])
def test_intervals_of_correlations_hold_their_95_percent(count):
    for rho, true in product((0.0, 0.7, 0.9), (0.0, 0.6)):
        rng = np.random.default_rng(1)
        held = np.zeros(3)
        trials = 300
        for _ in range(trials):
            x = ar1(rng, count, rho)
            y = true * x + np.sqrt(1 - true**2) * ar1(rng, count, rho)
            rows = correlations(x, y, WHERE)
            held += [row.interval_low <= true <= row.interval_high for row in rows]
        assert (100 * held / trials > 92).all(), (rho, true)


def test_correlations_of_two_trends_of_noise_and_of_nothing():
    rng = np.random.default_rng(2)
    trend = np.linspace(0, 5, 42)
    levels, *others = correlations(*(trend + rng.normal(size=(2, 42))), WHERE)
    assert levels.value > 0.5 and "trends" in levels.note
    for row in others:
        assert row.interval_low < 0 < row.interval_high and row.p_value > 0.05
    assert levels.dof < others[0].dof <= 40
    x, y = rng.normal(size=(2, 400))
    levels, detrended, _ = correlations(x, y, WHERE)
    assert close(levels.value, stats.pearsonr(x, y).statistic)
    assert levels.dof > 390, "white noise has nearly as many pairs as points"
    assert close(detrended.value, stats.pearsonr(signal.detrend(x), signal.detrend(y)).statistic)
    for series, note in ((np.arange(4.0), "8 or more"), (np.ones(9), "does not vary")):
        for row in correlations(series, np.arange(float(len(series))), WHERE):
            assert np.isnan(row.value) and np.isnan(row.p_value) and note in row.note
