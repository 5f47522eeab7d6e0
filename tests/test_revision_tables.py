"""From a hub's list of branches to a frozen table and back."""

import pytest

from flatminima.revisions.frozen import read_table, table_of_branches
from flatminima.revisions.names import DEFAULT_PATTERN

OLMO = r"stage1-step(?P<step>\d+)-tokens(?P<billions>\d+)B"
BRANCHES = {"main": "a", "stage1-step10000-tokens21B": "b", "stage1-step300-tokens1B": "c",
            "step150-tokens1B": "d", "stage2-ingredient1-step1000-tokens3B": "e"}  # fmt: skip


def test_branches_of_steps_in_step_order():
    table = table_of_branches(OLMO, BRANCHES)
    assert list(table.columns) == ["step", "branch", "commit"]
    assert table.values.tolist() == [
        [300, "stage1-step300-tokens1B", "c"], [10000, "stage1-step10000-tokens21B", "b"],
    ]  # fmt: skip


def test_the_table_survives_its_file(tmp_path):
    path = tmp_path / "olmo.csv"
    assert read_table(path) is None
    table_of_branches(OLMO, BRANCHES).to_csv(path, index=False)
    assert read_table(path) == {300: "stage1-step300-tokens1B", 10000: "stage1-step10000-tokens21B"}


def test_lists_without_a_step_and_with_one_twice_are_refused():
    with pytest.raises(ValueError, match="none of 5 branches fits .*there are main, stage1"):
        table_of_branches(DEFAULT_PATTERN, BRANCHES)
    with pytest.raises(ValueError, match="branches step07 and step7 are both step 7"):
        table_of_branches(DEFAULT_PATTERN, {"step7": "a", "step07": "b"})


HEADER = "step,branch,commit\n"


@pytest.mark.parametrize("text", ["a,b\n1,2\n", HEADER, f"{HEADER}2,a,b\n1,c,d\n"])
def test_a_file_that_is_no_table_is_refused(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match="is no table of step, branch, commit in step order"):
        read_table(tmp_path / "t.csv")
