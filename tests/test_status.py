"""How far a run is, read from what it leaves on disk."""

import base64
import math

import pandas as pd
import pytest

from flatminima.running.status import (
    describe,
    fork_progress,
    jobs_left,
    mean_seconds,
    unfinished_outputs,
)

PLAN = """Building DAG of jobs...
Job stats:
job            count
-----------  -------
all                1
plot_audit         2
train_fork         9
total             12

[more]
"""


def test_jobs_left_are_those_of_the_plan():
    assert jobs_left(PLAN) == {"plot_audit": 2, "train_fork": 9}
    assert jobs_left("Nothing to be done") == {}


def test_files_in_the_making_are_read_from_the_markers(tmp_path):
    path = "results/mini/forks/" + "x" * 200 + ".csv"
    encoded = base64.b64encode(path.encode()).decode()
    marker = tmp_path / "incomplete" / f"@{encoded[:250]}" / encoded[250:]
    marker.parent.mkdir(parents=True)
    marker.touch()
    (tmp_path / "incomplete" / "migrated!").touch()
    assert unfinished_outputs(tmp_path) == [path]


def test_seconds_are_the_mean_of_finished_jobs(tmp_path):
    for name, seconds in (("mini/probe/step0.tsv", 4.0), ("mini/probe/step1.tsv", 6.0)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"s\th:m:s\n{seconds}\t0:00:04\n")
    assert mean_seconds(tmp_path, "probe") == 5.0
    assert mean_seconds(tmp_path, "other") is None
    table = describe({"probe": 3, "other": 1}, tmp_path, [])
    assert [list(column.cells) for column in table.columns][3] == ["15", "-"]


def test_the_newest_gap_of_a_fork_in_training(tmp_path):
    folder = tmp_path / "unfinished/train_fork/oli-seed0"
    folder.mkdir(parents=True)
    for step, gap in ((40, 0.5), (80, 0.25)):
        rows = [("fp32", 8.0, 4), ("low_bit", 8.0 + 4 * gap, 4), ("high_bit", 8.0, 4)]
        table = pd.DataFrame(rows, columns=["role", "nll_nats", "scored"])
        table.to_parquet(folder / f"step{step}.parquet")
    (found,) = fork_progress(tmp_path)
    assert (found.name, found.step) == ("oli-seed0", 80)
    assert found.gap_pct == pytest.approx(100 * (math.exp(0.25) - 1))
