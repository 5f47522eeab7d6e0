"""A training job that is killed goes on and ends with the same bits; a fork writes weights only."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flatminima.files import read_json
from flatminima.text.tokens import write_tokens
from flatminima.training.workspace import Workspace
from tests.conftest import PROBE
from workflow_scripts import pretrain_suite, probe_checkpoints, train_fork

SETTINGS = {
    "architecture": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_length": 16},
    "vocab_size": 64,
    "training": {
        "seed": 0,
        "schedule": "cosine_neox_v1",
        "lr_max": 0.01,
        "lr_min": 0.001,
        "warmup_steps": 2,
        "batch_size": 4,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
    },
    "total_steps": 40,
}
DUE = (0, 1, 2, 8, 16, 24, 32, 40)


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 64, (32, 16)).astype(np.int32)


def train_until(
    folder: Path,
    stop: int,
    *,
    train: str,
    state: str | None = None,
    begin: int = 0,
    due=DUE,
    code: str = "abc",
) -> None:
    """The script of ``pretrain_suite`` from ``begin`` to ``stop``."""
    pretrain_suite.main(
        train=train,
        initial_state=state,
        folders={s: str(folder / f"step{s}") for s in due if begin < s <= stop or s == begin == 0},
        final_state=str(folder / f"state{stop}.safetensors"),
        losses=str(folder / f"losses{stop}.csv"),
        workspace=str(folder / "unfinished"),
        save_every=3,
        threads=1,
        settings={**SETTINGS, "start": begin, "stop": stop},
        code=code,
    )


FORK = {
    "definition": {
        "kind": "oli",
        "bump_steps": 1,
        "cool_steps": 3,
        "amplitude": 5.0,
        "first": "cool",
    },
    "fork": {
        "start": 8,
        "steps": 12,
        "probe_every": 3,
        "batch_size": 4,
        "optimizer_state": "restored",
    },
    "training": {k: v for k, v in SETTINGS["training"].items() if k not in ("seed", "batch_size")},
    "total_steps": 40,
    "compute": {},
}


def run_fork(folder: Path, inputs: dict, **changes) -> None:
    """The script of ``train_fork``."""
    arguments = {
        "settings": FORK,
        "threads": 1,
        "save_every": 5,
        "code": "abc",
        "seed": 3,
        "device": "cpu",
        "source": str(Path(inputs["weights"]).parent),
        "key": "fork.schedules.oli",
        "workspace": str(folder / "unfinished"),
        "checkpoints": str(folder / "checkpoints"),
        "losses": str(folder / "f.csv"),
        "provenance": str(folder / "f.json"),
    }
    inputs = {name: path for name, path in inputs.items() if name != "validation"}
    train_fork.main(inputs=inputs, **(arguments | changes))


def outputs(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Killed(BaseException):
    """Stands for a kill between two updates."""


def interrupted(monkeypatch, at: int, *, before_saving: bool = False, job) -> None:
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


@pytest.fixture(scope="module")
def train(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("tokens") / "train.safetensors")
    write_tokens(path, tokens())
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, train) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    train_until(folder, 40, train=train)
    return outputs(folder)


# The training of a suite


def test_outputs_are_what_was_asked_for(whole):
    files = ("model.safetensors", "config.json", "SHA256SUMS")
    names = {f"step{step}/{name}" for step in DUE for name in files}
    assert set(whole) == names | {"state40.safetensors", "losses40.csv"}
    assert whole["step0/model.safetensors"] == whole["step1/model.safetensors"]
    assert whole["losses40.csv"].count(b"\n") == 41


@pytest.mark.parametrize("links", [True, False])
def test_a_kill_while_outputs_are_put_in_place(tmp_path, train, whole, monkeypatch, links):
    """Files are linked, or copied where links are impossible."""

    def refuse(*names):
        raise PermissionError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    publish = Workspace.publish

    def half(self, folders):
        publish(self, dict(list(folders.items())[: len(folders) // 2]))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "publish", half)
        with pytest.raises(Killed):
            train_until(tmp_path, 40, train=train)
    for path in tmp_path.glob("step*/*"):
        path.unlink()  # Snakemake deletes the outputs of a job that failed
    train_until(tmp_path, 40, train=train)
    assert outputs(tmp_path) == whole


def test_a_second_job_that_was_stopped_makes_what_one_makes(tmp_path, start, whole, monkeypatch):
    def job():
        train_until(tmp_path, 40, train=start["train"], state=start["state"], begin=8)

    interrupted(monkeypatch, 20, job=job)
    assert not list(tmp_path.glob("step*")), "nothing is in its place before the job is done"
    job()
    made = {name: data for name, data in outputs(tmp_path).items() if name.startswith("step")}
    later = ("step16", "step24", "step32", "step40")
    assert made == {name: data for name, data in whole.items() if name.startswith(later)}


@pytest.mark.parametrize("due", [(0, 1, 2, 3, 4, 8), (0, 1, 8)], ids=["finer", "coarser"])
def test_a_job_whose_grid_was_changed_after_a_kill_starts_over(tmp_path, start, monkeypatch, due):
    """What the killed job had written lacks the checkpoints that the new grid asks for."""
    job = tmp_path / "job"
    clean = tmp_path / "clean"
    interrupted(monkeypatch, 7, job=lambda: train_until(job, 8, train=start["train"]))
    for folder in (job, clean):
        train_until(folder, 8, train=start["train"], due=due)
    # The state says which job it belongs to, so all files are compared.
    assert outputs(job) == outputs(clean)


# Forks


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


@pytest.fixture(scope="module")
def forked(start, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fork")
    run_fork(folder, start)
    return folder


def test_a_fork_is_a_series_of_checkpoints_that_the_audits_script_probes(forked, start, tmp_path):
    provenance = read_json(forked / "f.json")
    steps = [11, 14, 17, 20]
    assert list(provenance["weights_sha256"]) == list(map(str, steps)) and provenance["seed"] == 3
    assert len(pd.read_csv(forked / "f.csv")) == 12
    probe_checkpoints.main(
        folders={step: str(forked / f"checkpoints/step{step}") for step in steps},
        validation=start["validation"],
        probe=PROBE,
        threads=1,
        code="abc",
        sequences=str(tmp_path / "f.parquet"),
        provenance=str(tmp_path / "probe.json"),
        training=str(forked / "f.json"),
    )
    scores = pd.read_parquet(tmp_path / "f.parquet")
    assert len(scores) == 4 * 3 * 6 and list(scores["step"].unique()) == steps
    assert read_json(tmp_path / "probe.json")["training"] == provenance


def test_a_fork_of_the_runs_own_schedule_goes_on_as_the_run(start, whole, tmp_path):
    """Restored moments, the same batches and rate: the checkpoints are the run's, to the bit."""
    settings = {
        **FORK,
        "definition": {"kind": "cosine"},
        "fork": {**FORK["fork"], "steps": 24, "probe_every": 8},
    }
    run_fork(tmp_path, start, settings=settings, seed=SETTINGS["training"]["seed"])
    for step in (16, 24, 32):
        name = f"step{step}/model.safetensors"
        assert (tmp_path / "checkpoints" / name).read_bytes() == whole[name]


@pytest.mark.parametrize(
    ("at", "before_saving"),
    [([9], False), ([15], True), ([10, 12, 15, 18, 20], False)],
)
def test_a_fork_that_was_stopped_ends_the_same(
    tmp_path, start, forked, monkeypatch, at, before_saving
):
    def job():
        run_fork(tmp_path, start)

    for step in at:
        interrupted(monkeypatch, step, before_saving=before_saving, job=job)
        assert not list(tmp_path.glob("f.*")) and not (tmp_path / "checkpoints").exists()
    job()
    assert outputs(tmp_path) == outputs(forked)


OTHER = {"settings": {**FORK, "definition": {**FORK["definition"], "amplitude": 2.0}}}


@pytest.mark.parametrize("other", [{"seed": 4}, {"code": "abd"}, OTHER])
def test_a_fork_does_not_go_on_from_what_other_settings_left(
    tmp_path, start, forked, monkeypatch, other
):
    interrupted(monkeypatch, 15, job=lambda: run_fork(tmp_path, start, **other))
    run_fork(tmp_path, start)
    assert outputs(tmp_path) == outputs(forked)


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
def test_sigkill_wherever_a_job_stands(tmp_path, train, whole):
    """A real process, killed again and again a random moment after each of its checkpoints."""
    random = np.random.default_rng(7)
    unfinished = tmp_path / "unfinished"
    killed = 0
    for step in (0, 2, 8, 16, 24, 32, 40):
        job = PROCESSES.Process(target=train_until, args=(tmp_path, 40), kwargs={"train": train})
        job.start()
        wait_for(unfinished / f"step{step}", job)
        time.sleep(float(random.uniform(0.0, 0.02)))
        job.kill()
        job.join()
        killed += job.exitcode == -signal.SIGKILL
        if unfinished.exists():  # Snakemake deletes the outputs of a job that failed
            for path in (*tmp_path.glob("step*/*"), *tmp_path.glob("*.safetensors")):
                path.unlink()
    assert killed >= 6
    train_until(tmp_path, 40, train=train)
    assert outputs(tmp_path) == whole, "temporary files of the killed writers are gone as well"
