"""Input that would do harm is refused or taken as the text it is; nothing of it is run."""

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from flatminima.errors import DamagedFile
from flatminima.hub import read_tensors
from flatminima.model import WEIGHTS_FILE, build_model, load_model, save_model
from tests.conftest import TINY, TINY_VOCABULARY
from tests.workflow import ROOT, copy_checkout, dry_run


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


def test_code_in_a_pickle_is_not_run(tmp_path, checkpoint):
    marker, file = tmp_path / "harm", checkpoint / "pytorch_model.bin"
    harmful, weights = {"weights": Harm(marker)}, (checkpoint / WEIGHTS_FILE).read_bytes()
    for of_torch in (False, True):
        torch.save(harmful, file) if of_torch else file.write_bytes(pickle.dumps(harmful))
        (checkpoint / WEIGHTS_FILE).write_bytes(weights)
        load_model(checkpoint)  # beside safetensors it is not looked at
        with pytest.raises(DamagedFile):
            read_tensors(file)
        (checkpoint / WEIGHTS_FILE).unlink()
        with pytest.raises(DamagedFile, match=str(checkpoint)):
            load_model(checkpoint)
        shutil.copy(file, checkpoint / WEIGHTS_FILE)
        with pytest.raises(DamagedFile, match=str(checkpoint)):
            load_model(checkpoint)
    assert not marker.exists()


def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path, checkpoint):
    """auto_map asks for classes of a file beside the weights."""
    marker, file = tmp_path / "harm", checkpoint / "config.json"
    (checkpoint / "modeling.py").write_text(f"open({str(marker)!r}, 'w')\nclass Model: pass\n")
    named = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "modeling.Model")
    config = json.loads(file.read_text()) | {"auto_map": named}
    file.write_text(json.dumps(config))  # a kind that transformers knows: its own class is taken
    assert type(load_model(checkpoint)).__module__.startswith("transformers.")
    file.write_text(json.dumps(config | {"model_type": "of_its_own"}))
    with pytest.raises(DamagedFile, match="wants code that came with it to be run, which is"):
        load_model(checkpoint)
    assert not marker.exists()


@pytest.mark.workflow
def test_targets_are_file_names_and_nothing_else(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    before = sorted(path.name for path in folder.iterdir())
    for target in (
        "results/mini/probes/$(touch harm).csv", "results/mini;touch harm/audit.csv",
        "results/mini/forks/`touch harm`-seed0.csv", "results/../harm.csv",
    ):  # fmt: skip
        run = dry_run(target, folder=folder)
        assert run.returncode != 0, target
        assert "Traceback" not in run.stdout, run.stdout
    after = {path.name for path in folder.iterdir()} - {".snakemake"}
    assert sorted(after) == before


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
