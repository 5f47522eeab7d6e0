"""Two people at once: in one folder, and in two clones that share one cache of the hub."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hub import pythia
from tests.hub.server import TinyHub
from tests.workflow import TINY, copy_checkout, snakemake
from workflow_scripts.lib.suite import revision_steps

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
COMMAND = ["results/tiny/suite.csv", "--cores", "1", "--configfile", TINY]
OVERRIDE = "tests/config/pythia_tiny.yaml"
ROOT = "results/pythia-160m"
RANGE = "step0-step16"


def start(folder: Path, *arguments: str, environment: dict | None = None) -> subprocess.Popen:
    log = open(folder / "said.txt", "w")  # noqa: SIM115
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip


def said(folder: Path) -> str:
    return (folder / "said.txt").read_text()


def test_the_second_in_a_folder_is_told_who_is_at_work(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    first = start(folder, *COMMAND)
    while "\nJob " not in said(folder):
        assert first.poll() is None, said(folder)[-3000:]
        time.sleep(0.1)
    second = snakemake(*COMMAND, folder=folder)
    assert first.poll() is None, "the first was done before the second asked"
    assert second.returncode != 0
    assert f"Process {first.pid} is at work in this folder." in second.stdout
    assert "Directory cannot be locked" in second.stdout
    assert "Traceback" not in second.stdout
    planning = snakemake("--dry-run", *COMMAND, folder=folder)
    assert planning.returncode == 0, "a plan may always be asked for"
    assert first.wait(900) == 0, said(folder)[-3000:]
    third = snakemake(*COMMAND, folder=folder)
    assert third.returncode == 0 and "Nothing to be done" in third.stdout


def test_two_clones_share_one_cache_of_the_hub(tmp_path):
    """Both ask for the same revisions at the same time; each ends with the same bytes."""
    steps = revision_steps(powers_of_two=10, spacing=1000, last=143_000)
    targets = [f"{ROOT}/{part}/{RANGE}.csv" for part in ("probes", "kurtosis", "revisions")]
    clones = [copy_checkout(tmp_path / name) for name in ("one", "two")]
    arguments = [*targets, "--cores", "1", "--configfile", OVERRIDE]
    with TinyHub(pythia.models(steps), pythia.datasets()) as hub:
        environment = hub.environment(tmp_path / "home")
        runs = [start(clone, *arguments, environment=environment) for clone in clones]
        for run, clone in zip(runs, clones, strict=True):
            assert run.wait(900) == 0, said(clone)[-5000:]
        weights = hub.asked(r"resolve/.*/model\.safetensors", "GET")
    assert weights, "the weights came from this hub"
    made = [
        {path.relative_to(clone): path.read_bytes() for path in (clone / ROOT).rglob("*.csv")}
        for clone in clones
    ]
    assert set(map(Path, targets)) <= set(made[0])
    assert made[0] == made[1]
    left = [path for path in (tmp_path / "home").rglob("*") if path.suffix == ".incomplete"]
    assert left == []
