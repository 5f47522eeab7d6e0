"""Input that would do harm is refused or taken as the text it is; nothing of it is run."""

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from flatminima.config.checks import check_config
from flatminima.errors import ConfigError, DamagedFile
from flatminima.hub.weights import WeightsRefused, read_tensors
from flatminima.model import WEIGHTS_FILE, build_model, load_model, save_model
from flatminima.notebooks.results import open_results
from tests.conftest import TINY, TINY_VOCABULARY
from tests.test_config import CONFIG, SCHEMA, changed, plan_everything
from tests.workflow import ROOT, copy_checkout, snakemake

# Checkpoints


class Harm:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    save_model(build_model(TINY, TINY_VOCABULARY, seed=0), tmp_path / "step7")
    return tmp_path / "step7"


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_code_in_a_pickle_is_not_run(tmp_path, checkpoint, form):
    marker, file = tmp_path / "harm", checkpoint / "pytorch_model.bin"
    harmful = {"weights": Harm(marker)}
    if form == "pickle":
        file.write_bytes(pickle.dumps(harmful))
    else:
        torch.save(harmful, file)
    with pytest.raises(WeightsRefused):
        read_tensors(file, file.name)
    (checkpoint / WEIGHTS_FILE).unlink()
    with pytest.raises(DamagedFile, match=str(checkpoint)):
        load_model(checkpoint)
    shutil.copy(file, checkpoint / WEIGHTS_FILE)
    with pytest.raises(DamagedFile, match=str(checkpoint)):
        load_model(checkpoint)
    assert not marker.exists()


def test_a_pickle_beside_safetensors_is_not_looked_at(tmp_path, checkpoint):
    marker = tmp_path / "harm"
    torch.save({"weights": Harm(marker)}, checkpoint / "pytorch_model.bin")
    load_model(checkpoint)
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["gpt_neox", "of_its_own"])
def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path, checkpoint, kind):
    """auto_map asks for classes of a file beside the weights."""
    marker = tmp_path / "harm"
    (checkpoint / "modeling.py").write_text(f"open({str(marker)!r}, 'w')\nclass Model: pass\n")
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {
        "model_type": kind,
        "auto_map": {"AutoConfig": "modeling.Model", "AutoModelForCausalLM": "modeling.Model"},
    }
    (checkpoint / "config.json").write_text(json.dumps(config))
    if kind == "gpt_neox":  # a kind that transformers knows: its own class is taken
        assert type(load_model(checkpoint)).__module__.startswith("transformers.")
    else:
        with pytest.raises(DamagedFile, match="wants code that came with it to be run, which is"):
            load_model(checkpoint)
    assert not marker.exists()


# Names in the configuration

HOSTILE = [
    "../../outside", "/etc/passwd", "a b", "a\nb", "a\n", "a'b", 'a"b', "$(touch harm)",
    "`touch harm`", "a;touch harm", "a|touch harm", "a&touch harm", "{wildcard}", "-rf", "~root",
    "a\x00b", "a\u2028b", "%(name)s", "", " ", ".", "..", "<script>alert(1)</script>",
]  # fmt: skip
NAMES = ["suites", "quantizers", "suites.mini.fork.schedules"]
IDENTIFIERS = [
    "suites.pythia-160m.repo", "suites.pythia-160m.tokenizer.repo",
    "suites.pythia-160m.tokenizer.revision", "suites.mini.probe.low_bit", "suite",
    "suites.mini.training.schedule", "suites.mini.device", "suites.mini.text.source",
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
@pytest.mark.parametrize("place", NAMES)
def test_a_name_that_is_more_than_a_name_is_refused(place, hostile):
    section = CONFIG
    for part in place.split("."):
        section = section[part]
    config = changed(place, {**section, hostile: next(iter(section.values()))})
    with pytest.raises(ConfigError) as error:
        check_config(config, SCHEMA)
    assert "\n" not in str(error.value) and place.split(".")[-1] in str(error.value)


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
@pytest.mark.parametrize("place", IDENTIFIERS)
def test_an_identifier_that_is_more_than_one_is_refused(place, hostile):
    with pytest.raises(ConfigError) as error:
        check_config(changed(place, hostile), SCHEMA)
    assert "\n" not in str(error.value) and place in str(error.value)


FILES = [
    ("text.validation", {"repo": "a/b", "file": "../../etc/passwd.jsonl"}, "leads out of"),
    ("text.validation", {"repo": "a/b", "file": "/etc/passwd.jsonl"}, "leads out of"),
    ("text.validation", {"repo": "../b", "file": "x.jsonl"}, "is no repository of the hub"),
    ("text.validation", {"repo": "a/b/c", "file": "x.jsonl"}, "is no repository of the hub"),
    ("text.validation", {"repo": "a b", "file": "x.jsonl"}, "is no repository of the hub"),
    ("text.validation", {"repo": "a/b", "file": "x.jsonl", "revision": "a b"}, "is no branch"),
    ("text.validation", {"repo": "a/b", "file": "x.jsonl", "revision": "../x"}, "is no branch"),
    ("text.validation", {"repo": "a/b", "file": "x\n.jsonl"}, "cannot be printed"),
    ("text.validation", {"path": "x\n.jsonl"}, "cannot be printed"),
    ("label", "two\nlines", "cannot be printed"),
    ("label", "<script>alert(1)</script>", "would be read as markup"),
    ("label", "$\\input{/etc/passwd}$", "would be read as markup"),
    ("revision", "(?P<step>[0-9]+", "is no regular expression"),
]


@pytest.mark.parametrize(("place", "value", "said"), FILES)
def test_a_text_that_would_do_harm_is_refused(place, value, said):
    value = [value] if isinstance(value, dict) else value
    with pytest.raises(ConfigError) as error:
        check_config(changed(f"suites.pythia-160m.{place}", value), SCHEMA)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert f"suites.pythia-160m.{place}" in str(error.value)


def test_names_of_the_hub_and_of_people_are_taken():
    for place, value in (
        ("repo", "EleutherAI/pythia-160m-deduped"), ("repo", "gpt2"), ("repo", "a.b/c_d-e.f"),
        ("tokenizer.revision", "refs/pr/7"), ("tokenizer.revision", "step143000"),
        ("label", "Pythia-160m (seed 3, 70 %), Émile's & co."),
    ):  # fmt: skip
        config = changed(f"suites.pythia-160m.{place}", value)
        check_config(config, SCHEMA)
        plan_everything(config)


# Sizes


def bomb(levels: int = 9) -> str:
    """A few lines of YAML that stand for 9 ** levels values."""
    lines = ["x0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for level in range(1, levels):
        lines.append(f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n"


PLACES = ["suite", "suites", "suites.mini", "suites.mini.label", "suites.mini.fork.seeds",
          "suites.mini.text.packages", "suites.mini.grid", "quantizers"]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["lists", "mappings"])
def test_a_yaml_bomb_is_refused_at_once(place, kind):
    """It is counted and never written out: that would take hours, or all of the memory."""
    value: object = yaml.safe_load(bomb())["x8"]
    if kind == "mappings":
        value = {"k": 1}
        for _ in range(40):
            value = {"a": value, "b": value}
    with pytest.raises(ConfigError) as error:
        check_config(changed(place, value), SCHEMA)
    assert f"config key {place}" in str(error.value) and "more than 200,000" in str(error.value)
    assert len(str(error.value)) < 300


def test_a_value_that_holds_itself_is_refused():
    config = changed("suites.mini.fork.seeds", yaml.safe_load("&a [1, *a]"))
    with pytest.raises(ConfigError, match="config key suites.mini.fork.seeds.1: refers to itself"):
        check_config(config, SCHEMA)
    deep: list = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(ConfigError, match="nested too deep"):
        check_config(changed("suites.mini.label", deep), SCHEMA)


def test_what_stands_there_twice_is_not_a_bomb():
    shared = yaml.safe_load("{a: &a {bits: 4, granularity: tensor, symmetric: true}, b: *a}")
    check_config(changed("quantizers", {**CONFIG["quantizers"], **shared}), SCHEMA)


@pytest.mark.workflow
def test_snakemake_ends_with_one_line_on_a_bomb(tmp_path):
    text = f"{bomb()}suites: {{mini: {{label: *x8}}}}\n"
    (tmp_path / "bomb.yaml").write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "snakemake", "--dry-run", "--configfile", tmp_path / "bomb.yaml"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31)),
    )  # fmt: skip
    assert run.returncode != 0
    said = [line for line in (run.stdout + run.stderr).splitlines() if line.startswith("Error")]
    assert len(said) == 1 and "more than 200,000 values" in said[0]


# Targets and what jobs are called


@pytest.mark.workflow
def test_targets_are_file_names_and_nothing_else(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    before = sorted(path.name for path in folder.iterdir())
    for target in (
        "results/mini/probes/step0;touch harm.csv", "results/mini/probes/$(touch harm).csv",
        "results/mini/claims/C39;touch harm.json", "results/../harm.csv", "/harm.csv",
        "results/mini/forks/`touch harm`-seed0.csv", "results/mini;touch harm/audit.csv",
        "results/mini/forks/cosine-seed0;touch harm.csv", "results/a b\nc/audit.csv",
    ):  # fmt: skip
        run = snakemake(target, "--cores", "1", folder=folder)
        assert run.returncode != 0, target
        assert "Traceback" not in run.stdout, run.stdout
    after = {path.name for path in folder.iterdir()} - {".snakemake"}
    assert sorted(after) == before


# Notebooks


@pytest.mark.parametrize(
    "name", ["x'; import os; os.system('touch harm'); '", "../..", "$(touch harm)", "{{7*7}}", ""]
)
def test_a_notebook_parameter_with_code_is_a_name_that_is_not_known(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="SUITE"):
        open_results({"SUITE": name})
    assert list(tmp_path.iterdir()) == []


def test_the_settings_of_a_notebook_are_read_as_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        open_results({"SUITE": "mini", "SUITE_SETTINGS": "__import__('os').system('touch harm')"})
    assert list(tmp_path.iterdir()) == []


# Packages


@pytest.mark.slow
def test_no_package_of_the_lock_file_has_a_known_hole():
    """Asks the service that pip-audit asks; skipped by name where it is not there."""
    tool = shutil.which("pip-audit")
    if tool is None:
        pytest.skip("pip-audit is not installed: pip install pip-audit")
    run = subprocess.run(
        [tool, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off",
         "--requirement", ROOT / "envs" / "requirements.lock"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if not run.stdout and "connect" in run.stderr.lower():
        pytest.skip(f"pip-audit reaches no service here: {run.stderr[-200:]}")
    found = json.loads(run.stdout)["dependencies"]
    assert "torch" in {package["name"] for package in found}, "the lock file was not looked at"
    holes = [f"{p['name']} {p['version']}" for p in found if p.get("vulns")]
    assert holes == []
    unknown = [package["name"] for package in found if "vulns" not in package]
    if unknown:  # nothing is said of these, so the test has not passed
        known = len(found) - len(unknown)
        pytest.skip(f"{known} packages have no known hole; unknown to the service: {unknown}")


def test_the_weights_of_a_test_are_tensors(checkpoint):
    assert load_file(checkpoint / WEIGHTS_FILE)
