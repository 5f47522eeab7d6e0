"""The commands ``flatminima plan`` and ``flatminima freeze``, in a copy of the checkout."""

import shutil

import pytest

from flatminima.model import build_model, save_model
from tests.conftest import TINY
from tests.hub.repos import config_bytes
from tests.hub.server import TinyHub
from tests.workflow import copy_checkout, dry_run, flatminima, planned

pytestmark = pytest.mark.workflow

NAMED_SUITE = """
suites:
  named:
    extends: pythia-70m
    label: branches whose names contain more than the step
    repo: tiny/olmo
    revision: 'stage1-step(?P<step>\\d+)-tokens(?P<billions>\\d+)B'
    grid: discover
    training:
"""
SUITE_WITHOUT_TEXT = """
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
    (folder / "own.yaml").write_text(NAMED_SUITE)
    return folder


@pytest.fixture(scope="module")
def hub():
    content = {"config.json": config_bytes()}
    branches = {f"stage1-step{step}-tokens{n}B": content for step, n in STEPS.items()}
    branches |= {"main": content, "stage2-ingredient1-step1000-tokens3B": content}
    with TinyHub({"tiny/olmo": branches}) as server:
        yield server


def test_a_suite_is_frozen_once_and_then_planned_without_the_hub(checkout, hub, tmp_path):
    configuration = ("--configfile", "own.yaml")
    environment = hub.environment(tmp_path)
    run = dry_run("results/named/suite.csv", *configuration, folder=checkout)
    assert "make freeze SUITE=named" in run.stdout
    run = flatminima("freeze", "--suite", "named", *configuration, folder=checkout, **environment)
    assert run.returncode == 0, run.stderr
    assert "4 revisions of tiny/olmo, step 0 to 20,000" in run.stdout
    lines = (checkout / "resources/revisions/named.csv").read_text().splitlines()
    assert lines[0] == "step,branch,commit" and len(lines) == 5
    branch = "stage1-step10000-tokens21B"
    assert lines[3] == f"10000,{branch},{hub.commit('tiny/olmo', branch)}"
    for suite, part in (("mini", "source is pretrain"), ("pythia-70m", "list of branches")):
        run = flatminima("freeze", "--suite", suite, folder=checkout, **environment)
        assert run.returncode == 2
        assert suite in run.stderr and part in run.stderr
        assert "Traceback" not in run.stderr and run.stderr.count("\n") == 1, run.stderr
    assert not (checkout / "resources/revisions/pythia-70m.csv").exists()
    hub.requests.clear()
    assert planned("results/named/suite.csv", *configuration, folder=checkout)
    assert hub.requests == []


def test_commands_of_a_clone_refuse_to_run_elsewhere(checkout, tmp_path):
    """After ``pip install`` there is no clone. A clone may also belong to another package."""
    shutil.copytree(checkout / "workflow_scripts/flatminima", tmp_path / "installed/flatminima")
    for name, folder, part in (
        ("plan", tmp_path, "Snakefile"),
        ("freeze", checkout, "make freeze"),
    ):
        run = flatminima(name, folder=folder, PYTHONPATH=str(tmp_path / "installed"))
        assert run.returncode == 2
        assert run.stdout == ""
        assert run.stderr.startswith("Error: ") and part in run.stderr
        assert run.stderr.count("\n") == 1, run.stderr


def test_the_plan_of_a_suite_is_printed_and_its_hours_follow_from_a_measurement(checkout):
    run = flatminima("plan", "--suite", "pythia-160m", "--seconds", "0", folder=checkout)
    assert run.returncode == 0, run.stderr
    for text in (
        *("Pythia-160m", "154", "162,322,944 parameters", "58.1 GB", "375.0 MB"),
        *("1e+16 FLOP", "4 forward passes", "9 forks", "probe_revision"),
    ):
        assert text in run.stdout, text
    assert "measured" not in run.stdout.replace("is not measured", ""), "nothing was timed"
    run = flatminima("plan", "--seconds", "0.1", folder=checkout)
    assert run.returncode == 0, run.stderr
    for text in ("mini (embedded suite, not Pythia)", "16 x 64 tokens", "time, all"):
        assert text in run.stdout, text


def test_a_plan_with_a_missing_text_fails(checkout):
    for step in (1, 2):
        save_model(build_model(TINY, 64, seed=step), checkout / f"runs/mine/checkpoint-{step}")
    (checkout / "runs/mine/tokenizer.json").write_text("{}")
    (checkout / "lacks.yaml").write_text(SUITE_WITHOUT_TEXT)
    run = flatminima("plan", "--configfile", "lacks.yaml", "--seconds", "0", folder=checkout)
    assert run.returncode == 1
    assert "no such file" in run.stderr and "nowhere.txt" in run.stderr
    assert "not known" in run.stdout and "everything is done" not in run.stdout
