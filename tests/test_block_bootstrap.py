"""Blocks of neighbouring probes: closed forms, and how often the intervals hold the truth."""

import numpy as np
import pytest
from arch.bootstrap import optimal_block_length
from scipy import stats

from flatminima.intervals import (
    percentile_interval,
    segment_t_test,
    stationary_bootstrap,
    two_sided_p,
)

pytestmark = pytest.mark.filterwarnings("error")


def series(rng, count, lag_one):
    """A stationary series with this lag-1 autocorrelation and variance 1."""
    noise = rng.normal(size=count)
    for i in range(1, count):
        noise[i] = lag_one * noise[i - 1] + np.sqrt(1 - lag_one**2) * noise[i]
    return noise


def test_independent_differences_have_the_interval_of_the_central_limit_theorem():
    differences = np.random.default_rng(0).normal(1.0, 2.0, (400, 1))
    found = stationary_bootstrap(differences)
    half = 1.96 * differences.std() / np.sqrt(400)
    assert found.length <= 3
    assert found.low == pytest.approx(differences.mean() - half, abs=0.15 * half)
    assert found.high == pytest.approx(differences.mean() + half, abs=0.15 * half)
    assert found.p_value == pytest.approx(2 / 5_000)


def test_dependent_differences_have_longer_blocks_and_wider_intervals():
    rng = np.random.default_rng(1)
    differences = series(rng, 400, 0.8)[:, None]
    found, shuffled = (
        stationary_bootstrap(rows) for rows in (differences, rng.permutation(differences))
    )
    assert found.length == np.ceil(optimal_block_length(differences)["stationary"].iloc[0])
    assert found.length > 3 * shuffled.length
    # The variance of the mean of such a series is (1 + 0.8) / (1 - 0.8) = 9 times larger.
    ratio = (found.high - found.low) / (shuffled.high - shuffled.low)
    assert 2.0 < ratio < 3.5


def test_what_seeds_share_at_a_step_stays_together():
    shared = series(np.random.default_rng(2), 60, 0.0)
    three = stationary_bootstrap(np.column_stack([shared, shared, shared]))
    one = stationary_bootstrap(shared[:, None])
    assert (three.low, three.high) == pytest.approx((one.low, one.high), rel=1e-12)
    own = np.random.default_rng(3).normal(size=(60, 3))
    narrower = stationary_bootstrap(own)
    assert narrower.high - narrower.low < 0.8 * (three.high - three.low)


def test_how_often_intervals_of_30_dependent_probes_hold_the_true_mean():
    held = dict.fromkeys(("bootstrap", "segments", "pooled"), 0)
    repeats = 150
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        three = np.column_stack([series(rng, 30, 0.5) for _ in range(3)])
        block, segments = stationary_bootstrap(three, resamples=499), segment_t_test(three)
        held["bootstrap"] += block.low <= 0 <= block.high
        held["segments"] += segments.low <= 0 <= segments.high
        held["pooled"] += stats.ttest_1samp(three.ravel(), 0).pvalue > 0.05
    shares = {name: count / repeats for name, count in held.items()}
    assert shares["bootstrap"] == pytest.approx(0.78, abs=0.08)
    assert shares["segments"] == pytest.approx(0.92, abs=0.05)
    assert shares["pooled"] == pytest.approx(0.72, abs=0.08)


def test_segment_t_is_a_t_test_of_five_means():
    differences = np.random.default_rng(4).normal(0.3, 1.0, (23, 3))
    mean = differences.mean(axis=1)
    parts = [mean[a:b].mean() for a, b in ((0, 5), (5, 10), (10, 15), (15, 19), (19, 23))]
    theirs = stats.ttest_1samp(parts, 0)
    found = segment_t_test(differences)
    assert (found.t, found.p_value, found.dof) == pytest.approx(
        (theirs.statistic, theirs.pvalue, 4), rel=1e-12
    )


def test_p_and_interval_of_draws_go_together():
    draws = np.arange(-49.0, 951.0)  # 50 of 1,000 at or below zero
    assert two_sided_p(draws) == pytest.approx(2 * 51 / 1_001)
    assert percentile_interval(draws) == pytest.approx((-24.025, 925.025))
    assert two_sided_p(-draws) == two_sided_p(draws)
    assert two_sided_p(np.zeros(9)) == 1.0
    assert two_sided_p(np.ones(999)) == pytest.approx(2 / 1_000)


def test_too_few_probes_are_refused():
    with pytest.raises(ValueError, match="11 probes: blocks need 12 or more"):
        stationary_bootstrap(np.zeros((11, 3)))
