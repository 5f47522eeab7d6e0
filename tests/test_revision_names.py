"""Names of branches and the steps they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatminima.revisions.names import DEFAULT_PATTERN, branch_of, step_of

STAGE = r"stage1-step(?P<step>\d+)-tokens(?P<billions>\d+)B"


@given(st.integers(0, 10**9))
def test_the_name_of_a_step_and_back(step):
    assert branch_of(DEFAULT_PATTERN, step) == f"step{step}"
    assert step_of(DEFAULT_PATTERN, f"step{step}") == step


@pytest.mark.parametrize("branch", ["main", "step", "step1000-v0", "xstep1000", "step-1", ""])
def test_other_branches_hold_no_step(branch):
    assert step_of(DEFAULT_PATTERN, branch) is None


def test_a_name_that_says_more_than_the_step_is_read_and_not_made_up():
    assert step_of(STAGE, "stage1-step1000-tokens3B") == 1000
    assert step_of(STAGE, "stage2-ingredient1-step1000-tokens3B") is None
    assert branch_of(STAGE, 1000) is None
