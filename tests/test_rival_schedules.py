"""Rates of the conditions that the paper does not have, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.forks.rival_schedules import (
    RIVAL_SCHEDULES,
    Rewarmed,
    condition_schedule,
    settled_offsets,
    update_phase,
)
from flatminima.schedules import Cosine, OscillatoryLockIn, Sgdr, fork_schedule

BASE = Cosine(1e-2, 1e-3, warmup_steps=10, total_steps=1000)
START, STOP = 400, 700


def schedule(definition, **more):
    return condition_schedule(definition, baseline=BASE, start=START, stop=STOP, **more)


def test_a_constant_rate_is_that_of_the_fork_point():
    rate = schedule({"kind": "constant"})
    assert {rate(step) for step in range(START, STOP + 5)} == {BASE(START)}


def test_a_linear_decay_reaches_zero_with_the_fork():
    rate = schedule({"kind": "linear"})
    assert rate(START) == BASE(START)
    assert rate((START + STOP) // 2) == pytest.approx(BASE(START) / 2)
    assert rate(STOP - 1) == pytest.approx(BASE(START) / 300)
    assert rate(STOP) == rate(STOP + 9) == 0.0, "never below zero"


def test_stable_then_decay():
    rate = schedule({"kind": "wsd", "decay_steps": 100})
    assert {rate(step) for step in range(START, STOP - 99)} == {BASE(START)}
    assert rate(STOP - 50) == pytest.approx(BASE(START) / 2)
    assert rate(STOP) == 0.0


def test_a_decay_over_the_whole_fork_is_the_linear_one():
    whole, linear = schedule({"kind": "wsd", "decay_steps": 300}), schedule({"kind": "linear"})
    assert [whole(s) for s in range(START, STOP)] == [linear(s) for s in range(START, STOP)]


def test_restarts_are_multiples_of_the_baseline_at_the_restart():
    rate = schedule({"kind": "restarts", "period": 100, "amplitude": 5.0})
    for restart in (400, 500, 600):
        assert rate(restart) == pytest.approx(5.0 * BASE(restart))
        cycle = [rate(step) for step in range(restart, restart + 100)]
        assert cycle == sorted(cycle, reverse=True)
        assert cycle[50] == pytest.approx((5.0 * BASE(restart) + BASE.lr_min) / 2)
    with pytest.raises(ValueError, match="starts at 400"):
        rate(399)


def test_restarts_to_the_maximum_are_sgdr():
    amplitude = BASE.lr_max / BASE(START)
    rate = schedule({"kind": "restarts", "period": 300, "amplitude": amplitude})
    sgdr = Sgdr(BASE.lr_max, BASE.lr_min, START, 300)
    assert [rate(s) for s in range(START, STOP)] == pytest.approx(
        [sgdr(s) for s in range(START, STOP)], rel=1e-12
    )


@pytest.mark.parametrize("kind", ["cosine", "sgdr", "oli"])
def test_the_papers_schedules_are_what_they_were(kind):
    more = {"period": 100} if kind == "sgdr" else {}
    if kind == "oli":
        more = {"bump_steps": 3, "cool_steps": 12, "amplitude": 5.0, "first": "cool"}
    definition = {"kind": kind, **more}
    theirs = fork_schedule(definition, baseline=BASE, start=START)
    assert schedule(definition) == theirs


def test_a_warm_up_begins_at_zero_and_ends_on_the_schedule():
    plain, warmed = schedule({"kind": "cosine"}), schedule({"kind": "cosine"}, rewarm_steps=20)
    assert warmed(START) == 0.0
    assert warmed(START + 5) == pytest.approx(plain(START + 5) / 4)
    assert [warmed(s) for s in range(START + 20, STOP)] == [
        plain(s) for s in range(START + 20, STOP)
    ]


def test_a_warm_up_does_not_hide_the_phases():
    oli = OscillatoryLockIn(BASE, START, 3, 12, 5.0)
    for step in range(START + 1, START + 40):
        assert update_phase(Rewarmed(oli, START, 20), step) == update_phase(oli, step)
    assert update_phase(Rewarmed(BASE, START, 20), START + 1) is None


def test_another_kind_is_named():
    with pytest.raises(ValueError, match="'wds': known are cosine, sgdr, oli, constant, wsd"):
        schedule({"kind": "wds"})
    assert len(RIVAL_SCHEDULES) == 4


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["bump", "cool"]))
def test_the_last_end_of_each_phase_is_probed(steps, bump, cool, first):
    definition = {"kind": "oli", "bump_steps": bump, "cool_steps": cool, "amplitude": 2.0,
                  "first": first}  # fmt: skip
    oli = OscillatoryLockIn(lambda step: 1.0, 0, bump, cool, 2.0, first)
    ends = {
        phase: [s for s in range(1, steps + 1) if oli.phase(s - 1) == phase]
        for phase in ("bump", "cool")
    }
    assert settled_offsets(definition, steps) == sorted({e[-1] for e in ends.values() if e})


def test_other_conditions_are_probed_at_the_end():
    assert settled_offsets({"kind": "wsd", "decay_steps": 3}, 30) == [30]
