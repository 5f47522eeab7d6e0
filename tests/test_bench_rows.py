"""Quick runs of the benchmarks that take processes and files of their own."""

import csv
import subprocess
import sys

import pytest

from tests.workflow import ROOT
from workflow_scripts.bench.growth import COLUMNS
from workflow_scripts.bench.results import read


@pytest.mark.slow
def test_a_quick_run_streams_and_draws_how_costs_grow(tmp_path):
    command = [sys.executable, "-m", "workflow_scripts.bench", "--rows", "stream", "growth"]
    run = subprocess.run(
        [*command, "--quick", "--output", tmp_path, "--device", "cpu", "--threads", "1"],
        cwd=ROOT, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines = read(tmp_path / "results.csv")
    assert {line["row"] for line in lines} == {"stream", "growth"}
    memory = next(line for line in lines if line["row"] == "stream" and "layer" in line["against"])
    assert memory["verdict"] == "met"
    with (tmp_path / "growth.csv").open(encoding="utf-8") as file:
        points = csv.DictReader(file)
        assert {line["against"] for line in points} == {"size", "revisions"}
    assert tuple(points.fieldnames) == COLUMNS
    for name in ("growth_size", "growth_revisions"):
        assert (tmp_path / f"{name}.svg").stat().st_size > 5000
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
