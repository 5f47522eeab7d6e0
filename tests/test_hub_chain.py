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

from flatminima.suites import revision_steps
from tests.hub import pythia
from tests.hub.server import TinyHub
from tests.workflow import copy_checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
OVERRIDE = "tests/config/pythia_tiny.yaml"
STEPS = revision_steps(powers_of_two=10, spacing=1000, last=143_000)
LOST = 77_000  # a row of Table 1
ROOT = "results/pythia-160m"
TARGETS = [f"{ROOT}/{name}" for name in (
    "suite.csv", "audit.csv", "kurtosis.csv", "phases.json", "forks.csv", "statistics.csv",
    "early_warning.csv", "claims.md", "tables/table1.csv", "tables/table1.md", "tables/table2.csv",
    "figures/fig1_audit.svg", "figures/fig2_kurtosis.svg", "figures/fig5_bit_widths.svg",
    "notebooks/audit.html",
)]  # fmt: skip
COMMAND = [sys.executable, "-m", "snakemake", *TARGETS, "--cores", "2", "--configfile", OVERRIDE]


class Watch:
    """The most checkpoints that were seen on disk at once, of jobs that measure revisions."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        pattern = f"{ROOT}/unfinished/probe_revision/*"
        while not self._stopped.wait(0.01):
            self.most = max(self.most, len(list(self.folder.glob(pattern))))


def kill_once_some_jobs_are_done(folder: Path, environment: dict) -> None:
    """Start to build, and kill once two jobs have measured their revisions."""
    log = folder / "first.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            COMMAND, cwd=folder, env=environment, start_new_session=True,
            stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
    started = time.monotonic()
    while log.read_text().count("Finished jobid") < 6:  # three of text and tokenizer
        assert process.poll() is None, log.read_text()[-5000:]
        assert time.monotonic() - started < 600
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    unlock = subprocess.run([*COMMAND, "--unlock"], cwd=folder, env=environment, check=False)
    assert unlock.returncode == 0


def weights_asked_for(hub: TinyHub) -> Counter:
    """How often the weights of each step were sent, by the log of the hub's storage."""
    asked = (hub.with_branch(request.path) for request in hub.asked("^/lfs/", "GET"))
    found = (re.search(r"/step(\d+)/model.safetensors", path) for path in asked)
    return Counter(int(match[1]) for match in found if match)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> dict:
    """The checkout after a run that was killed and continued, and after a second one."""
    folder = copy_checkout(tmp_path_factory.mktemp("chain"))
    home = tmp_path_factory.mktemp("home")
    branches = pythia.models(STEPS, lost=[LOST])
    with TinyHub(branches, pythia.datasets()) as hub:
        environment = hub.environment(home)
        with Watch(folder) as watch:
            kill_once_some_jobs_are_done(folder, environment)
            before = weights_asked_for(hub)
            run = subprocess.run(
                COMMAND, cwd=folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1500,
            )  # fmt: skip
        assert run.returncode == 0, run.stdout[-5000:]
        asked = weights_asked_for(hub)
    # The server is gone: whatever asks for it now fails.
    again = subprocess.run(
        COMMAND, cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    return {
        "folder": folder, "home": home, "most": watch.most, "again": again, "asked": asked,
        "asked_before": before, "said": run.stdout,
    }  # fmt: skip


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
    assert (
        "missing: step 77000" in (chain["folder"] / "logs/pythia-160m/gather_suite.log").read_text()
    )


def test_the_other_153_go_on_and_the_hole_is_never_a_number(chain):
    audit, kurtosis = table(chain, "audit.csv"), table(chain, "kurtosis.csv")
    for measured in (audit, kurtosis):
        assert list(measured["step"].unique()) == [step for step in STEPS if step != LOST]
    assert audit.groupby("step").size().eq(3).all() and audit.notna().all(axis=None)
    text = (chain["folder"] / ROOT / "tables/table1.csv").read_text()
    row = next(line for line in text.splitlines() if line.startswith("NA,77000,"))
    assert row.startswith("NA,77000,NA,NA,NA,NA,NA,NA,NA,NA,")
    markdown = (chain["folder"] / ROOT / "tables/table1.md").read_text()
    assert "missing: step 77,000" in " ".join(markdown.split())
    phases = json.loads((chain["folder"] / ROOT / "phases.json").read_text())
    assert phases["missing"] == [LOST]
    assert phases["segments"][-1]["last_step"] == 143_000
    notes = table(chain, "statistics.csv")["note"].dropna()
    assert notes.str.contains("missing: step 77,000").any()
    for name in ("fig1_audit", "fig2_kurtosis", "fig5_bit_widths"):
        drawn = (chain["folder"] / ROOT / f"figures/{name}.svg").read_text()
        assert "missing: step 77,000" in " ".join(drawn.split()), name
    assert "missing: step 77,000" in (chain["folder"] / ROOT / "notebooks/audit.html").read_text()


def test_forks_leave_from_the_papers_step(chain):
    forks = table(chain, "forks.csv")
    assert set(forks["fork_step"]) == {70_000}
    assert set(forks["schedule"]) == {"cosine", "sgdr", "oli"} and set(forks["seed"]) == {0, 1}


def test_no_more_checkpoints_were_on_disk_than_allowed_and_none_is_left(chain):
    assert 1 <= chain["most"] <= 2
    for folder in (chain["folder"] / "results", chain["home"]):
        left = [path for path in folder.rglob("*") if path.name == "model.safetensors"]
        assert left == []
    large = [p for p in chain["home"].rglob("*") if p.is_file() and p.stat().st_size > 20_000]
    assert [p.name for p in large if "datasets" not in p.as_posix()] == []


def test_a_kill_costs_the_ranges_at_work_and_no_other(chain):
    asked, before = chain["asked"], set(chain["asked_before"]) - {70_000}
    # The fork fetches its start for itself. A job of pythia_tiny.yaml has eleven revisions.
    again = {step for step, count in asked.items() if count > 1} - {70_000}
    assert again <= before and len(again) <= 2 * 11 and len(before - again) >= 11
    assert set(asked) == set(STEPS) - {LOST}


def test_a_second_run_makes_no_request(chain):
    assert chain["again"].returncode == 0, chain["again"].stdout[-3000:]
    assert "Nothing to be done" in chain["again"].stdout


def test_a_revision_that_can_be_had_later_is_asked_for_as_the_log_says(chain):
    folder = chain["folder"]
    said = (folder / "logs/pythia-160m/gather_suite.log").read_text().splitlines()[-1]
    rows = re.search(r"--forcerun (\S+)`", said)[1]
    assert LOST in set(pd.read_csv(folder / rows)["step"])
    with TinyHub(pythia.models(STEPS), pythia.datasets()) as hub:
        run = subprocess.run(
            [sys.executable, "-m", "snakemake", f"{ROOT}/audit.csv", "--cores", "2",
             "--forcerun", rows, "--configfile", OVERRIDE],
            cwd=folder, env=hub.environment(chain["home"]), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
        )  # fmt: skip
        asked = weights_asked_for(hub)
    assert run.returncode == 0, run.stdout[-5000:]
    assert LOST in asked and len(asked) == 11  # its job, not the whole suite
    suite, audit = table(chain, "suite.csv"), table(chain, "audit.csv")
    assert set(suite["status"]) == {"present"} and list(audit["step"].unique()) == STEPS
