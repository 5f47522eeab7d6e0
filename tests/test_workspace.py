"""A training job that is killed goes on and ends with the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.workflow import ROOT
from workflow_scripts.lib.pretraining import pretrain
from workflow_scripts.lib.workspace import Workspace, fingerprint

SETTINGS = {
    "architecture": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_length": 16},
    "vocab_size": 64,
    "training": {
        "seed": 0, "schedule": "cosine_neox_v1", "lr_max": 0.01, "lr_min": 0.001,
        "warmup_steps": 2, "batch_size": 4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
        "weight_decay": 0.1, "clip_norm": 1.0,
    },
    "total_steps": 40,
    "start": 0,
    "stop": 40,
}  # fmt: skip
DUE = (0, 1, 2, 8, 16, 24, 32, 40)


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 64, (32, 16)).astype(np.int32)


def run(folder: Path, *, identity: str = "same", save_every: int = 4) -> None:
    """One training job with its outputs under ``folder``."""
    workspace = Workspace(folder / "unfinished", fingerprint(identity=identity), save_every)
    losses = pretrain(
        tokens(),
        checkpoints={step: str(folder / f"step{step}") for step in DUE},
        initial_state=None,
        final_state=str(folder / "state.safetensors"),
        workspace=workspace,
        **SETTINGS,
    )
    losses.to_csv(folder / "losses.csv", index=False)
    workspace.remove()


def outputs(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return outputs(folder)


class Killed(BaseException):
    """Stands for a kill between two updates."""


def test_outputs_are_what_was_asked_for(whole):
    assert {f"step{s}/model.safetensors" for s in DUE} <= set(whole)
    assert whole["step0/model.safetensors"] == whole["step1/model.safetensors"]
    assert whole["losses.csv"].count(b"\n") == 41


@pytest.mark.parametrize("at", [1, 3, 4, 5, 17, 39])
def test_a_run_that_was_stopped_ends_the_same(tmp_path, whole, monkeypatch, at):
    save = Workspace.save

    def stop(self, model, optimizer, step, losses):
        save(self, model, optimizer, step, losses)
        if step == at:
            raise Killed

    monkeypatch.setattr(Workspace, "save", stop)
    with pytest.raises(Killed):
        run(tmp_path)
    assert not list(tmp_path.glob("step*")), "nothing is in its place before the job is done"
    monkeypatch.undo()
    run(tmp_path)
    assert outputs(tmp_path) == whole


def test_a_kill_while_outputs_are_put_in_place(tmp_path, whole, monkeypatch):
    publish = Workspace.publish

    def half(self, files):
        publish(self, dict(list(files.items())[: len(files) // 2]))
        raise Killed

    monkeypatch.setattr(Workspace, "publish", half)
    with pytest.raises(Killed):
        run(tmp_path)
    monkeypatch.undo()
    for path in tmp_path.glob("step*/*"):
        path.unlink()  # Snakemake deletes the outputs of a job that failed
    run(tmp_path)
    assert outputs(tmp_path) == whole


def test_what_other_settings_left_behind_is_thrown_away(tmp_path, whole, monkeypatch):
    save = Workspace.save

    def stop(self, model, optimizer, step, losses):
        save(self, model, optimizer, step, losses)
        if step == 20:
            raise Killed

    monkeypatch.setattr(Workspace, "save", stop)
    with pytest.raises(Killed):
        run(tmp_path, identity="other settings")
    monkeypatch.undo()
    workspace = Workspace(tmp_path / "unfinished", fingerprint(identity="same"), 4)
    assert not workspace.state.exists()
    run(tmp_path)
    assert outputs(tmp_path) == whole


PROGRAM = "from pathlib import Path; from tests.test_workspace import run; run(Path({!r}))"


@pytest.mark.workflow
def test_sigkill_at_random_moments(tmp_path, whole):
    """A real process, killed five times wherever it stands."""
    random = np.random.default_rng(7)
    command = [sys.executable, "-c", PROGRAM.format(str(tmp_path))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = 0
    for _ in range(5):
        process = subprocess.Popen(command, env=environment, cwd=ROOT)
        started = time.monotonic()
        while not (tmp_path / "unfinished").exists() and time.monotonic() - started < 60:
            time.sleep(0.02)
        time.sleep(float(random.uniform(0.0, 0.4)))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=120)
    assert killed >= 1
    left = {name: data for name, data in outputs(tmp_path).items() if not name.endswith(".tmp")}
    assert left == whole
