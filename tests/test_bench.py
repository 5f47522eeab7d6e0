"""The benchmarks run and judge honestly."""

import csv
import subprocess
import sys

import pytest

from tests.workflow import ROOT
from workflow_scripts.bench.__main__ import ROWS
from workflow_scripts.bench.results import Target, judged, read, write
from workflow_scripts.bench.timing import Settings, ratio, side_by_side


def result(row, ratio, target=None, note=""):
    return judged(
        target, row=row, what="a thing", against="another", ours=1.0, theirs=2.0, unit="s",
        ratio=ratio, means="times faster:", note=note,
    )  # fmt: skip


def test_a_target_is_met_or_missed():
    assert result("r", 1.5, Target("≥", 1.5)).verdict == "met"
    assert result("r", 1.49, Target("≥", 1.5)).verdict == "missed"
    assert result("r", 2.0, Target("≤", 2)).verdict == "met"
    assert result("r", 2.01, Target("≤", 2)).verdict == "missed"
    assert result("r", float("nan"), Target("≤", 2)).verdict == "missed"
    assert result("r", 9.0).verdict == ""


def test_rows_that_are_measured_again_replace_themselves_only(tmp_path):
    first, second = {"machine": "a", "conditions": "c"}, {"machine": "b", "conditions": "c"}
    write(tmp_path, {"x": [result("x", 3.0, Target("≥", 2))], "y": [result("y", 1.0)]}, first)
    page = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text(
        page.replace("# Benchmarks\n", "# Benchmarks\n\nBy hand.\n")
    )
    write(tmp_path, {"x": [result("x", 1.0, Target("≥", 2), note="slow today")]}, second)
    lines = read(tmp_path / "results.csv")
    assert [(line["row"], line["machine"], line["verdict"]) for line in lines] == [
        ("y", "a", ""), ("x", "b", "missed"),
    ]  # fmt: skip
    page = (tmp_path / "README.md").read_text()
    assert "By hand." in page and "**missed**" in page and "slow today" in page
    assert "- y: a; c" in page and "- x: b; c" in page and "times faster: 3" not in page


def test_every_action_runs_once_a_round_and_ratios_are_of_rounds():
    calls = []
    actions = {name: lambda n=name: calls.append(n) for name in "ab"}
    seconds = side_by_side(actions, 3, Settings())
    assert calls == list("ab" + "ab" + "ba" + "ab")
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == 3.0


def test_a_quick_run_writes_a_table_with_verdicts(tmp_path):
    command = [sys.executable, "-m", "workflow_scripts.bench", "--rows", "quantize", "--quick"]
    run = subprocess.run(
        [*command, "--output", tmp_path, "--device", "cpu"], cwd=ROOT, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines = read(tmp_path / "results.csv")
    assert {line["row"] for line in lines} == {"quantize"}
    judged_lines = [line for line in lines if line["target"]]
    assert len(judged_lines) >= 2
    assert all(line["verdict"] in ("met", "missed") for line in judged_lines)
    bits = next(line for line in lines if line["what"].startswith("same bits"))
    assert bits["verdict"] == "met"
    page = (tmp_path / "README.md").read_text()
    assert "| row | what |" in page and "quick" in page and "torch" in page


@pytest.mark.parametrize("arguments", [("--rows", "nothing"), ("--quick",)])
def test_what_makes_no_sense_is_refused_in_one_line(arguments):
    command = [sys.executable, "-m", "workflow_scripts.bench", *arguments]
    run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert run.returncode == 2
    assert "error:" in run.stderr.strip().splitlines()[-1]


def test_the_committed_table_has_every_row_and_honest_verdicts():
    with (ROOT / "benchmarks/results.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert {line["row"] for line in lines} == set(ROWS)
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    for line in lines:
        assert line["machine"] and "quick" not in line["conditions"]
        assert f"| {line['row']} | {line['what']} | {line['against']} |" in page
        if line["target"]:
            relation, bound = line["target"].split()
            verdict = Target(relation, float(bound)).judge(float(line["ratio"]))
            assert line["verdict"] == verdict
