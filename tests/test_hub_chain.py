"""The paper's suite as it is configured, against a tiny hub: 154 revisions, one of them missing.

Only sizes are overridden. The run is killed once on the way; a second run makes no request.
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
LOST = 77_000  # a row of Table 1
ROOM = 39  # revisions of a job, of which there are four
ROOT = "results/pythia-160m"
TARGETS = [f"{ROOT}/{name}" for name in (
    "tables/table1.csv", "figures/fig1_audit.svg", "kurtosis.csv",
    "checkpoints/step70000/config.json",
)]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", *arguments, "--cores", "2", "--configfile", OVERRIDE]


def run(folder: Path, environment: dict, *arguments: str) -> str:
    """What a run of Snakemake prints."""
    ended = subprocess.run(
        command(*arguments), cwd=folder, env=environment, text=True, timeout=1500,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-5000:]
    return ended.stdout


def most_on_disk(folder: Path, stopped: threading.Event, found: list[int]) -> None:
    """The most checkpoints that are seen at once, of jobs that measure revisions."""
    while not stopped.wait(0.01):
        found.append(len(list(folder.glob(f"{ROOT}/unfinished/probe_revision/*"))))


def kill_once_a_range_is_done(folder: Path, environment: dict) -> None:
    log, started = folder / "first.log", time.monotonic()
    process = subprocess.Popen(
        command(*TARGETS), cwd=folder, env=environment, start_new_session=True,
        stdout=log.open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    while not re.search(r"Finished jobid: \d+ \(Rule: probe_revision\)", log.read_text()):
        assert process.poll() is None, log.read_text()[-5000:]
        assert time.monotonic() - started < 600
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run(folder, environment, *TARGETS, "--unlock")


def weights_asked_for(hub: TinyHub) -> Counter:
    """How often the weights of each step were sent, by the log of the hub's storage."""
    paths = (request.path for request in hub.asked("^/lfs/"))
    found = (re.search(r"/step(\d+)/model.safetensors", path) for path in paths)
    return Counter(int(match[1]) for match in found if match)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> dict:
    """The checkout after a run that was killed and continued, and after a second one."""
    folder, home = copy_checkout(tmp_path_factory.mktemp("chain")), tmp_path_factory.mktemp("home")
    config = folder / OVERRIDE
    config.write_text(config.read_text().replace("steps_per_job: 11", f"steps_per_job: {ROOM}"))
    stopped, seen = threading.Event(), []
    watch = threading.Thread(target=most_on_disk, args=(folder, stopped, seen), daemon=True)
    with TinyHub(pythia.models(STEPS, lost=[LOST]), pythia.datasets()) as hub:
        environment = hub.environment(home)
        watch.start()
        kill_once_a_range_is_done(folder, environment)
        before = weights_asked_for(hub)
        run(folder, environment, *TARGETS, "--notemp")
        asked = weights_asked_for(hub)
        stopped.set()
    # The server is gone: whatever asks for it now fails.
    again = run(folder, environment, *TARGETS)
    return {"folder": folder, "home": home, "most": max(seen), "again": again, "asked": asked,
            "asked_before": before}  # fmt: skip


def table(chain: dict, name: str) -> pd.DataFrame:
    return pd.read_csv(chain["folder"] / ROOT / name)


def test_every_revision_is_described_and_the_missing_one_named(chain):
    suite = table(chain, "suite.csv").set_index("step")
    assert list(suite.index) == STEPS
    lost = suite[suite["status"] == "missing"]
    assert list(lost.index) == [LOST] and list(lost["findings"]) == ["missing"]
    assert "no such revision" in lost["reason"].item()
    there = suite.drop(LOST)
    assert set(there["status"]) == {"present"} and there["findings"].isna().all()
    assert there["commit"].str.fullmatch("[0-9a-f]{40}").all() and there["commit"].is_unique
    assert there["duplicate_of"].dropna().to_dict() == {1: 0}
    assert there["weights_sha256"].nunique() == 152
    assert set(there["dtype"]) == {"F16"} and there["distance_to_previous"].notna().sum() == 152


def test_the_other_153_go_on_and_the_hole_is_never_a_number(chain):
    audit, kurtosis = table(chain, "audit.csv"), table(chain, "kurtosis.csv")
    for measured in (audit, kurtosis):
        assert list(measured["step"].unique()) == [step for step in STEPS if step != LOST]
    assert audit.groupby("step").size().eq(3).all() and audit.notna().all(axis=None)
    text = (chain["folder"] / ROOT / "tables/table1.csv").read_text()
    row = next(line for line in text.splitlines() if line.startswith("NA,77000,"))
    assert row.startswith("NA,77000,NA,NA,NA,NA,NA,NA,NA,NA,")
    phases = json.loads((chain["folder"] / ROOT / "phases.json").read_text())
    assert phases["missing"] == [LOST] and phases["segments"][-1]["last_step"] == 143_000
    for name in (f"{ROOT}/tables/table1.md", f"{ROOT}/figures/fig1_audit.svg"):
        shown = " ".join((chain["folder"] / name).read_text().split())
        assert "missing: step 77,000" in shown, name


def test_no_more_checkpoints_were_on_disk_than_allowed_and_none_is_left(chain):
    # Two at work, and what the kill has left until its range is begun again.
    assert 1 <= chain["most"] <= 3
    left = [p for top in ("folder", "home") for p in chain[top].rglob("model.safetensors")]
    assert [path.parent.name for path in left] == ["step70000"], "where forks leave from"
    large = [p for p in chain["home"].rglob("*") if p.is_file() and p.stat().st_size > 20_000]
    assert [p.name for p in large if "datasets" not in p.as_posix()] == []


def test_a_kill_costs_the_ranges_at_work_and_a_second_run_makes_no_request(chain):
    asked, before = chain["asked"], set(chain["asked_before"]) - {70_000}
    # A fork fetches its start for itself.
    again = {step for step, count in asked.items() if count > 1} - {70_000}
    assert again <= before and len(again) <= ROOM and len(before - again) >= ROOM - 10
    assert set(asked) == set(STEPS) - {LOST}
    assert "Nothing to be done" in chain["again"]


def test_a_revision_that_can_be_had_later_is_asked_for_as_the_log_says(chain):
    folder = chain["folder"]
    said = (folder / "logs/pythia-160m/gather_suite.log").read_text().splitlines()
    assert any("missing: step 77000" in line for line in said)
    rows = re.search(r"--forcerun (\S+)`", said[-1])[1]
    assert LOST in set(pd.read_csv(folder / rows)["step"])
    with TinyHub(pythia.models(STEPS), pythia.datasets()) as hub:
        run(folder, hub.environment(chain["home"]), f"{ROOT}/suite.csv", "--forcerun", rows)
        asked = weights_asked_for(hub)
    assert LOST in asked and len(asked) == len(pd.read_csv(folder / rows)), "its job alone"
    suite = table(chain, "suite.csv")
    assert list(suite["step"]) == STEPS and set(suite["status"]) == {"present"}
