"""Two people at once: in one folder, and in two clones that share one cache of the hub."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from flatminima.suite import revision_steps
from tests.hub import pythia
from tests.hub.server import TinyHub
from tests.workflow import TINY, copy_checkout, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
COMMAND = ["results/tiny/suite.csv", "--cores", "1", "--configfile", TINY]
OVERRIDE = "tests/config/pythia_tiny.yaml"
ROOT = "results/pythia-160m"
RANGE = "step0-step16"
TABLES = ("probes", "kurtosis", "revisions")


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
    targets = [f"{ROOT}/{part}/{RANGE}.csv" for part in TABLES]
    clones = [copy_checkout(tmp_path / name) for name in ("one", "two")]
    arguments = [*targets, "--cores", "1", "--configfile", OVERRIDE]
    with TinyHub(pythia.models(steps), pythia.datasets()) as hub:
        environment = hub.environment(tmp_path / "home")
        runs = [start(clone, *arguments, environment=environment) for clone in clones]
        for run, clone in zip(runs, clones, strict=True):
            assert run.wait(900) == 0, said(clone)[-5000:]
        weights = hub.asked(r"resolve/.*/model\.safetensors", "GET")
    assert weights, "the weights came from this hub"
    made = [tables_of(clone) for clone in clones]
    assert set(map(Path, targets)) <= set(made[0])
    assert made[0] == made[1]
    assert unfinished_downloads(tmp_path / "home") == []


def test_two_suites_from_two_clones_share_one_cache_of_the_hub(tmp_path):
    """Text and tokenizer are the same files of the cache; each suite is as one run makes both."""
    steps = revision_steps(powers_of_two=10, spacing=1000, last=143_000)
    repositories = pythia.models(steps)
    repositories["somebody/another-run"] = {
        branch: dict(files) for branch, files in pythia.models(steps[5:])[pythia.REPO].items()
    }
    another = {"extends": "pythia-160m", "label": "another run (test suite, not Pythia)",
               "repo": "somebody/another-run", "grid": {"steps": steps[5:]},
               "probe": {"steps_per_job": 6}}  # fmt: skip
    names = ("one", "two", "alone")
    clones = {name: copy_checkout(tmp_path / name) for name in names}
    for clone in clones.values():
        (clone / "another.yaml").write_text(yaml.safe_dump({"suites": {"another": another}}))
    end = ["--cores", "1", "--configfile", OVERRIDE, "another.yaml"]
    targets = {
        "one": [f"{ROOT}/{part}/{RANGE}.csv" for part in TABLES],
        "two": [f"results/another/{part}/step16-step512.csv" for part in TABLES],
    }
    targets["alone"] = [*targets["one"], *targets["two"]]
    with TinyHub(repositories, pythia.datasets()) as hub:
        shared, own = (hub.environment(tmp_path / home) for home in ("home", "of-one"))
        runs = {name: start(clones[name], *targets[name], *end, environment=shared)
                for name in ("one", "two")}  # fmt: skip
        for name, run in runs.items():
            assert run.wait(900) == 0, said(clones[name])[-5000:]
        alone = start(clones["alone"], *targets["alone"], *end, environment=own)
        assert alone.wait(900) == 0, said(clones["alone"])[-5000:]
    made = {name: tables_of(clone) for name, clone in clones.items()}
    assert set(map(Path, targets["one"])) <= set(made["one"])
    assert set(map(Path, targets["two"])) <= set(made["two"])
    assert not set(made["one"]) & set(made["two"])
    assert made["one"] | made["two"] == made["alone"]
    assert unfinished_downloads(tmp_path / "home") == []


def tables_of(clone: Path) -> dict[Path, bytes]:
    """Every CSV under ``results/``."""
    return {
        path.relative_to(clone): path.read_bytes() for path in (clone / "results").rglob("*.csv")
    }


def unfinished_downloads(home: Path) -> list[Path]:
    """What an interrupted download leaves in the cache."""
    return [path for path in home.rglob("*") if path.suffix == ".incomplete"]
