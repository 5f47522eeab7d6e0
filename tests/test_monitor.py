"""The convergence monitor: its rule, what it refuses, and a resume that changes nothing."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flatminima.convergence_monitor import (
    ConvergenceMonitor,
    MonitorError,
    paired_standard_error,
    slope_of,
)
from flatminima.early_warning import slope_not_negative

LOSSES = st.lists(st.floats(0.5, 20.0), min_size=4, max_size=40)


def follow(monitor, losses, stderr=None, first=10):
    return [monitor.update(first + 10 * i, loss, stderr) for i, loss in enumerate(losses)]


@given(LOSSES, st.integers(3, 6))
def test_without_noise_and_patience_it_is_the_papers_rule(losses, window):
    monitor = ConvergenceMonitor(window=window, patience=1, noise=0.0)
    found = [state.converged for state in follow(monitor, losses)]
    curve = pd.Series(losses, index=10 * np.arange(1, len(losses) + 1))
    slopes = curve.rolling(window).apply(lambda part: stats.linregress(part.index, part).slope)
    clear = slopes.abs() > 1e-12  # where two ways to add up cannot disagree
    assert list(np.array(found)[clear]) == list(slope_not_negative(curve, window)[clear])


def test_a_fall_must_be_larger_than_the_noise():
    falling = 3.0 - 0.001 * np.arange(10)
    quiet, loud, unknown = (
        follow(ConvergenceMonitor(window=5, patience=1), falling, stderr=error)
        for error in (1e-6, 1.0, None)
    )
    assert not any(state.converged for state in quiet + unknown)
    assert [state.converged for state in loud] == [False] * 4 + [True] * 6
    # sigma / sqrt(sum of squares of the centred steps): 1 / sqrt(1000) for 0, 10, .., 40.
    assert loud[-1].slope_error == pytest.approx(1.0 / np.sqrt(1000.0), rel=1e-12)
    assert loud[-1].slope == pytest.approx(-1e-4, rel=1e-9)
    always = 2.0 + 5.0 / np.sqrt(np.arange(1, 400))
    assert not any(s.converged for s in follow(ConvergenceMonitor(), always, stderr=1e-7))


def test_the_error_of_a_slope_is_the_larger_of_scatter_and_standard_errors():
    rng = np.random.default_rng(0)
    steps = np.arange(12) * 7.0
    losses = rng.normal(2.0, 0.1, 12)
    line = stats.linregress(steps, losses)
    slope, scatter = slope_of(list(zip(steps, losses, [None] * 12, strict=True)))
    assert (slope, scatter) == pytest.approx((line.slope, line.stderr), rel=1e-12)
    own = np.linspace(0.1, 0.9, 12)
    draws = rng.normal(0.0, own, (20_000, 12))
    expected = np.polyfit(steps, draws.T, 1)[0].std()
    _, error = slope_of(list(zip(steps, losses, own, strict=True)))
    assert error == pytest.approx(expected, rel=0.02)
    assert slope_of(list(zip(steps, losses, [1e-9] * 12, strict=True)))[1] == scatter


def test_patience_begins_once_a_later_fall_takes_it_back_and_nothing_counts_before_the_start():
    losses = [5, 4, 3, 3, 3, 3, 3, 2, 1, 1, 1, 1, 1]
    states = follow(ConvergenceMonitor(window=3, patience=2, noise=0.0), losses)
    # Slopes at the third evaluation and later: -1, -.5, 0, 0, 0, -.5, -1, -.5, 0, 0, 0
    assert [s.without_fall for s in states] == [0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3]
    assert [s.step for s in states if s.began] == [60, 120]
    assert [s.step for s in states if s.converged] == [60, 70, 120, 130]
    assert [s.converged_step for s in states[5:8]] == [60, 60, None]
    assert (states[-1].best_loss, states[-1].best_step) == (1, 90)
    assert states[1].slope is None and states[2].slope == -0.1
    states = follow(ConvergenceMonitor(window=3, patience=1, start=50), [1.0] * 10)
    assert [s.step for s in states if s.converged] == [70, 80, 90, 100]


MISTAKES = (
    ((60, float("nan")), "the loss at step 60 is nan; left out"),
    ((60, float("-inf")), "the loss at step 60 is -inf; left out"),
    ((60, 2.0, float("nan")), "step 60 is 2.0 with standard error nan; left out"),
    ((60, 2.0, -1.0), "standard error -1.0; left out"),
    ((50, 2.0), "step 50 follows step 50, but steps must rise"),
)


def test_what_it_cannot_take_is_one_line_and_nothing_is_lost():
    monitor = ConvergenceMonitor(window=3, patience=2)
    last = follow(monitor, [5, 4, 3.5, 3.2, 3.0])[-1]
    before = monitor.state_dict()
    for given_, line in MISTAKES:
        with pytest.raises(MonitorError, match=re.escape(line)):
            monitor.update(*given_)
    assert monitor.update(50, 3.0) is last, "the same evaluation twice changes nothing"
    assert monitor.state_dict() == before
    for setting in ({"window": 2}, {"patience": 0}, {"noise": float("nan")}, {"start": -1}):
        with pytest.raises(MonitorError, match="{} {}".format(*next(iter(setting.items())))):
            ConvergenceMonitor(**setting)


@given(LOSSES, st.data())
def test_a_monitor_that_was_saved_goes_on_as_if_it_had_not_been(losses, data):
    cut = data.draw(st.integers(0, len(losses)))
    whole, first, second = (ConvergenceMonitor(window=np.int64(4), patience=2) for _ in range(3))
    expected = follow(whole, losses, stderr=0.1)
    follow(first, losses[:cut], stderr=0.1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state == first.state
    assert follow(second, losses[cut:], stderr=0.1, first=10 + 10 * cut) == expected[cut:]
    assert second.state_dict() == whole.state_dict()


def test_other_settings_than_the_saved_ones_are_one_line():
    saved = ConvergenceMonitor(window=5, patience=2)
    follow(saved, [3, 2, 1])
    broken = {"settings": {}, "state": {"step": 1}, "recent": []}
    for settings, state, line in (
        ({"window": 6}, saved.state_dict(), "window is 6, but was 5 .*; resume with window=5"),
        ({"noise": 2.0}, saved.state_dict(), "noise is 2.0, but was 1.0"),
        ({}, broken, "not the state of a monitor"),
    ):
        other = ConvergenceMonitor(**{"window": 5, "patience": 2, **settings})
        with pytest.raises(MonitorError, match=line):
            other.load_state_dict(state)
        assert other.state is None


def test_the_error_of_a_change_leaves_out_what_both_evaluations_share():
    rng = np.random.default_rng(2)
    scored = np.full(200, 63)
    hard = rng.normal(3.0, 0.5, 200)
    first, second = (63 * (hard + rng.normal(0.0, 0.01, 200)) for _ in range(2))
    difference = (second - first) / 63
    assert paired_standard_error(second, first, scored) == pytest.approx(
        stats.sem(difference), rel=1e-12
    )
    assert stats.sem(second / 63) > 20 * stats.sem(difference)
