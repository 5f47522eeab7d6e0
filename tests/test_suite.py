"""The grids of both suites and the names of their ranges."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.suite import (
    chunk_names,
    even_steps,
    nearest,
    parse_range,
    range_name,
    revision_steps,
)

PYTHIA = {"powers_of_two": 10, "spacing": 1_000, "last": 143_000}
MINI = {"powers_of_two": 10, "spacing": 40, "last": 5_720}
POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
STEPS = revision_steps(**PYTHIA)


def test_the_grid_of_pythia():
    assert len(STEPS) == 154
    assert [0, *POWERS, *range(1_000, 143_001, 1_000)] == STEPS


def test_the_grid_of_mini():
    steps = revision_steps(**MINI)
    assert len(steps) == 154
    assert set(steps) == {0, *POWERS, *range(40, 5_721, 40)}
    assert steps[:8] == [0, 1, 2, 4, 8, 16, 32, 40]


@pytest.mark.parametrize("grid", [PYTHIA, MINI], ids=["pythia", "mini"])
def test_grids_rise_without_duplicates(grid):
    steps = revision_steps(**grid)
    assert all(a < b for a, b in pairwise(steps))
    evenly = even_steps(spacing=grid["spacing"], last=grid["last"])
    assert len(evenly) == 143
    assert evenly[-1] == grid["last"] == steps[-1]
    assert set(evenly) <= set(steps)
    assert {b - a for a, b in pairwise(evenly)} == {grid["spacing"]}


def test_a_power_that_is_also_an_even_step_occurs_once():
    assert revision_steps(powers_of_two=4, spacing=4, last=12) == [0, 1, 2, 4, 8, 12]


def test_grids_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="last 143001: .*multiple of spacing 1000"):
        revision_steps(powers_of_two=10, spacing=1_000, last=143_001)
    with pytest.raises(ValueError, match="powers_of_two 10: 2\\^9 is past 400"):
        revision_steps(powers_of_two=10, spacing=40, last=400)


# Names


@given(st.data(), st.sampled_from([PYTHIA, MINI]))
def test_ranges_survive_printing_and_parsing(data, grid):
    steps = revision_steps(**grid)
    first = data.draw(st.integers(0, len(steps) - 1))
    last = data.draw(st.integers(first, len(steps) - 1))
    part = steps[first : last + 1]
    name = range_name(part)
    assert parse_range(name, steps) == part
    assert range_name(parse_range(name, steps)) == name


@given(st.integers(1, 200), st.sampled_from([PYTHIA, MINI]))
def test_chunks_cover_the_grid_once_and_in_order(size, grid):
    steps = revision_steps(**grid)
    parts = [parse_range(name, steps) for name in chunk_names(steps, size)]
    assert sum(parts, []) == steps
    assert all(len(part) == size for part in parts[:-1])


def test_names():
    assert range_name([70_000]) == "step70000"
    assert range_name([60_000, 61_000]) == "step60000-step61000"
    assert parse_range("step0", STEPS) == [0]
    assert parse_range("step256-step2000", STEPS) == [256, 512, 1_000, 2_000]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("step70001", "step 70001 is not a revision of this suite; nearest: 70000 and 71000"),
        ("step3", "step 3 is not a revision of this suite; nearest: 2 and 4"),
        ("step143001", "step 143001 is not a revision of this suite; nearest: 143000"),
        ("step0-step1500", "step 1500 is not a revision of this suite; nearest: 1000 and 2000"),
        ("step2000-step1000", "'step2000-step1000' runs backwards; write step1000-step2000"),
    ],
)
def test_steps_off_the_grid_and_backward_ranges(name, message):
    with pytest.raises(ValueError) as error:
        parse_range(name, STEPS)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "name",
    ["", "step", "70000", "step-1", "step1.5", "step 1", "step1 ", "step1\n", "step1-2", "step1-",
     "-step1", "step1-step2-step4", "Step1", "step1e3", "step0001", "step01-step02", "step１",
     "step٣", "step1_000"],
)  # fmt: skip
def test_malformed_names(name):
    """Each revision has one name, so that one file never stands beside its double."""
    with pytest.raises(ValueError) as error:
        parse_range(name, STEPS)
    message = str(error.value)
    assert message.endswith("is no step or range; write step0 or step0-step143000")
    assert message.startswith(repr(name))
    assert "\n" not in message


@pytest.mark.parametrize("name", ["step1", "", "step8-step0"])
def test_a_suite_of_one_revision_has_errors_as_well(name):
    with pytest.raises(ValueError, match="step0|nearest: 0"):
        parse_range(name, [0])


@given(st.integers(-5, 150_000))
def test_the_nearest_are_neighbours(step):
    around = nearest(step, STEPS)
    assert 1 <= len(around) <= 2
    best = min(STEPS, key=lambda s: abs(s - step))
    assert best in around or abs(best - step) in {abs(s - step) for s in around}
