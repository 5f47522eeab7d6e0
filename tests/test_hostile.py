"""Harmful input is refused or read as text. Its code is never run."""

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
    marker = tmp_path / "harm"
    file = checkpoint / "pytorch_model.bin"
    harmful = {"weights": Harm(marker)}
    weights = (checkpoint / WEIGHTS_FILE).read_bytes()
    for is_torch_file in (False, True):
        if is_torch_file:
            torch.save(harmful, file)
        else:
            file.write_bytes(pickle.dumps(harmful))
        (checkpoint / WEIGHTS_FILE).write_bytes(weights)
        load_model(checkpoint)  # reads the safetensors file only
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
    """auto_map in config.json names classes in a Python file of the checkpoint."""
    marker = tmp_path / "harm"
    file = checkpoint / "config.json"
    (checkpoint / "modeling.py").write_text(f"open({str(marker)!r}, 'w')\nclass Model: pass\n")
    auto_map = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "modeling.Model")
    config = json.loads(file.read_text()) | {"auto_map": auto_map}
    file.write_text(json.dumps(config))  # transformers has a class of its own for this type
    assert type(load_model(checkpoint)).__module__.startswith("transformers.")
    file.write_text(json.dumps(config | {"model_type": "of_its_own"}))
    with pytest.raises(DamagedFile, match=str(checkpoint)):
        load_model(checkpoint)
    assert not marker.exists()


@pytest.mark.workflow
def test_targets_are_file_names_and_never_run(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    before = sorted(path.name for path in folder.iterdir())
    for target in (
        "results/mini/probes/$(touch harm).csv",
        "results/mini;touch harm/audit.csv",
        "results/mini/forks/`touch harm`-seed0.csv",
        "results/../harm.csv",
    ):
        run = dry_run(target, folder=folder)
        assert run.returncode != 0, target
        assert "Traceback" not in run.stdout, run.stdout
    after = {path.name for path in folder.iterdir()} - {".snakemake"}
    assert sorted(after) == before


@pytest.mark.slow
def test_no_package_of_the_lock_file_has_a_known_vulnerability():
    """Uses the service of pip-audit. Skipped if the tool or the service is not available."""
    tool = shutil.which("pip-audit")
    if tool is None:
        pytest.skip("pip-audit is not installed: pip install pip-audit")
    lock_file = ROOT / "envs" / "requirements.lock"
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    command = [tool, *options, "--requirement", lock_file]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if not run.stdout and "connect" in run.stderr.lower():
        pytest.skip(f"pip-audit reaches no service here: {run.stderr[-200:]}")
    packages = json.loads(run.stdout)["dependencies"]
    assert "torch" in {package["name"] for package in packages}, "the lock file was not read"
    vulnerable = [
        f"{package['name']} {package['version']}" for package in packages if package.get("vulns")
    ]
    assert vulnerable == []
