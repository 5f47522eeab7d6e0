"""Two groups of units compared: against scipy, statsmodels and the paper's printed numbers."""

from itertools import permutations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttest_ind

from flatminima.hypothesis_tests import exact_tests, smallest_p, t_tests
from tests.statistics_helpers import WHERE, close

pytestmark = pytest.mark.filterwarnings("error")


def sample(mean, sd, count):
    """``count`` values with exactly this mean and sample standard deviation."""
    values = np.linspace(-1, 1, count)
    return mean + sd * values / np.std(values, ddof=1)


def test_table_2_sgdr_against_cosine_is_not_significant_with_three_seeds():
    student, welch = t_tests(sample(16.7, 2.7, 3), sample(12.3, 0.8, 3), WHERE)
    assert welch.value == pytest.approx(2.71, abs=0.01)
    assert welch.p_value == pytest.approx(0.096, abs=0.001)
    assert student.dof == 4 and 2 < welch.dof < 3


def test_section_5_2_t_is_that_of_60_pooled_probes_on_each_side():
    student, _ = t_tests(sample(5.3, 2.2, 60), sample(7.7, 2.55, 60), WHERE)
    assert student.value == pytest.approx(-5.5, abs=0.06)
    assert student.p_value < 1e-4 and student.dof == 118
    _, welch = t_tests(sample(5.3, 2.2, 3), sample(7.7, 2.55, 3), WHERE)
    assert welch.p_value > 0.2


def test_no_wins_in_nine_pairs_cannot_be_below_a_tenth():
    wins = next(exact_tests(np.array([4.0, 5, 6]), np.array([1.0, 2, 3]), WHERE))
    assert (wins.value, wins.p_value) == (0, pytest.approx(0.1))
    assert "of 9 pairs" in wins.note and wins.note.endswith("3 v 3 units: 0.1")
    assert smallest_p(3, 3) == pytest.approx(0.1)
    six = next(exact_tests(np.array([1.0, 2, 9]), np.array([3.0, 4, 5]), WHERE))
    assert (six.value, six.p_value) == (6, pytest.approx(0.7))


def test_t_tests_agree_with_statsmodels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 7), rng.normal(0.5, 2, 11)
    for row, usevar in zip(t_tests(a, b, WHERE), ("pooled", "unequal"), strict=True):
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


def test_exact_tests_agree_with_all_regroupings():
    a, b = np.array([1.0, 2.5, 4.2, 0.3]), np.array([3.1, 5.0, 6.5])
    wins, permutation = exact_tests(a, b, WHERE)
    assert wins.value == sum(x < y for x in a for y in b) == 11
    pool = np.concatenate([a, b])
    differences = [
        np.mean(order[:4]) - np.mean(order[4:])
        for order in {(*sorted(p[:4]), *sorted(p[4:])) for p in permutations(pool)}
    ]
    assert len(differences) == 35
    low = np.mean(np.array(differences) <= a.mean() - b.mean() + 1e-12)
    high = np.mean(np.array(differences) >= a.mean() - b.mean() - 1e-12)
    assert close(permutation.p_value, min(1.0, 2 * min(low, high)))
    assert close(wins.p_value, stats.mannwhitneyu(a, b, method="exact").pvalue)
    assert smallest_p(4, 3) == pytest.approx(2 / 35)


@pytest.mark.parametrize("shift", [0.0, 0.7, 9.0])
def test_cliffs_delta_is_what_mann_and_whitney_count(shift):
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 5, 12) + shift, rng.integers(0, 5, 15).astype(float)
    row = next(t_tests(a, b, WHERE))
    u = stats.mannwhitneyu(a, b, method="asymptotic").statistic
    assert close(row.cliffs_delta, 2 * u / (12 * 15) - 1)
    assert (row.cliffs_delta == 1) == (shift == 9.0)


def test_many_units_have_a_smallest_p_too():
    assert smallest_p(900, 900) == 0.0  # 2 in more ways than a float can count
    assert smallest_p(1, 1) == smallest_p(1, 0) == 1.0
    rng = np.random.default_rng(0)
    _, permutation = exact_tests(rng.normal(0, 1, 40), rng.normal(3, 1, 40), WHERE)
    assert permutation.p_value == pytest.approx(2 / 10_000)
    assert permutation.note == "smallest p of 9,999 permutations: 0.0002"


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        ([1.0], [2.0, 3.0], "two or more units on each side, not 1 and 2"),
        ([], [2.0, 3.0], "two or more units on each side, not 0 and 2"),
        ([2.0, 2.0], [2.0, 2.0], "no variance on either side"),
        ([2.0, 2.0 + 4e-16], [3.0, 3.0], "no variance on either side"),
    ],
)
def test_t_tests_without_an_answer_say_why(a, b, note):
    for row in t_tests(np.array(a), np.array(b), WHERE):
        assert np.isnan(row.p_value) and np.isnan(row.value)
        assert note in row.note and (row.n_a, row.n_b) == (len(a), len(b))


def test_exact_tests_without_an_answer_say_why():
    wins, permutation = exact_tests(np.array([1.0]), np.array([2.0]), WHERE)
    assert (wins.value, wins.p_value) == (1, 1.0)
    assert np.isnan(permutation.p_value) and "two or more units" in permutation.note
    tied, _ = exact_tests(np.array([1.0, 2.0]), np.array([2.0, 3.0]), WHERE)
    assert tied.value == 3 and np.isnan(tied.p_value) and "ties" in tied.note
    none, _ = exact_tests(np.array([]), np.array([2.0]), WHERE)
    assert np.isnan(none.value) and "no pairs" in none.note
