"""Learning rates at every boundary, and the paper's learning-rate column under both formulas."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flatminima.schedules import (
    Average,
    Ema,
    OscillatoryLockIn,
    ScheduleKind,
    read_kind,
    read_schedule,
)
from tests.synthetic import fork_schedule

MAX = 6e-4
MIN = 6e-5
WARMUP = 1_430
TOTAL = 143_000


def whole_run(schedule, lr_max, lr_min, warmup, total):
    section = {"lr_max": lr_max, "lr_min": lr_min, "warmup_steps": warmup}
    return read_schedule({**section, "schedule": schedule}, total)


FIXED = whole_run("cosine", MAX, MIN, WARMUP, TOTAL)
PYTHIA = whole_run("cosine_neox_v1", MAX, MIN, WARMUP, TOTAL)
MINI = whole_run("cosine_neox_v1", 3e-3, 3e-4, 57, 5_720)
BASE = whole_run("cosine", 1e-2, 1e-3, 10, 1_000)
START = 400
STOP = 700

# Step and learning rate in percent of the maximum, as printed in the paper's Table 1.
TABLE_1 = {
    1_000: 69.9, 7_000: 99.9, 10_000: 99.2, 30_000: 91.3, 70_000: 57.2,
    77_000: 50.2, 83_000: 44.3, 100_000: 29.0, 120_000: 15.7, 143_000: 10.0,
}  # fmt: skip
RAN = {30_000: 90.5, 70_000: 53.2, 77_000: 45.5, 82_000: 40.1, 83_000: 39.0, 100_000: 22.0,
       120_000: 10.0, 143_000: 10.0}  # fmt: skip


def percent(schedule, step):
    return 100 * schedule(step) / schedule.lr_max


def oli_kind(bump=75, cool=300, first="cool", amplitude=3.0):
    return OscillatoryLockIn(bump_steps=bump, cool_steps=cool, amplitude=amplitude, first=first)


def paper_fork(kind, **keys):
    """A fork of the paper's: Pythia's run from step 70,000 to 100,000."""
    return fork_schedule({"kind": kind, **keys}, baseline=FIXED, start=70_000, stop=100_000)


def fork(kind, rewarm_steps=0, **keys):
    return fork_schedule(
        {"kind": kind, **keys}, baseline=BASE, start=START, stop=STOP, rewarm_steps=rewarm_steps
    )


def rates(schedule):
    return [schedule(step) for step in range(START, STOP)]


# Whole runs


def test_the_fixed_formula_is_the_papers_column_but_for_one_row_and_not_what_pythia_ran():
    for step, printed in TABLE_1.items():
        expected, tolerance = (99.66, 0.005) if step == 7_000 else (printed, 0.05)
        assert percent(FIXED, step) == pytest.approx(expected, abs=tolerance)
    for step, ran in RAN.items():
        assert percent(PYTHIA, step) == pytest.approx(ran, abs=0.05)
    assert PYTHIA.floor_step == 115_139 and FIXED.floor_step == TOTAL
    assert PYTHIA(115_138) > MIN
    assert {PYTHIA(step) for step in range(115_139, TOTAL)} == {MIN}


def test_boundaries_and_the_middle_of_a_training_run():
    for schedule in (FIXED, PYTHIA, MINI):
        warmup = schedule.warmup_steps
        total = schedule.total_steps
        assert schedule(0) == 0.0
        assert schedule(1) == schedule.lr_max / warmup
        assert 0 < schedule(warmup - 1) < schedule(warmup) == schedule.lr_max
        for step in (total, total + 1, 2 * total):
            assert schedule(step) == pytest.approx(schedule.lr_min, rel=1e-12)
        falling = [schedule(step) for step in range(warmup, total + 2)]
        assert falling == sorted(falling, reverse=True)
        with pytest.raises(ValueError, match="step -1"):
            schedule(-1)
        unwarmed = schedule.model_copy(update={"warmup_steps": 0})
        assert unwarmed(0) == schedule.lr_max > unwarmed(1)
    fixed = whole_run("cosine", 1.0, 0.2, 100, 300)
    assert fixed(150) == pytest.approx(0.6 + 0.4 * math.cos(math.pi / 4))
    # The floored one stops moving a warm-up before the end.
    floored = whole_run("cosine_neox_v1", 1.0, 0.0, 100, 1_000)
    assert floored(899) > floored(900) == floored(901) == floored(1_000)
    assert floored(900) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.8)))


@given(st.floats(0.05, 0.99), st.integers(0, 50), st.integers(100, 5_000))
def test_the_floor_step_is_the_first_at_the_floor(fraction, warmup, total):
    schedule = whole_run("cosine_neox_v1", 1.0, fraction, warmup, total)
    # Solved for the step, which may lie within a rounding of a whole one.
    exact = warmup + total * math.acos(2.0 * fraction - 1.0) / math.pi
    if exact > total - warmup + 1e-6:
        with pytest.raises(ValueError, match="never reached"):
            _ = schedule.floor_step
    elif exact < total - warmup - 1e-6:
        assert math.ceil(exact - 1e-6) <= schedule.floor_step <= math.ceil(exact + 1e-6)
        assert schedule(schedule.floor_step) == fraction


# Forks


def test_the_control_goes_on_with_the_runs_own_schedule_once_it_is_warm():
    assert rates(fork("cosine")) == [BASE(s) for s in range(START, STOP)]
    warmed = rates(fork("cosine", rewarm_steps=20))
    assert warmed[0] == 0.0 and warmed[5] == pytest.approx(BASE(START + 5) / 4)
    assert warmed[20:] == rates(fork("cosine"))[20:]


def test_sgdr_restarts_three_times_in_30_000_steps():
    schedule = paper_fork("sgdr", period=10_000)
    found = {step: schedule(step) for step in range(70_000, 100_000)}
    assert [step for step, lr in found.items() if lr == MAX] == [70_000, 80_000, 90_000]
    for restart in (80_000, 90_000):
        assert MIN < schedule(restart - 1) < MIN * 1.001
    assert schedule(75_000) == pytest.approx((MAX + MIN) / 2)
    falling = [found[step] for step in range(70_000, 80_000)]
    assert all(a > b for a, b in pairwise(falling))
    assert [found[step + 10_000] for step in range(70_000, 80_000)] == falling


@pytest.mark.parametrize("first", ["bump", "cool"])
def test_oli_bumps_80_times_and_a_third_of_the_probes_end_a_bump_if_cool_comes_first(first):
    for bump, cool, steps, cadence in ((75, 300, 30_000, 1_000), (3, 12, 1_200, 40)):
        kind = oli_kind(bump, cool, first)
        phases = [kind.phase(n) for n in range(steps)]
        other = {"bump": "cool", "cool": "bump"}[first]
        lengths = {"bump": bump, "cool": cool}
        assert phases == ([first] * lengths[first] + [other] * lengths[other]) * 80
        assert phases[cadence - 1 :: cadence].count("bump") == (10 if first == "cool" else 0)
    # The baseline is multiplied in bumps only.
    schedule = paper_fork("oli", bump_steps=75, cool_steps=300, amplitude=2.5, first=first)
    edge = 75 if first == "bump" else 300
    for offset, phase in [(0, first), (edge - 1, first), (edge, other), (374, other), (375, first)]:
        step = 70_000 + offset
        assert schedule.last_update_phase(step + 1) == phase
        assert schedule(step) == (2.5 if phase == "bump" else 1.0) * FIXED(step)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 200))
def test_visible_positions_are_those_at_which_probes_land(bump, cool, cadence):
    """The paper's probes see three."""
    period = bump + cool
    landed = {(cadence * k) % period or period for k in range(1, period + 1)}
    assert oli_kind(bump, cool).visible_phases(cadence) == sorted(landed)
    assert oli_kind().visible_phases(1_000) == [125, 250, 375]


def test_rates_that_start_from_that_of_the_fork_point():
    assert set(rates(fork("constant"))) == {BASE(START)}
    linear = fork("linear")
    assert linear(START) == BASE(START)
    assert linear((START + STOP) // 2) == pytest.approx(BASE(START) / 2)
    assert linear(STOP - 1) == pytest.approx(BASE(START) / 300)
    assert linear(STOP) == linear(STOP + 9) == 0.0
    stable = fork("wsd", decay_steps=100)
    assert {stable(step) for step in range(START, STOP - 99)} == {BASE(START)}
    assert stable(STOP - 50) == pytest.approx(BASE(START) / 2)
    assert rates(fork("wsd", decay_steps=300)) == rates(linear)
    cooled = fork("cooldown")
    assert cooled(START) == BASE(START) and cooled(STOP) == BASE.lr_min
    assert cooled((START + STOP) // 2) == pytest.approx((BASE(START) + BASE.lr_min) / 2)


def test_restarts_are_multiples_of_the_baseline_at_the_restart():
    rate = fork("restarts", period=100, amplitude=5.0)
    for restart in (400, 500, 600):
        assert rate(restart) == pytest.approx(5.0 * BASE(restart))
        cycle = [rate(step) for step in range(restart, restart + 100)]
        assert cycle == sorted(cycle, reverse=True)
        assert cycle[50] == pytest.approx((5.0 * BASE(restart) + BASE.lr_min) / 2)
    # To the maximum they are SGDR.
    rate = fork("restarts", period=300, amplitude=BASE.lr_max / BASE(START))
    assert rates(rate) == pytest.approx(rates(fork("sgdr", period=300)), rel=1e-12)


KEYS = {
    "period": 100,
    "amplitude": 5.0,
    "bump_steps": 3,
    "cool_steps": 12,
    "first": "cool",
    "decay_steps": 7,
}


@pytest.mark.parametrize("cls", ScheduleKind.__subclasses__())
def test_every_kind_has_a_rate_from_its_start_on(cls):
    needed = {name: KEYS[name] for name, f in cls.model_fields.items() if f.is_required()}
    kind = cls.model_fields["kind"].default
    schedule = fork(kind, **needed)
    assert schedule.kind == read_kind({"kind": kind, **needed}) and type(schedule.kind) is cls
    assert all(rate >= 0.0 for rate in rates(schedule))
    assert (schedule.last_update_phase(START + 1) is None) == (kind != "oli")
    for call in (schedule, schedule.last_update_phase):
        with pytest.raises(ValueError, match="starts at 400"):
            call(START - 1)


# Entries of the configuration


def test_what_is_no_entry_is_refused():
    for wrong in (
        {"kind": "wds"},
        {"kind": "sgdr"},
        {"kind": "sgdr", "period": "400"},
        {"kind": "cosine", "period": 400},
        {"kind": "oli", "bump_steps": 3, "cool_steps": 12, "amplitude": 5.0, "first": "hot"},
        {"kind": "restarts", "period": 4, "amplitude": math.inf},
    ):
        with pytest.raises(ValidationError):
            read_kind(wrong)
    with pytest.raises(ValueError, match="'linear'.*cosine"):
        whole_run("linear", MAX, MIN, WARMUP, TOTAL)
    kind = read_kind({"kind": "wsd", "decay_steps": 11})
    assert [key for key, _ in kind.mistakes(10)] == ["decay_steps"]
    assert not list(kind.mistakes(11))


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["bump", "cool"]))
def test_the_last_end_of_each_phase_is_probed(steps, bump, cool, first):
    kind = oli_kind(bump, cool, first)
    ends = {kind.phase(n - 1): n for n in range(1, steps + 1)}
    assert kind.settled(steps) == sorted(set(ends.values()))
    assert read_kind({"kind": "constant"}).settled(steps) == [steps]


# Averages


def test_which_checkpoints_are_averaged_and_which_are_lacking():
    grid = [0, 10, 20, 30, 40, 50]
    early = read_kind({"kind": "early_stop"})
    assert early.steps(grid, 20, 40) == [20]
    assert Average(window=2).steps(grid, 20, 40) == [30, 40]
    assert Ema(decay=0.5).steps(grid, 20, 40) == [20, 30, 40]
    assert [key for key, _ in Average(window=4).mistakes([0, 10, 20], 0, 20)] == ["window"]
    assert [key for key, _ in Ema(decay=0.5).mistakes([0, 10, 20], 0, 15)] == ["kind"]
    assert not list(early.mistakes([0, 10], 0, 15))


@given(st.floats(0.01, 0.99), st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_weights_of_an_ema_are_its_recursion(decay, values):
    weights = Ema(decay=decay).weights(len(values))
    average = values[0]
    for value in values[1:]:
        average = decay * average + (1 - decay) * value
    found = sum(w * v for w, v in zip(weights, values, strict=True))
    assert found == pytest.approx(average, abs=1e-12)
    assert sum(weights) == pytest.approx(1.0)
    assert sum(Average(window=3).weights(3)) == pytest.approx(1.0)
