"""The suite of the paper with a tiny hub: 154 revisions, one of them missing.

Only sizes are changed. The run is killed once and continued. A second run makes no request.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from flatminima.config.keys import EvenGrid
from tests.hub import pythia
from tests.hub.server import TinyHub
from tests.workflow import copy_checkout

pytestmark = pytest.mark.workflow
OVERRIDE = "tests/config/pythia_tiny.yaml"
STEPS = EvenGrid(powers_of_two=10, spacing=1000, last=143_000).revisions
MISSING_STEP = 77_000  # a row of Table 1
REVISIONS_PER_JOB = 39  # four jobs in all
ROOT = "results/pythia-160m"
TARGETS = [
    f"{ROOT}/tables/table1.csv",
    f"{ROOT}/figures/fig1_audit.svg",
    f"{ROOT}/kurtosis.csv",
    f"{ROOT}/checkpoints/step70000/config.json",
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", *arguments, "--cores", "2", "--configfile", OVERRIDE]


def run(folder: Path, environment: dict, *arguments: str) -> str:
    """Run Snakemake and return its output."""
    finished = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment,
        text=True,
        timeout=1500,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert finished.returncode == 0, finished.stdout[-5000:]
    return finished.stdout


def count_on_disk(folder: Path, stopped: threading.Event, counts: list[int]) -> None:
    """Append the current number of checkpoints of probe_revision to ``counts``, repeatedly."""
    while not stopped.wait(0.01):
        counts.append(len(list(folder.glob(f"{ROOT}/unfinished/probe_revision/*"))))


def kill_once_a_range_is_done(folder: Path, environment: dict) -> None:
    log = folder / "first.log"
    started = time.monotonic()
    process = subprocess.Popen(
        command(*TARGETS),
        cwd=folder,
        env=environment,
        start_new_session=True,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    while not re.search(r"Finished jobid: \d+ \(Rule: probe_revision\)", log.read_text()):
        assert process.poll() is None, log.read_text()[-5000:]
        assert time.monotonic() - started < 600
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run(folder, environment, *TARGETS, "--unlock")


def downloads_by_step(hub: TinyHub) -> Counter:
    """How often the weights of each step were sent, from the log of the hub's storage."""
    downloads: Counter = Counter()
    for request in hub.asked("^/lfs/"):
        match = re.search(r"/step(\d+)/model.safetensors", request.path)
        if match:
            downloads[int(match[1])] += 1
    return downloads


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> dict:
    """The checkout after a run that was killed and continued, and after a second one."""
    folder = copy_checkout(tmp_path_factory.mktemp("chain"))
    home = tmp_path_factory.mktemp("home")
    config = folder / OVERRIDE
    config.write_text(
        config.read_text().replace("steps_per_job: 11", f"steps_per_job: {REVISIONS_PER_JOB}")
    )
    stopped = threading.Event()
    counts: list[int] = []
    watch = threading.Thread(target=count_on_disk, args=(folder, stopped, counts), daemon=True)
    with TinyHub(pythia.models(STEPS, lost=[MISSING_STEP]), pythia.datasets()) as hub:
        environment = hub.environment(home)
        watch.start()
        kill_once_a_range_is_done(folder, environment)
        downloads_before_kill = downloads_by_step(hub)
        run(folder, environment, *TARGETS, "--notemp")
        downloads = downloads_by_step(hub)
        stopped.set()
    # The server has stopped: a request would fail now.
    second_output = run(folder, environment, *TARGETS)
    return {
        "folder": folder,
        "home": home,
        "most_on_disk": max(counts),
        "second_output": second_output,
        "downloads": downloads,
        "downloads_before_kill": downloads_before_kill,
    }


def table(chain: dict, name: str) -> pd.DataFrame:
    return pd.read_csv(chain["folder"] / ROOT / name)


def test_every_revision_is_described_and_the_missing_one_named(chain):
    suite = table(chain, "suite.csv").set_index("step")
    assert list(suite.index) == STEPS
    missing = suite[suite["status"] == "missing"]
    assert list(missing.index) == [MISSING_STEP]
    assert list(missing["findings"]) == ["missing"]
    assert "no such revision" in missing["reason"].item()
    present = suite.drop(MISSING_STEP)
    assert set(present["status"]) == {"present"}
    assert present["findings"].isna().all()
    assert present["commit"].str.fullmatch("[0-9a-f]{40}").all()
    assert present["commit"].is_unique
    assert present["duplicate_of"].dropna().to_dict() == {1: 0}
    assert present["weights_sha256"].nunique() == 152
    assert set(present["dtype"]) == {"F16"}
    assert present["distance_to_previous"].notna().sum() == 152


def test_the_other_153_revisions_are_measured_and_the_missing_one_is_never_a_number(chain):
    audit = table(chain, "audit.csv")
    kurtosis = table(chain, "kurtosis.csv")
    for measured in (audit, kurtosis):
        assert list(measured["step"].unique()) == [step for step in STEPS if step != MISSING_STEP]
    assert audit.groupby("step").size().eq(4).all() and audit.notna().all(axis=None)
    text = (chain["folder"] / ROOT / "tables/table1.csv").read_text()
    row = next(line for line in text.splitlines() if line.startswith("NA,77000,"))
    assert row.startswith("NA,77000,NA,NA,NA,NA,NA,NA,NA,NA,")
    phases = json.loads((chain["folder"] / ROOT / "phases.json").read_text())
    assert phases["missing"] == [MISSING_STEP] and phases["segments"][-1]["last_step"] == 143_000
    for name in (f"{ROOT}/tables/table1.md", f"{ROOT}/figures/fig1_audit.svg"):
        shown = " ".join((chain["folder"] / name).read_text().split())
        assert "missing: step 77,000" in shown, name


def test_no_more_checkpoints_were_on_disk_than_allowed_and_none_remains(chain):
    # Two running jobs, and the checkpoint of a killed job until its range starts again.
    assert 1 <= chain["most_on_disk"] <= 3
    weights = [*chain["folder"].rglob("model.safetensors"), *chain["home"].rglob("*.safetensors")]
    assert [path.parent.name for path in weights] == ["step70000"], "the start of the forks"
    large_files = [
        path.name
        for path in chain["home"].rglob("*")
        if path.is_file() and path.stat().st_size > 20_000 and "datasets" not in path.as_posix()
    ]
    assert large_files == []


def test_a_kill_costs_only_the_running_ranges_and_a_second_run_makes_no_request(chain):
    # Forks fetch step 70,000 on their own.
    before_kill = set(chain["downloads_before_kill"]) - {70_000}
    repeated = {step for step, count in chain["downloads"].items() if count > 1} - {70_000}
    assert repeated <= before_kill
    assert len(repeated) <= REVISIONS_PER_JOB
    assert len(before_kill - repeated) >= REVISIONS_PER_JOB - 10
    assert set(chain["downloads"]) == set(STEPS) - {MISSING_STEP}
    assert "Nothing to be done" in chain["second_output"]


def test_a_revision_that_is_available_later_is_fetched_with_the_command_in_the_log(chain):
    folder = chain["folder"]
    log_lines = (folder / "logs/pythia-160m/gather_suite.log").read_text().splitlines()
    assert any("missing: step 77000" in line for line in log_lines)
    table_file = re.search(r"--forcerun (\S+)`", log_lines[-1])[1]
    steps = set(pd.read_csv(folder / table_file)["step"])
    assert MISSING_STEP in steps
    with TinyHub(pythia.models(STEPS), pythia.datasets()) as hub:
        environment = hub.environment(chain["home"])
        run(folder, environment, f"{ROOT}/suite.csv", "--forcerun", table_file)
        downloads = downloads_by_step(hub)
    assert MISSING_STEP in downloads
    assert len(downloads) == len(steps), "one job only"
    suite = table(chain, "suite.csv")
    assert list(suite["step"]) == STEPS
    assert set(suite["status"]) == {"present"}
