"""The PyTorch schedulers against the pure functions, step by step, and across a resume."""

import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatminima.schedules import read_schedule
from flatminima.tools.lr_schedulers import (
    get_cosine_neox_schedule,
    get_cosine_schedule,
    get_oli_schedule,
    get_sgdr_schedule,
)
from tests.synthetic import fork_schedule


def optimizer_of(*rates):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def rates_of(optimizer, scheduler, steps):
    """Learning rate of each group before every update, ``[steps][groups]``."""
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def pure_run(kind, lr_max, lr_min, warmup, total):
    numbers = {"lr_max": lr_max, "lr_min": lr_min, "warmup_steps": warmup}
    return read_schedule({"schedule": kind, **numbers}, total)


def same(optimizer, scheduler, expected):
    found = rates_of(optimizer, scheduler, len(expected))
    for step, ([a], b) in enumerate(zip(found, expected, strict=True)):
        assert abs(a - b) <= math.ulp(b), (step, a, b)


runs = st.tuples(
    st.floats(1e-6, 10.0), st.floats(0.0, 1.0), st.integers(0, 20), st.integers(1, 60)
).map(lambda drawn: (drawn[0], drawn[1] * drawn[0], drawn[2], drawn[2] + drawn[3]))


@given(
    runs,
    st.integers(1, 6),
    st.integers(1, 9),
    st.floats(0.1, 20.0),
    st.sampled_from(["bump", "cool"]),
    st.integers(0, 59),
    st.sampled_from(["cosine", "cosine_neox_v1"]),
)
def test_all_are_the_pure_functions(run, bump, cool, amplitude, first, later, baseline):
    lr_max, lr_min, warmup, total = run
    start = min(warmup + later, total - 1)
    base = pure_run(baseline, *run)
    make_scheduler = {"cosine": get_cosine_schedule, "cosine_neox_v1": get_cosine_neox_schedule}[
        baseline
    ]
    optimizer = optimizer_of(lr_max)
    scheduler = make_scheduler(optimizer, warmup, total, min_lr=lr_min)
    same(optimizer, scheduler, [base(step) for step in range(total + 5)])
    oli = {"bump_steps": bump, "cool_steps": cool, "amplitude": amplitude, "first": first}
    kinds = (("sgdr", get_sgdr_schedule, {"period": cool}), ("oli", get_oli_schedule, oli))
    for kind, factory, numbers in kinds:
        optimizer = optimizer_of(lr_max)
        scheduler = factory(
            optimizer, warmup, total, **numbers, start=start, baseline=baseline, min_lr=lr_min
        )
        pure = fork_schedule({"kind": kind, **numbers}, baseline=base, start=start, stop=total)
        same(optimizer, scheduler, [(base if s < start else pure)(s) for s in range(total)])


def test_the_papers_numbers_by_their_defaults():
    optimizer = optimizer_of(6e-4)
    optimizer.param_groups[0]["initial_lr"] = 6e-4
    scheduler = get_oli_schedule(optimizer, 1430, 143_000, start=70_000, last_epoch=69_999)
    base = pure_run("cosine_neox_v1", 6e-4, 6e-5, 1430, 143_000)
    oli = {"kind": "oli", "bump_steps": 75, "cool_steps": 300, "amplitude": 5.0, "first": "cool"}
    pure = fork_schedule(oli, baseline=base, start=70_000, stop=143_000)
    assert pure(70_300) > 4.9 * pure(70_299)
    same(optimizer, scheduler, [pure(step) for step in range(70_000, 70_800)])


FACTORIES = {
    "cosine": lambda o: get_cosine_schedule(o, 3, 40, min_lr_rate=0.2),
    "neox": lambda o: get_cosine_neox_schedule(o, 3, 40),
    "sgdr": lambda o: get_sgdr_schedule(o, 3, 40, 7, start=10),
    "oli": lambda o: get_oli_schedule(o, 3, 40, 2, 5, start=10),
}


@given(st.sampled_from(sorted(FACTORIES)), st.integers(1, 39))
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(name, stopped):
    def begun():
        optimizer = optimizer_of(0.3, 0.003)
        return optimizer, FACTORIES[name](optimizer)

    uninterrupted = rates_of(*begun(), 41)
    optimizer, scheduler = begun()
    first = rates_of(optimizer, scheduler, stopped)
    file = io.BytesIO()
    torch.save({"o": optimizer.state_dict(), "s": scheduler.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # as the Trainer reads scheduler.pt
    optimizer, scheduler = begun()
    optimizer.load_state_dict(saved["o"])
    scheduler.load_state_dict(saved["s"])
    assert first + rates_of(optimizer, scheduler, 41 - stopped) == uninterrupted
    # Each group has its own highest rate.
    assert all(b == pytest.approx(a / 100, rel=1e-14) for a, b in uninterrupted)
    if name in ("cosine", "neox"):
        lowest = {"cosine": 0.06, "neox": 0.03}[name]
        assert uninterrupted[-1][0] == pytest.approx(lowest, rel=1e-14)


def test_the_schedule_of_a_whole_run_takes_nothing_of_a_fork():
    """Its start and the run that it leaves were accepted and changed nothing, or the schedule."""
    for factory in (get_cosine_schedule, get_cosine_neox_schedule):
        for extra in ({"start": 4}, {"baseline": "cosine_neox_v1"}, {"min_lr_ratio": 0.1}):
            with pytest.raises(TypeError, match=next(iter(extra))):
                factory(optimizer_of(1.0), 1, 9, **extra)


MISTAKES = (
    (lambda o: get_cosine_schedule(o, 10, 10), "num_warmup_steps 10, start 10, num_training_ste"),
    (lambda o: get_cosine_schedule(o, 1, 9, min_lr=2.0), "lowest learning rate 2.0; valid: 0 to"),
    (lambda o: get_cosine_schedule(optimizer_of(0.0), 1, 9), "lr_max 0.0: "),
    (lambda o: get_sgdr_schedule(o, 5, 9, 2, start=4), "num_warmup_steps 5, start 4"),
    (lambda o: get_oli_schedule(o, 1, 9, 0, 3), "bump_steps 0: "),
    (lambda o: get_oli_schedule(o, 1, 9, baseline="wsd"), "'wsd' .* valid: cosine, cosine_neox_v1"),
)


def test_a_mistake_is_one_line():
    for make, line in MISTAKES:
        with pytest.raises(ValueError, match=line) as caught:
            make(optimizer_of(1.0))
        assert "\n" not in str(caught.value)


def test_an_optimizer_without_a_rate_is_one_line():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match="lr is None"):
        get_sgdr_schedule(optimizer, 2, 40, period=5)
