"""``make plan`` and ``make freeze`` as a person runs them, in a checkout of their own."""

import shutil

import pytest

from flatminima.model import build_model, save_model
from tests.conftest import TINY
from tests.hub.repos import config_bytes
from tests.hub.server import TinyHub
from tests.workflow import copy_checkout, dry_run, flatminima, planned

pytestmark = pytest.mark.workflow

OWN = """
suites:
  named:
    extends: pythia-70m
    label: branches that say more than the step
    repo: tiny/olmo
    revision: 'stage1-step(?P<step>\\d+)-tokens(?P<billions>\\d+)B'
    grid: discover
    training:
"""
LACKS = """
suite: mine
suites:
  mine:
    label: a run whose text is missing
    source: local
    pattern: runs/mine/checkpoint-{step}
    text: {source: files, validation: [{path: nowhere.txt}]}
    batches: {validation: {sequences: 8, length: 16}}
"""
STEPS = {0: 0, 300: 1, 10000: 21, 20000: 42}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = copy_checkout(tmp_path_factory.mktemp("commands"))
    (folder / "own.yaml").write_text(OWN)
    return folder


@pytest.fixture(scope="module")
def hub():
    content = {"config.json": config_bytes()}
    branches = {f"stage1-step{step}-tokens{n}B": content for step, n in STEPS.items()}
    branches |= {"main": content, "stage2-ingredient1-step1000-tokens3B": content}
    with TinyHub({"tiny/olmo": branches}) as server:
        yield server


def test_a_suite_is_frozen_once_and_then_planned_without_the_hub(checkout, hub, tmp_path):
    own, environment = ("--configfile", "own.yaml"), hub.environment(tmp_path)
    before = dry_run("results/named/suite.csv", *own, folder=checkout)
    assert "make freeze SUITE=named lists them from the hub" in before.stdout
    run = flatminima("freeze", "--suite", "named", *own, folder=checkout, **environment)
    assert run.returncode == 0, run.stderr
    assert "4 revisions of tiny/olmo, step 0 to 20,000" in run.stdout
    lines = (checkout / "resources/revisions/named.csv").read_text().splitlines()
    assert lines[0] == "step,branch,commit" and len(lines) == 5
    branch = "stage1-step10000-tokens21B"
    assert lines[3] == f"10000,{branch},{hub.commit('tiny/olmo', branch)}"
    for suite, line in (
        ("mini", "Error: suite mini: its source is pretrain, not hub"),
        ("pythia-70m", "EleutherAI/pythia-70m at its list of branches: "),
    ):
        run = flatminima("freeze", "--suite", suite, folder=checkout, **environment)
        assert run.returncode == 2 and line in run.stderr
        assert "Traceback" not in run.stderr and run.stderr.count("\n") == 1, run.stderr
    assert not (checkout / "resources/revisions/pythia-70m.csv").exists()
    hub.requests.clear()
    assert planned("results/named/suite.csv", *own, folder=checkout)
    assert hub.requests == []


def test_outside_a_clone_a_command_says_what_is_missing(checkout, tmp_path):
    """As after ``pip install``: the package alone; then in a clone that is not the package's."""
    shutil.copytree(checkout / "workflow_scripts/flatminima", tmp_path / "installed/flatminima")
    for name, folder, line in (
        ("plan", tmp_path, "no Snakefile in"), ("freeze", checkout, "it is .venv/bin/flatminima"),
    ):  # fmt: skip
        run = flatminima(name, folder=folder, PYTHONPATH=str(tmp_path / "installed"))
        assert run.returncode == 2 and run.stdout == "" and line in run.stderr
        assert run.stderr.startswith(f"Error: {name} ") and run.stderr.count("\n") == 1, run.stderr


def test_the_plan_of_a_suite_is_printed_and_its_hours_follow_from_a_measurement(checkout):
    run = flatminima("plan", "--suite", "pythia-160m", "--seconds", "0", folder=checkout)
    assert run.returncode == 0, run.stderr
    for text in ("Pythia-160m", "154", "162,322,944 parameters", "58.1 GB", "375.0 MB each",
                 "7.8e+15 FLOP", "9 forks", "jobs left", "probe_revision"):  # fmt: skip
        assert text in run.stdout, text
    assert "measured" not in run.stdout.replace("is not measured", ""), "nothing was timed"
    run = flatminima("plan", "--seconds", "0.1", folder=checkout)
    assert run.returncode == 0, run.stderr
    for text in ("mini (embedded suite, not Pythia)", "timed on", "measured: 16 x 64 tokens",
                 "time, all"):  # fmt: skip
        assert text in run.stdout, text


def test_a_missing_text_is_said_and_nothing_called_done(checkout):
    for step in (1, 2):
        save_model(build_model(TINY, 64, seed=step), checkout / f"runs/mine/checkpoint-{step}")
    (checkout / "runs/mine/tokenizer.json").write_text("{}")
    (checkout / "lacks.yaml").write_text(LACKS)
    run = flatminima("plan", "--configfile", "lacks.yaml", "--seconds", "0", folder=checkout)
    assert run.returncode == 1
    assert "no such file" in run.stderr and "nowhere.txt" in run.stderr
    assert "not known" in run.stdout and "everything is done" not in run.stdout
