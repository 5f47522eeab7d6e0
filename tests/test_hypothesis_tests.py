"""Standard tests: against scipy, statsmodels, simulations and the paper's printed numbers."""

from itertools import product

import numpy as np
import pytest
from scipy import signal, stats
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttest_ind

from flatminima.hypothesis_tests import (
    Row,
    correlations,
    exact_tests,
    in_families,
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
    (wins,) = exact_tests(np.array([4.0, 5, 6]), np.array([1.0, 2, 3]), WHERE)
    assert (wins.value, wins.p_value) == (0, pytest.approx(0.1))
    assert "of 9 pairs" in wins.note and wins.note.endswith("3 v 3 units: 0.1")
    (six,) = exact_tests(np.array([1.0, 2, 9]), np.array([3.0, 4, 5]), WHERE)
    assert (six.value, six.p_value) == (6, pytest.approx(0.7))
    a, b = np.array([1.0, 2.5, 4.2, 0.3]), np.array([3.1, 5.0, 6.5])
    (wins,) = exact_tests(a, b, WHERE)
    assert wins.value == 11
    assert close(wins.p_value, stats.mannwhitneyu(a, b, method="exact").pvalue)
    assert smallest_p(3, 3) == pytest.approx(0.1) and smallest_p(4, 3) == pytest.approx(2 / 35)
    assert smallest_p(900, 900) == 0.0  # 2 in more ways than a float can count
    assert smallest_p(1, 1) == smallest_p(1, 0) == 1.0
    (tied,) = exact_tests(np.array([1.0, 2.0]), np.array([2.0, 3.0]), WHERE)
    assert tied.value == 3 and np.isnan(tied.p_value) and "ties" in tied.note
    (none,) = exact_tests(np.array([]), np.array([2.0]), WHERE)
    assert np.isnan(none.value) and "no pairs" in none.note


def test_t_tests_agree_with_statsmodels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 7), rng.normal(0.5, 2, 11)
    for row, usevar in zip(t_tests(a, b, PROBE), ("unequal", "pooled"), strict=True):
        t, p, dof = ttest_ind(a, b, usevar=usevar)
        assert close(row.value, t) and close(row.p_value, p) and close(row.dof, dof)
        assert close(row.mean_a, a.mean()) and close(row.sd_b, b.std(ddof=1))
        assert (row.n_a, row.n_b) == (7, 11)
        compared = CompareMeans(DescrStatsW(a), DescrStatsW(b))
        low, high = compared.tconfint_diff(alpha=0.05, usevar=usevar)
        assert close(row.interval_low, low) and close(row.interval_high, high)
    pooled = np.sqrt((6 * a.var(ddof=1) + 10 * b.var(ddof=1)) / 16)
    assert close(row.cohens_d, (a.mean() - b.mean()) / pooled)
    assert close(row.difference, a.mean() - b.mean())


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


def test_cliffs_delta_is_what_mann_and_whitney_count():
    rng = np.random.default_rng(6)
    for shift in (0.0, 9.0):
        a, b = rng.integers(0, 5, 12) + shift, rng.integers(0, 5, 15).astype(float)
        row = next(t_tests(a, b, WHERE))
        u = stats.mannwhitneyu(a, b, method="asymptotic").statistic
        assert close(row.cliffs_delta, 2 * u / (12 * 15) - 1)
        assert (row.cliffs_delta == 1) == (shift == 9.0)


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
        rng, held, trials = np.random.default_rng(1), np.zeros(3), 300
        for _ in range(trials):
            x = ar1(rng, count, rho)
            y = true * x + np.sqrt(1 - true**2) * ar1(rng, count, rho)
            rows = correlations(x, y, WHERE)
            held += [row.interval_low <= true <= row.interval_high for row in rows]
        assert (100 * held / trials > 92).all(), (rho, true)


def test_two_trends_that_have_nothing_to_do_with_each_other():
    rng = np.random.default_rng(2)
    trend = np.linspace(0, 5, 42)
    levels, detrended, differences = correlations(
        trend + rng.normal(size=42), trend + rng.normal(size=42), WHERE
    )
    assert levels.value > 0.5 and "trends" in levels.note
    for row in (detrended, differences):
        assert row.interval_low < 0 < row.interval_high and row.p_value > 0.05
    assert levels.dof < detrended.dof <= 40


def test_white_noise_has_nearly_as_many_pairs_as_points():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 400))
    levels, detrended, _ = correlations(x, y, WHERE)
    assert close(levels.value, stats.pearsonr(x, y).statistic) and levels.dof > 390
    assert close(detrended.value, stats.pearsonr(signal.detrend(x), signal.detrend(y)).statistic)
    for series, note in ((np.arange(4.0), "8 or more"), (np.ones(9), "does not vary")):
        for row in correlations(series, np.arange(float(len(series))), WHERE):
            assert np.isnan(row.value) and np.isnan(row.p_value) and note in row.note


# Families


def test_one_test_is_primary_and_all_others_are_one_family():
    chosen = {"test": "paired t", "comparison": "a v b", "unit": "seed", "measure": "gap_pct"}
    rows = [
        Row(test, "a v b", "seed", "gap_pct", "t", p_value=p)
        for test, p in (("paired t", 0.04), ("Welch t", 0.01), ("wins", 0.03), ("none", np.nan))
    ]
    table = in_families(rows, chosen)
    assert list(table.family) == ["primary", "exploratory", "exploratory", ""]
    # Holm's step-down by hand: 0.01 times 2, then 0.03 and never below the one before.
    assert list(table.p_adjusted[:3]) == pytest.approx([0.04, 0.02, 0.03])
    assert np.isnan(table.p_adjusted[3])
    none = in_families(rows[3:], chosen | {"test": "none"})
    assert list(none.family) == [""] and none.p_adjusted.isna().all()
