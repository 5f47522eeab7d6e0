"""The benchmarks run and judge honestly."""

import subprocess
import sys

import pytest

from bench.bench import ROWS, judge, line, read, write
from tests.workflow import ROOT


def test_rows_that_are_measured_again_replace_themselves_only(tmp_path):
    at = {"machine": "m", "conditions": "c", "measured": "d"}
    slow = line("thing", "other", 1.0, 2.0, "s", 1.0, "times faster:", "≥ 2", "slow today")
    write(tmp_path, "quantize", [slow | {"ratio": 3.0, "verdict": "met"}], at)
    write(tmp_path, "probe", [slow], at)
    write(tmp_path, "quantize", [slow], at | {"machine": "another"})
    assert [(f["row"], f["machine"], f["verdict"]) for f in read(tmp_path / "results.csv")] == [
        ("quantize", "another", "missed"),
        ("probe", "m", "missed"),
    ]
    page = (tmp_path / "README.md").read_text()
    assert "**missed**" in page and "slow today" in page and "times faster: 3" not in page


@pytest.mark.slow
def test_a_quick_run_of_all_rows(tmp_path):
    command = [sys.executable, "bench/bench.py", "--quick", "--output", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=900)
    assert run.returncode == 0, run.stderr
    assert {found["row"] for found in read(tmp_path / "results.csv")} == set(ROWS)


def test_the_committed_table_has_every_row_and_honest_verdicts():
    lines = read(ROOT / "bench/results.csv")
    assert {found["row"] for found in lines} == set(ROWS)
    page = (ROOT / "bench/README.md").read_text(encoding="utf-8")
    for found in lines:
        assert found["machine"] and "quick" not in found["conditions"]
        assert f"| {found['row']} | {found['what']} | {found['against']} |" in page
        assert found["verdict"] == judge(found["target"], float(found["ratio"]))
