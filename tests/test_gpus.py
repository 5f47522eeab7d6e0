"""Every job on a machine with several GPUs has one of its own; the devices here are names."""

import logging
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from flatminima import device as device_module
from flatminima import scoring
from flatminima.jobs import own_gpu
from flatminima.text.tokens import write_tokens
from tests.test_workspace import PROCESSES

GPUS = 4


def hold(folder: str, pipe: Connection) -> None:
    """Take a GPU, tell which, and keep it until told to end."""
    logging.basicConfig(level=logging.INFO)  # to standard error, where the test looks
    environment: dict[str, str] = {}
    slot = own_gpu("cuda", GPUS, environment, Path(folder))
    pipe.send(environment["CUDA_VISIBLE_DEVICES"])
    pipe.recv()
    assert slot


@pytest.fixture
def start(tmp_path):
    """Start a process that holds a GPU; it, and the pipe that tells which."""
    started = []

    def one():
        ours, theirs = PROCESSES.Pipe()
        started.append(PROCESSES.Process(target=hold, args=(str(tmp_path), theirs)))
        started[-1].start()
        return started[-1], ours

    yield one
    for process in started:
        process.kill()


def test_jobs_at_the_same_time_have_gpus_of_their_own_until_they_end_or_die(start, capfd):
    held = {pipe.recv(): (process, pipe) for process, pipe in [start() for _ in range(GPUS)]}
    assert set(held) == {"0", "1", "2", "3"}
    _, late = start()
    assert not late.poll(5.0), "it waits"
    assert capfd.readouterr().err.count("all 4 GPUs are taken by other jobs") == 1
    held["2"][1].send("end")
    assert late.recv() == "2"
    held["1"][0].kill()
    held["1"][0].join(60)
    assert start()[1].recv() == "1"


def test_only_gpus_that_the_user_left_visible_are_taken_and_none_without_a_choice(tmp_path):
    for visible, expected in (
        ("2,3", "2"),
        ("GPU-8f0a, GPU-91bc", "GPU-8f0a"),
        ("MIG-1/7/0,MIG-1/8/0", "MIG-1/7/0"),
    ):
        environment = {"CUDA_VISIBLE_DEVICES": visible}
        assert own_gpu("auto", 8, environment, tmp_path)
        assert environment["CUDA_VISIBLE_DEVICES"] == expected
    for device, count, environment in (
        ("cpu", 4, {}),
        ("cuda", 1, {}),
        ("auto", 0, {}),
        ("cuda", 1, {"CUDA_VISIBLE_DEVICES": "3"}),
        ("cuda", 2, {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1"}),
    ):
        before = dict(environment)
        assert own_gpu(device, count, environment, tmp_path / "slots") is None
        assert environment == before and not (tmp_path / "slots").exists()


def test_a_probe_takes_its_gpu_before_it_looks_for_devices(tmp_path, monkeypatch):
    """What torch finds first is what it keeps."""
    order = []
    write_tokens(tmp_path / "v.safetensors", np.zeros((2, 4), dtype=np.int32))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)
    monkeypatch.setattr(
        torch.cuda,
        "is_available",
        lambda: order.append(os.environ.get("CUDA_VISIBLE_DEVICES")) or False,
    )
    monkeypatch.setattr(device_module, "slots_folder", lambda: tmp_path / "slots")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as it was, after the test
    settings = {"quantizers": {}, "roles": {}, "batch_size": 1, "device": "auto"}
    assert scoring.Prober(str(tmp_path / "v.safetensors"), settings, 1).device == "cpu"
    assert order[0] == "0"
