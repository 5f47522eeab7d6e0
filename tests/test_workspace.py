"""A training job that is killed goes on and ends with the same bits."""

import multiprocessing
import os
import signal
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flatminima.training.pretraining import pretrain

from flatminima.model import save_tensors
from flatminima.text.tokens import write_tokens
from flatminima.training.workspace import Workspace, fingerprint
from workflow_scripts import pretrain_suite, train_fork

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


# A fork, with its probes, and a later training job, through the scripts that rules run

FORK = {
    "definition": {"kind": "oli", "bump_steps": 1, "cool_steps": 3, "amplitude": 5.0,
                   "first": "cool"},
    "fork": {"start": 8, "steps": 12, "probe_every": 3, "batch_size": 4,
             "optimizer_state": "restored"},
    "training": SETTINGS["training"],
    "total_steps": 40,
}  # fmt: skip
PROBE = {
    "quantizers": {
        "int4": {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False},
        "int8": {"bits": 8, "granularity": "channel", "symmetric": True},
    },
    "roles": {"int4": "low_bit", "int8": "high_bit"},
    "batch_size": 4,
    "resamples": 20,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> dict[str, str]:
    """Inputs of a fork: checkpoint and state of step 8, training and validation tokens."""
    folder = tmp_path_factory.mktemp("start")
    inputs = {name: str(folder / f"{name}.safetensors") for name in ("train", "validation")}
    write_tokens(inputs["train"], tokens())
    write_tokens(inputs["validation"], tokens()[:6])
    train_until(folder, 8, train=inputs["train"])
    weights = str(folder / "step8" / "model.safetensors")
    return inputs | {"weights": weights, "state": str(folder / "state8.safetensors")}


def train_until(folder: Path, stop: int, *, train: str, state: str | None = None,
                begin: int = 0, due=DUE, code: str = "abc") -> None:  # fmt: skip
    """The script of ``pretrain_suite`` from ``begin`` to ``stop``."""
    pretrain_suite.main(
        train=train,
        initial_state=state,
        checkpoints={
            s: str(folder / f"step{s}") for s in due if begin < s <= stop or s == begin == 0
        },
        final_state=str(folder / f"state{stop}.safetensors"),
        losses=str(folder / f"losses{stop}.csv"),
        workspace=str(folder / "unfinished"),
        save_every=3,
        threads=1,
        settings={**SETTINGS, "start": begin, "stop": stop},
        code=code,
    )


def run_fork(folder: Path, inputs: dict, **changes) -> None:
    """The script of ``train_fork``."""
    arguments = {
        "settings": FORK, "probe": PROBE, "threads": 1, "save_every": 5, "code": "abc", "seed": 3,
        "workspace": str(folder / "unfinished"),
        "outputs": {"losses": folder / "f.csv", "sequences": folder / "f.parquet",
                    "provenance": folder / "f.json"},
    }  # fmt: skip
    train_fork.main(inputs=inputs, **(arguments | changes))


@pytest.fixture(scope="module")
def whole_fork(start, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("fork")
    run_fork(folder, start)
    return outputs(folder)


def interrupted(monkeypatch, at: int, *, before_saving: bool, job) -> None:
    """Run ``job`` until an update is done, and stop it there before or after the state is saved."""
    save = Workspace.save

    def stop(self, model, optimizer, step, losses):
        if not before_saving or step != at:
            save(self, model, optimizer, step, losses)
        if step == at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "save", stop)
        with pytest.raises(Killed):
            job()


def test_a_fork_has_a_loss_per_update_and_a_score_per_probe_and_sequence(whole_fork):
    assert set(whole_fork) == {"f.csv", "f.parquet", "f.json"}
    assert whole_fork["f.csv"].count(b"\n") == 1 + 12
    scores = pd.read_parquet(BytesIO(whole_fork["f.parquet"]))
    assert len(scores) == 4 * 3 * 6 and list(scores["step"].unique()) == [11, 14, 17, 20]


@pytest.mark.parametrize("before_saving", [True, False])
@pytest.mark.parametrize("at", [9, 10, 11, 15, 17, 20])
def test_a_fork_that_was_stopped_ends_the_same(
    tmp_path, start, whole_fork, monkeypatch, at, before_saving
):
    def job():
        run_fork(tmp_path, start)

    interrupted(monkeypatch, at, before_saving=before_saving, job=job)
    assert not list(tmp_path.glob("f.*"))
    job()
    assert outputs(tmp_path) == whole_fork


def test_a_fork_that_was_stopped_again_and_again_ends_the_same(
    tmp_path, start, whole_fork, monkeypatch
):
    def job():
        run_fork(tmp_path, start)

    for at in (10, 12, 15, 18, 20):
        interrupted(monkeypatch, at, before_saving=False, job=job)
    job()
    assert outputs(tmp_path) == whole_fork


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"code": "abd"},
        {"settings": {**FORK, "definition": {**FORK["definition"], "amplitude": 2.0}}},
        {"probe": {**PROBE, "batch_size": 2}},
    ],
    ids=["seed", "code", "amplitude", "probe"],
)
def test_a_fork_does_not_go_on_from_what_other_settings_left(
    tmp_path, start, whole_fork, monkeypatch, other
):
    interrupted(
        monkeypatch, 15, before_saving=False, job=lambda: run_fork(tmp_path, start, **other)
    )
    assert (tmp_path / "unfinished" / "state.safetensors").exists()
    run_fork(tmp_path, start)
    assert outputs(tmp_path) == whole_fork


def test_a_second_training_job_that_was_stopped_ends_the_same(tmp_path, start, whole, monkeypatch):
    def job():
        train_until(tmp_path, 40, train=start["train"], state=start["state"], begin=8)

    interrupted(monkeypatch, 20, before_saving=False, job=job)
    job()
    made = outputs(tmp_path)
    assert {name for name in made if name.startswith("step")} == {
        f"step{step}/{file}"
        for step in (16, 24, 32, 40)
        for file in ("model.safetensors", "config.json", "SHA256SUMS")
    }
    # Two jobs make the checkpoints that one makes.
    assert all(made[name] == whole[name] for name in made if name.startswith("step"))


@pytest.mark.parametrize("due", [(0, 1, 2, 3, 4, 8), (0, 1, 8)], ids=["finer", "coarser"])
def test_a_job_whose_grid_was_changed_after_a_kill_starts_over(tmp_path, start, monkeypatch, due):
    """What the killed job had written lacks the checkpoints that the new grid asks for."""
    (tmp_path / "job").mkdir()
    (tmp_path / "clean").mkdir()
    job = tmp_path / "job"
    interrupted(
        monkeypatch, 7, before_saving=False,
        job=lambda: train_until(job, 8, train=start["train"]),
    )  # fmt: skip
    train_until(job, 8, train=start["train"], due=due)
    train_until(tmp_path / "clean", 8, train=start["train"], due=due)
    # The state says which job it belongs to, so all files are compared.
    assert outputs(job) == outputs(tmp_path / "clean")


def test_a_state_of_another_making_is_thrown_away(tmp_path):
    folder = tmp_path / "unfinished"
    folder.mkdir()
    save_tensors(folder / "state.safetensors", {"x": torch.zeros(1)}, {"format": "pt"})
    (folder / "step3").mkdir()
    workspace = Workspace(folder, fingerprint(identity="same"), 4)
    assert list(folder.iterdir()) == [] and workspace.folder == folder


def test_files_are_put_in_place_where_links_are_impossible(tmp_path, whole, monkeypatch):
    def refuse(*names):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    run(tmp_path)
    assert outputs(tmp_path) == whole


# A real kill

# Children of a server that has imported everything: a kill costs no import of torch.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tests.test_workspace", "transformers.models.gpt_neox.modeling_gpt_neox"]
)


def wait_for(path: Path, process) -> None:
    started = time.monotonic()
    while process.is_alive() and not path.exists() and time.monotonic() - started < 120:
        time.sleep(0.0005)


@pytest.mark.workflow
def test_sigkill_wherever_a_job_stands(tmp_path, whole):
    """A real process, killed again and again a random moment after each of its checkpoints."""
    random = np.random.default_rng(7)
    unfinished, killed = tmp_path / "unfinished", 0
    for step in (0, 2, 8, 16, 24, 32, 40):
        process = PROCESSES.Process(target=run, args=(tmp_path,))
        process.start()
        wait_for(unfinished / f"step{step}", process)
        time.sleep(float(random.uniform(0.0, 0.02)))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        if unfinished.exists():  # Snakemake deletes the outputs of a job that failed
            for path in (*tmp_path.glob("step*/*"), *tmp_path.glob("*.safetensors")):
                path.unlink()
    assert killed >= 6
    process = PROCESSES.Process(target=run, args=(tmp_path,))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert outputs(tmp_path) == whole, "temporary files of the killed writers are gone as well"
