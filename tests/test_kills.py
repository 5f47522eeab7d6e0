"""Killed at any moment, the same command goes on and ends with the same bytes."""

import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import psutil
import pytest
import torch

from flatminima.files import atomic_path
from flatminima.messages import message_handlers
from flatminima.model import build_model, load_model, save_model
from flatminima.text.tokens import write_tokens
from tests.conftest import TINY as TINY_SHAPE
from tests.conftest import TINY_VOCABULARY
from tests.test_workspace import PROCESSES, Killed, outputs, tokens, train_until, wait_for
from tests.workflow import TINY, copy_checkout, snakemake, tiny_checkout

KILLS = 20
# Measured by a clock, drawn by a renderer that numbers its parts, or about this very run.
# Pictures, pages, and notebooks with pictures: some jitter their points at random.
NOT_COMPARED = {".log", ".html", ".ipynb", ".pdf", ".svg", ".png"}


def write_and_be_killed(path: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    target = tmp_path / "file.txt"
    process = PROCESSES.Process(target=write_and_be_killed, args=(str(target),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir()]
    assert left == [f".file.txt.{process.pid}.tmp"]
    other = tmp_path / ".file.txt.old.1.tmp"  # another target's
    other.write_text("of file.txt.old")
    with atomic_path(target) as temporary:
        temporary.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "file.txt"]
    assert target.read_text() == "whole"


def test_a_checkpoint_is_whole_or_not_there_when_its_replacement_is_killed(
    tmp_path, tiny_model, monkeypatch
):
    other = build_model(TINY_SHAPE, TINY_VOCABULARY, seed=1)
    replace = os.replace
    for moment in range(3):  # the digests get their name, the old folder another, the new its own
        folder = tmp_path / f"step{moment}"
        calls = count()
        save_model(tiny_model, folder, digests=True)

        def stop(source, target, calls=calls, moment=moment):
            if next(calls) == moment:
                raise Killed
            replace(source, target)

        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(os, "replace", stop)
            save_model(other, folder, digests=True)
        assert folder.exists() == (moment < 2)
        if moment < 2:
            kept = next(load_model(folder).parameters())
            assert torch.equal(kept, next(tiny_model.parameters()))
        save_model(other, folder, digests=True)
        assert torch.equal(next(load_model(folder).parameters()), next(other.parameters()))


def job(folder: str, train: str, log: str) -> None:
    """Train to step 40 and append the messages to the file ``log``, as a job does."""
    handler = logging.FileHandler(log)
    handler.setLevel(logging.INFO)
    with contextlib.closing(handler), message_handlers(handler):
        train_until(Path(folder), 40, train=train)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_asked_to_stop_saves_its_state_and_goes_on(tmp_path, number):
    log = tmp_path / "log.txt"
    train = str(tmp_path / "train.safetensors")
    write_tokens(train, tokens())
    for name in ("stopped", "whole"):
        (tmp_path / name).mkdir()
    stopped = tmp_path / "stopped"
    unfinished = tmp_path / "stopped" / "unfinished"
    process = PROCESSES.Process(target=job, args=(str(stopped), train, str(log)))
    process.start()
    wait_for(unfinished / "step8", process)
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 128 + number
    assert [path.name for path in stopped.iterdir()] == ["unfinished"], "no output is in its place"
    assert (unfinished / "state.safetensors").exists()
    before = signal.getsignal(number)
    job(str(tmp_path / "whole"), train, os.devnull)
    assert signal.getsignal(number) == before, "handlers are as they were once a job is done"
    job(str(stopped), train, str(log))
    assert f"{signal.Signals(number).name}: stopped after step" in log.read_text()
    assert "resuming from step" in log.read_text()
    assert outputs(stopped) == outputs(tmp_path / "whole")


def results(folder: Path) -> dict[str, bytes]:
    """Every file under results/ that must be the same in every run."""
    made = outputs(folder / "results")
    return {name: data for name, data in made.items() if Path(name).suffix not in NOT_COMPARED}


def assert_same(made: dict[str, bytes], expected: dict[str, bytes]) -> None:
    assert made.keys() == expected.keys()
    assert [name for name, data in made.items() if data != expected[name]] == []


def start(folder: Path, cores: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "snakemake", "--configfile", TINY, "--cores", str(cores)]
    with open(folder / "said.txt", "w") as log:
        return subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def jobs_of(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def alive(job: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return job.status() != psutil.STATUS_ZOMBIE
    return False


def kill(process: subprocess.Popen, chance: random.Random) -> str:
    """SIGKILL to all of a run, to Snakemake or to one job, or SIGTERM to all; which it was."""
    jobs = jobs_of(process)
    how = chance.choice(["everything", "snakemake", "preemption", *(["a job"] if jobs else [])])
    if how == "a job":
        chance.choice(jobs).kill()
    elif how == "snakemake":
        process.kill()
    else:  # a power cut, or a cluster that takes its machine back
        os.killpg(process.pid, signal.SIGTERM if how == "preemption" else signal.SIGKILL)
    process.wait(900)  # a run whose job is killed waits for its other jobs
    while any(map(alive, jobs)):
        time.sleep(0.1)  # jobs whose run is killed go on, and their user waits for them
    return how


@pytest.mark.slow
@pytest.mark.workflow
def test_twenty_kills_at_random_moments(tmp_path_factory):
    """The same command again, with one core or two, ends with the bytes of a run left alone."""
    expected = results(tiny_checkout(tmp_path_factory))
    folder = copy_checkout(tmp_path_factory.mktemp("killed"))
    chance = random.Random(11)
    kills = Counter()
    finished_suites = 0
    planning = 2.0
    while kills.total() < KILLS:
        started = time.monotonic()
        process = start(folder, chance.choice([1, 2]))
        try:  # one in ten while it plans, the others while jobs run
            if chance.random() < 0.1:
                process.wait(chance.uniform(0.0, planning))
            else:
                while process.poll() is None and not jobs_of(process):
                    time.sleep(0.05)
                planning = time.monotonic() - started
                process.wait(chance.uniform(0.0, 4.0 * planning))
        except subprocess.TimeoutExpired:
            kills[kill(process, chance)] += 1
            snakemake("--unlock", "--configfile", TINY, folder=folder)
            continue
        assert process.returncode == 0, (folder / "said.txt").read_text()[-3000:]
        assert_same(results(folder), expected)
        finished_suites += 1
        for output_folder in ("results", ".snakemake"):
            shutil.rmtree(folder / output_folder)
    run = snakemake("--cores", "2", "--configfile", TINY, folder=folder)
    assert run.returncode == 0, run.stdout[-5000:]
    assert_same(results(folder), expected)
    print(f"{kills.total()} kills survived: {dict(kills)}; {finished_suites + 1} suites finished")
    assert not list(folder.glob("results/*/unfinished/*/*/*"))
    assert not list(folder.rglob("results/**/.*.tmp"))
