"""Learning rates at every boundary, and the paper's learning-rate column under both formulas."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.schedules import (
    Cosine,
    CosineNeoxV1,
    OscillatoryLockIn,
    Sgdr,
    fork_schedule,
    last_update_phase,
    pretraining_schedule,
    visible_phases,
)

MAX, MIN, WARMUP, TOTAL = 6e-4, 6e-5, 1_430, 143_000
FIXED = Cosine(MAX, MIN, WARMUP, TOTAL)
PYTHIA = CosineNeoxV1(MAX, MIN, WARMUP, TOTAL)
MINI = CosineNeoxV1(3e-3, 3e-4, 57, 5_720)

# Step and learning rate in percent of the maximum, as printed in the paper's Table 1.
TABLE_1 = {
    1_000: 69.9, 7_000: 99.9, 10_000: 99.2, 30_000: 91.3, 70_000: 57.2,
    77_000: 50.2, 83_000: 44.3, 100_000: 29.0, 120_000: 15.7, 143_000: 10.0,
}  # fmt: skip


def percent(schedule, step):
    return 100 * schedule(step) / schedule.lr_max


def oli(first="cool", amplitude=3.0):
    return OscillatoryLockIn(FIXED, 70_000, 75, 300, amplitude, first)


def mini_oli(first="cool"):
    return OscillatoryLockIn(MINI, 2_800, 3, 12, 3.0, first)


# The paper's column


@pytest.mark.parametrize(("step", "printed"), TABLE_1.items())
def test_the_fixed_formula_is_the_papers_column_but_for_one_row(step, printed):
    if step == 7_000:
        assert percent(FIXED, step) == pytest.approx(99.66, abs=0.005)
        assert abs(percent(FIXED, step) - printed) > 0.2
    else:
        assert percent(FIXED, step) == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(30_000, 90.5), (70_000, 53.2), (77_000, 45.5), (82_000, 40.1), (83_000, 39.0),
     (100_000, 22.0), (120_000, 10.0), (143_000, 10.0)],
)  # fmt: skip
def test_what_pythia_really_ran(step, expected):
    assert percent(PYTHIA, step) == pytest.approx(expected, abs=0.05)


def test_pythia_reaches_its_floor_at_115_139_and_stays_there():
    assert PYTHIA.floor_step == 115_139
    assert PYTHIA(115_138) > MIN
    tail = [PYTHIA(step) for step in range(115_139, TOTAL)]
    assert len(tail) == 27_861
    assert set(tail) == {MIN}


def test_both_formulas_share_the_warm_up():
    for step in (0, 1, 700, 1_429, 1_430):
        assert FIXED(step) == PYTHIA(step) == pytest.approx(MAX * step / WARMUP, rel=1e-12)


# Boundaries


@pytest.mark.parametrize("schedule", [FIXED, PYTHIA, MINI], ids=["fixed", "neox v1", "mini"])
def test_boundaries_of_a_training_run(schedule):
    warmup, total = schedule.warmup_steps, schedule.total_steps
    assert schedule(0) == 0.0
    assert schedule(1) == schedule.lr_max / warmup
    assert 0 < schedule(warmup - 1) < schedule(warmup) == schedule.lr_max
    assert schedule(warmup + 1) < schedule.lr_max
    for step in (total, total + 1, 2 * total):
        assert schedule(step) == pytest.approx(schedule.lr_min, rel=1e-12)
    rates = [schedule(step) for step in range(warmup, total + 2)]
    assert all(a >= b for a, b in pairwise(rates))
    assert min(rates) >= schedule.lr_min


@pytest.mark.parametrize("kind", ["cosine", "cosine_neox_v1"])
def test_without_warm_up_the_first_update_is_the_largest(kind):
    schedule = pretraining_schedule(kind, lr_max=1.0, lr_min=0.1, warmup_steps=0, total_steps=10)
    assert schedule(0) == 1.0
    assert schedule(1) < 1.0


def test_the_fixed_cosine_in_the_middle():
    assert Cosine(1.0, 0.2, 100, 300)(200) == pytest.approx(0.6)
    assert Cosine(1.0, 0.2, 100, 300)(150) == pytest.approx(0.6 + 0.4 * math.cos(math.pi / 4))


def test_the_floored_cosine_stops_moving_a_warm_up_before_the_end():
    schedule = CosineNeoxV1(1.0, 0.0, 100, 1_000)
    assert schedule(899) > schedule(900) == schedule(901) == schedule(1_000)
    assert schedule(900) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.8)))
    with pytest.raises(ValueError, match="lr_min 0.0 is never reached.*900"):
        _ = schedule.floor_step


@given(
    st.floats(0.05, 0.99),
    st.integers(0, 50),
    st.integers(100, 5_000),
)
def test_the_floor_step_is_the_first_at_the_floor(fraction, warmup, total):
    schedule = CosineNeoxV1(1.0, fraction, warmup, total)
    try:
        floor = schedule.floor_step
    except ValueError:
        assert schedule(total) > fraction
        return
    # The cosine may meet the floor within a rounding of a whole step.
    assert schedule(floor) == pytest.approx(fraction, rel=1e-12)
    if floor > warmup:
        assert schedule(floor - 1) > fraction


@pytest.mark.parametrize(
    "schedule",
    [FIXED, PYTHIA, Sgdr(MAX, MIN, 0, 10), OscillatoryLockIn(FIXED, 0, 1, 1, 2.0)],
)
def test_negative_steps_are_refused(schedule):
    with pytest.raises(ValueError, match="step -1: a training step is 0 or larger"):
        schedule(-1)


@pytest.mark.parametrize("schedule", [Sgdr(MAX, MIN, 70_000, 10_000), oli()])
def test_forks_have_no_rate_before_they_start(schedule):
    with pytest.raises(ValueError, match="step 69999: this schedule starts at 70000"):
        schedule(69_999)
    schedule(70_000)


# SGDR


def test_sgdr_restarts_three_times_in_30_000_steps():
    schedule = Sgdr(MAX, MIN, 70_000, 10_000)
    rates = {step: schedule(step) for step in range(70_000, 100_000)}
    assert [step for step, lr in rates.items() if lr == MAX] == [70_000, 80_000, 90_000]
    for restart in (80_000, 90_000):
        assert MIN < schedule(restart - 1) < MIN * 1.001
    assert schedule(75_000) == pytest.approx((MAX + MIN) / 2)
    falling = [rates[step] for step in range(70_000, 80_000)]
    assert all(a > b for a, b in pairwise(falling))
    assert [rates[step + 10_000] for step in range(70_000, 80_000)] == falling


def test_sgdr_at_the_scale_of_mini():
    schedule = Sgdr(3e-3, 3e-4, 2_800, 400)
    rates = [schedule(step) for step in range(2_800, 4_000)]
    assert [i for i, lr in enumerate(rates) if lr == 3e-3] == [0, 400, 800]


# Oscillatory Lock-In


@pytest.mark.parametrize("first", ["bump", "cool"])
@pytest.mark.parametrize(
    ("make", "steps", "period", "bump"), [(oli, 30_000, 375, 75), (mini_oli, 1_200, 15, 3)]
)
def test_oli_has_80_cycles(make, steps, period, bump, first):
    schedule = make(first)
    assert schedule.period == period
    phases = [schedule.phase(schedule.start + i) for i in range(steps)]
    assert phases.count("bump") == 80 * bump
    assert phases.count("cool") == 80 * (period - bump)
    changes = sum(a != b for a, b in pairwise(phases))
    assert changes == 2 * 80 - 1
    assert phases[0] == first
    assert phases[:period] * 80 == phases


@pytest.mark.parametrize("first", ["bump", "cool"])
def test_oli_multiplies_the_baseline_in_bumps_only(first):
    schedule = oli(first, amplitude=2.5)
    edge = 75 if first == "bump" else 300
    other = "cool" if first == "bump" else "bump"
    for offset, phase in [(0, first), (edge - 1, first), (edge, other), (374, other), (375, first)]:
        step = 70_000 + offset
        assert schedule.phase(step) == phase
        assert schedule(step) == (2.5 if phase == "bump" else 1.0) * FIXED(step)


def test_oli_refuses_another_order():
    with pytest.raises(ValueError, match="first 'hot': either 'bump' or 'cool'"):
        oli("hot")


@pytest.mark.parametrize(
    ("make", "cadence"), [(oli, 1_000), (mini_oli, 40)], ids=["pythia", "mini"]
)
def test_a_third_of_the_probes_end_a_bump_if_cool_comes_first(make, cadence):
    for first, bumps in (("cool", 10), ("bump", 0)):
        schedule = make(first)
        probes = [schedule.start + cadence * k for k in range(1, 31)]
        phases = [last_update_phase(schedule, step) for step in probes]
        assert phases.count("bump") == bumps
        assert phases.count("cool") == 30 - bumps
        for step, phase in zip(probes, phases, strict=True):
            lifted = schedule(step - 1) > schedule.baseline(step - 1)
            assert lifted == (phase == "bump")
    # With cool first it is every third probe, the last of the run among them.
    schedule = make("cool")
    ends = [last_update_phase(schedule, schedule.start + cadence * k) for k in (1, 2, 3, 30)]
    assert ends == ["cool", "cool", "bump", "bump"]


def test_schedules_without_phases_have_none():
    for schedule in (FIXED, PYTHIA, Sgdr(MAX, MIN, 70_000, 10_000)):
        assert last_update_phase(schedule, 71_000) is None


def test_probes_see_three_positions_of_the_cycle():
    assert visible_phases(oli(), 1_000) == [125, 250, 375]
    assert visible_phases(mini_oli(), 40) == [5, 10, 15]
    assert visible_phases(mini_oli(), 15) == [15]
    assert visible_phases(mini_oli(), 1) == list(range(1, 16))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 200))
def test_visible_positions_are_multiples_of_the_common_divisor(bump, cool, cadence):
    schedule = OscillatoryLockIn(FIXED, 0, bump, cool, 2.0)
    divisor = math.gcd(cadence, bump + cool)
    expected = list(range(divisor, bump + cool + 1, divisor))
    assert visible_phases(schedule, cadence) == expected


# By name


def test_fork_schedules_by_name():
    definitions = {
        "cosine": {"kind": "cosine"},
        "sgdr": {"kind": "sgdr", "period": 10_000},
        "oli": {
            "kind": "oli", "bump_steps": 75, "cool_steps": 300, "amplitude": 3.0, "first": "cool",
        },
    }  # fmt: skip
    made = {
        name: fork_schedule(definition, baseline=FIXED, start=70_000)
        for name, definition in definitions.items()
    }
    assert made == {"cosine": FIXED, "sgdr": Sgdr(MAX, MIN, 70_000, 10_000), "oli": oli()}


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'linear': known are cosine, sgdr, oli"):
        fork_schedule({"kind": "linear"}, baseline=FIXED, start=0)
    with pytest.raises(ValueError, match="'linear': known are cosine, cosine_neox_v1"):
        pretraining_schedule("linear", lr_max=1.0, lr_min=0.1, warmup_steps=1, total_steps=2)
