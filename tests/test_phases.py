"""The phase rule on series whose phases are known, and on the paper's own Table 1."""

import numpy as np
import pandas as pd
import pytest
import ruptures
from scipy.interpolate import make_lsq_spline

from flatminima.intervals import summarise
from flatminima.phases import (
    FALSE_ALARMS_PCT,
    RULE,
    describe_phases,
    find_onset,
    find_phases,
    fit_broken_line,
    smoothed,
)
from tests.statistics_helpers import ar1, sequence_scores
from tests.synthetic import PAPER_TABLE1

STEPS = np.arange(1, 144) * 1000


def broken(x, *corners):
    """Straight lines through ``(x, y)`` corners."""
    return np.interp(x, *np.array(corners, dtype=float).T)


NLL = broken(STEPS, (0, 6), (9_000, 3.7), (80_000, 3.5), (143_000, 3.6))
LOG_DELTA = broken(STEPS, (0, -3), (85_000, -2.6), (143_000, 0.5))


# The rule


def test_paper_table_1_on_the_grid():
    step, ppl, gap = PAPER_TABLE1[["step", "fp32_ppl", "int4_gap_pct"]].to_numpy(float).T
    nll = np.interp(np.log(STEPS), np.log(step), np.log(ppl))
    delta = np.exp(np.interp(STEPS, step, np.log(np.log1p(gap / 100))))
    phases = find_phases(STEPS, nll, delta)
    # The interpolated course has a kink there, which smoothing moves by less than half a window.
    assert abs(phases.convergence - 77_000) <= 3_000
    assert phases.rapid_learning_end == 7_000
    # Ten rows cannot place the onset better than between 70,000 and 83,000, the rows on
    # both sides of the paper's 77,000; 3,000 steps is the tolerance of its claims.
    assert abs(phases.onset.step - 77_000) <= 3_000
    assert phases.onset.slope_after_per_1000_steps > 3 * phases.onset.slope_before_per_1000_steps


def test_known_phases_without_noise_are_found_exactly():
    delta = np.exp(LOG_DELTA)
    phases = find_phases(STEPS, NLL, delta)
    assert abs(phases.convergence - 80_000) <= 1_000
    assert phases.rapid_learning_end == 9_000
    onset = phases.onset
    assert onset.step == onset.breaks[0] == 85_000
    slopes = onset.slope_before_per_1000_steps, onset.slope_after_per_1000_steps
    assert slopes == pytest.approx((0.4 / 85, 3.1 / 58), rel=1e-9)
    assert onset.reason == "" and onset.left_out == 0
    # Deltas that are not positive are left out and counted.
    delta[[20, 40, 100]] = [0.0, -1e-3, -1.0]
    onset = find_onset(STEPS, delta, 8_000)
    assert (onset.step, onset.left_out) == (85_000, 3)
    none = find_onset(STEPS, -delta, 1_000)
    assert none.step is None and none.left_out == 141 and "too few" in none.reason


@pytest.mark.parametrize("lag_one", [0.0, 0.5])
def test_a_noisy_onset_is_found_nearby(lag_one):
    errors = []
    for seed in range(30):
        noise = 0.05 * ar1(np.random.default_rng(seed), len(STEPS), lag_one)
        log_delta = broken(STEPS, (0, -3), (80_000, -2.6), (143_000, -0.2)) + noise
        errors.append(find_onset(STEPS, np.exp(log_delta), 8_000).step - 80_000)
    assert abs(np.mean(errors)) < 2_000 and np.max(np.abs(errors)) <= 12_000


def test_an_onset_is_where_growth_speeds_up_beside_other_breaks_and_nowhere_else():
    slowing = "no break of ln(delta NLL) has a steeper and positive slope"
    for log_delta, breaks, reason in (
        (
            broken(STEPS, (0, -3), (20_000, -2.4), (80_000, -2.2), (143_000, 0.5)),
            [20_000, 80_000],
            "",
        ),
        (
            broken(STEPS, (0, -3), (80_000, -2.4), (120_000, 0.0), (143_000, 0.3)),
            [80_000, 120_000],
            "",
        ),
        (-3 + 1e-5 * STEPS, None, "lowers BIC"),
        (np.full(len(STEPS), -2.0), None, "lowers BIC"),
        (np.log(STEPS + 20_000.0), None, slowing),
        # Falls fast, then slowly: steeper is not enough, the gap never grows.
        (broken(STEPS, (0, 0), (40_000, -2), (143_000, -2.5)), None, slowing),
    ):
        onset = find_onset(STEPS, np.exp(log_delta), 1_000)
        assert onset.step == (80_000 if breaks else None) and reason in onset.reason
        assert breaks in (None, onset.breaks)
        assert (onset.slope_after_per_1000_steps is None) == (breaks is None)
    for lag_one, low, high in ((0.0, 0.7, 1.0), (0.8, 0.02, 0.4)):
        noise = 0.05 * ar1(np.random.default_rng(0), len(STEPS), lag_one)
        onset = find_onset(STEPS, np.exp(1e-5 * STEPS + noise), 1_000)
        assert low <= onset.effective_checkpoints / len(STEPS) <= high


GROWTH = {
    "steady": lambda noise: np.exp(-4 + 2 * STEPS / 143_000 + 0.1 * noise),
    "linear": lambda noise: 0.002 + 0.08 * STEPS / 143_000 + 0.005 * noise,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("growth", "lag_one", "name"),
    list(
        zip(
            ["steady", "steady", "steady", "linear", "linear"],
            [0.5, 0.8, 0.9, 0.0, 0.8],
            FALSE_ALARMS_PCT,
            strict=True,
        )
    ),
)
def test_false_alarms_are_as_often_as_every_onset_says(growth, lag_one, name):
    rng = np.random.default_rng(8)
    runs = 400
    deltas = [GROWTH[growth](ar1(rng, len(STEPS), lag_one)) for _ in range(runs)]
    alarms = 100 * np.mean([find_onset(STEPS, d, 5_000).step is not None for d in deltas])
    error = np.sqrt(FALSE_ALARMS_PCT[name] * (100 - FALSE_ALARMS_PCT[name]) / runs)
    assert alarms == pytest.approx(FALSE_ALARMS_PCT[name], abs=3 * error)


def test_convergence_is_where_the_smooth_curve_is_lowest():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(30):
        nll = NLL + 0.01 * rng.normal(size=len(STEPS))
        smooth = find_phases(STEPS, nll, np.full(len(STEPS), 0.1)).convergence
        found.append((STEPS[np.argmin(nll)], smooth))
    lucky, smooth = np.sqrt(np.mean((np.array(found) - 80_000.0) ** 2, axis=0))
    assert smooth < 0.8 * lucky
    assert list(smoothed(STEPS[:10], np.arange(10.0))) == list(range(10))


def test_tiny_suites_and_curves_without_a_turn_get_phases_without_a_crash():
    nll = 3.0 + 3.0 * np.exp(-STEPS / 10_000) - 1e-6 * STEPS
    phases = find_phases(STEPS, nll, np.exp(-3 + 1e-5 * STEPS))
    assert phases.convergence == 143_000 and phases.onset.step is None
    assert 5_000 < phases.rapid_learning_end < 40_000
    bent = find_phases(STEPS, 5.0 - (STEPS / 143_000) ** 2, np.ones(len(STEPS)))
    assert bent.rapid_learning_end == 143_000
    for count in (1, 2, 5, 10):
        steps = STEPS[:count]
        nll = broken(steps, (1_000, 6), (3_000, 4), (8_000, 3.5), (10_000, 3.6))
        phases = find_phases(steps, nll, np.exp(broken(steps, (1_000, -3), (10_000, -2))))
        assert phases.convergence == min(8_000, count * 1_000)
        assert phases.rapid_learning_end == (3_000 if count == 10 else phases.convergence)
        assert phases.onset.step is None


# The fits


def test_fit_is_scipys_least_squares_spline_with_the_best_knot():
    rng = np.random.default_rng(4)
    x = np.sort(rng.choice(STEPS, 60, replace=False)).astype(float)
    y = broken(x, (0, 0), (70_000, 1), (143_000, 5)) + rng.normal(0, 0.3, len(x))

    def squares(*knots):
        ends = [x[0], x[0], *knots, x[-1], x[-1]]
        return float(np.sum((y - make_lsq_spline(x, y, ends, k=1)(x)) ** 2))

    one, two = (fit_broken_line(x, y, breaks, shortest=3) for breaks in (1, 2))
    singles = {(i,): squares(x[i]) for i in range(3, len(x) - 3)}
    pairs = {(i, j): squares(x[i], x[j]) for (i,) in singles for (j,) in singles if j >= i + 3}
    for fit, sums in ((one, singles), (two, pairs)):
        assert tuple(fit.breaks) == min(sums, key=sums.get)
        assert fit.residuals @ fit.residuals == pytest.approx(min(sums.values()), rel=1e-9)


def test_ruptures_finds_the_same_breaks():
    """Its lines need not meet (linear), which places a kink less surely."""
    rng = np.random.default_rng(5)
    y = LOG_DELTA + 0.1 * ar1(rng, len(STEPS), 0.3)
    signal = np.column_stack([y, STEPS / STEPS[-1], np.ones(len(STEPS))])
    theirs = ruptures.Dynp(model="linear", min_size=8, jump=1).fit(signal).predict(1)
    onset = find_onset(STEPS, np.exp(y), 1_000)
    assert len(onset.breaks) == 1 and abs(STEPS[theirs[0]] - onset.step) <= 8_000


# phases.json


def suite(onset=True):
    """Audit and scores of a small suite: convergence near 2,400 of 4,000, onset at 2,800."""
    rng = np.random.default_rng(0)
    difficulty = rng.normal(0, 0.4, 24)
    fragility = rng.gamma(8, 1 / 8, 24)
    tables = []
    last = -0.3 if onset else -2.4 + 1_200 * 0.6 / 2_800  # without: the same slope throughout
    for step in [0, 1, 2, 4, *range(100, 4_001, 100)]:
        nll = broken(step, (0, 6), (400, 3.6), (2_400, 3.2), (4_000, 3.4))
        delta = np.exp(broken(step, (0, -3), (2_800, -2.4), (4_000, last)))
        sequence_nll = nll + difficulty + rng.normal(0, 0.01, 24)
        for role, shift in (("fp32", 0.0), ("low_bit", delta)):
            tables.append(sequence_scores(step, role, (sequence_nll + shift * fragility) * 63))
    sequences = pd.concat(tables, ignore_index=True)
    audit = summarise(sequences, ["step"], resamples=20, seed=0)
    return audit.assign(suite="tiny"), sequences


def described(audit, sequences, spacing=100, resamples=20):
    return describe_phases(audit, sequences, spacing=spacing, resamples=resamples, seed=0)


def test_description_has_every_part_and_its_interval():
    audit, sequences = suite()
    description = described(audit, sequences, resamples=40)
    onset, convergence, early = (
        description[part] for part in ("onset", "convergence", "rapid_learning_end")
    )
    for part, step, tolerance in (
        (convergence, 2_400, 200),
        (early, 400, 100),
        (onset, 2_800, 100),
    ):
        assert part["step_low"] <= part["step"] <= part["step_high"]
        assert abs(part["step"] - step) <= tolerance
    assert onset["detected"] and onset["detected_share"] == 1.0
    assert onset["false_alarms_pct"] == FALSE_ALARMS_PCT and description["rule"] == RULE
    assert description["lag_steps"] == onset["step"] - convergence["step"]
    assert description["lag_low"] <= description["lag_steps"] <= description["lag_high"]
    segments = description["segments"]
    assert [s["name"] for s in segments] == ["rapid learning", "plateau", "divergence"]
    assert [s["last_step"] for s in segments[:2]] == [s["first_step"] for s in segments[1:]]
    assert (segments[0]["first_step"], segments[2]["last_step"]) == (100, 4_000)
    low_bit = audit[audit.role == "low_bit"].set_index("step").gap_pct
    inside = low_bit[low_bit.index >= onset["step"]]
    last = segments[2]
    assert (last["gap_min_pct"], last["gap_max_pct"]) == (inside.min(), inside.max())
    assert last["n"] == len(inside) and last["gap_last_pct"] == low_bit[4_000]
    # Powers of two do not count, and the same seed gives the same numbers.
    early = audit.step < 100
    spoiled = audit.assign(ppl=audit.ppl.mask(early, 1.0))
    spoiled["nll_nats_per_token"] = spoiled.nll_nats_per_token.mask(early, 0.0)
    assert described(spoiled, sequences, resamples=40) == description


def test_without_an_onset_there_are_two_segments_and_a_reason():
    found = described(*suite(onset=False))
    assert found["onset"]["step"] is found["lag_steps"] is found["lag_low"] is None
    assert not found["onset"]["detected"] and found["onset"]["reason"]
    assert [(s["phase"], s["name"]) for s in found["segments"]] == [
        (1, "rapid learning"),
        (2, "after rapid learning"),
    ]


def test_an_audit_that_cannot_be_read_is_refused():
    audit, sequences = suite()
    with pytest.raises(ValueError, match="spacing 7000: the audit has no step"):
        described(audit, sequences, spacing=7_000)
    with pytest.raises(ValueError, match="one row of fp32 and of low_bit"):
        described(audit.query("role != 'low_bit' or step != 300"), sequences, resamples=2)
