"""How a job runs: its script's ``main``, its log, its progress, its GPU.

Nothing here decides a number, so nothing here is part of the hash of the code
(``code_hash.INFRASTRUCTURE``). What a user can act on, from a damaged file to a full
disk, ends a job with one line; anything else with its traceback, in the log as well.
"""

import errno
import fcntl
import inspect
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

import pandas as pd
from tqdm import tqdm

from flatminima.errors import UserError
from flatminima.files import read_content

Item = TypeVar("Item")
# What the machine refuses, whatever the code: no room, no right, a disk that fails.
_REFUSALS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
}  # fmt: skip
VISIBLE = "CUDA_VISIBLE_DEVICES"
# What Snakemake says of every dry run.
_SAID_ALWAYS = ("Config file", "Assuming unrestricted", "Building DAG", "Using workflow specific")
# Clusters give each job its GPUs themselves, and may number them anew.
_GIVEN_BY_A_CLUSTER = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST")


def run(main: Callable[..., None], snakemake: object) -> None:
    """Call a script's ``main`` with what its rule declares, and log what it says.

    Each parameter of ``main`` takes the input, output, param, resource or wildcard of its
    name, or ``threads``; ``inputs`` and ``outputs`` take all of them, as a mapping where
    the parameter is annotated ``dict`` and as a list otherwise. A parameter annotated
    ``int`` gets a number; one annotated ``DataFrame``, a list of them or ``dict`` gets what the
    files hold.
    """
    with logged(snakemake.log[0]):
        main(**arguments(main, snakemake))


def arguments(main: Callable, job: object) -> dict[str, object]:
    """What each parameter of ``main`` takes of a job, by name."""
    known, found = {"threads": getattr(job, "threads", 1)}, {}
    for name in ("wildcards", "resources", "params", "output", "input"):  # the last one counts
        part = getattr(job, name, None)
        known |= dict(part.items() if hasattr(part, "items") else getattr(part, "__dict__", {}))
    for name, parameter in inspect.signature(main).parameters.items():
        if name in ("inputs", "outputs"):
            files = job.input if name == "inputs" else job.output
            wants_names = str(parameter.annotation).startswith(("dict", "<class 'dict'"))
            found[name] = _plain(dict(files.items()) if wants_names else list(files))
        elif name in known:
            found[name] = _read(known[name], parameter.annotation)
    return found


def _read(value: object, wanted: object) -> object:
    """What a parameter annotated ``wanted`` gets of a value or of the files that it names."""
    if wanted is int:
        return int(value)
    if wanted in (pd.DataFrame, pd.DataFrame | None, dict) and isinstance(value, str):
        return read_content(value)
    return [read_content(path) for path in value] if wanted == list[pd.DataFrame] else _plain(value)


def _plain(value: object) -> object:
    """Paths as text and lists of them as lists, without Snakemake's own types."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, str) else value


class _Tee:
    """Writes to the terminal and to a log; bars become plain lines in both.

    Whatever else a library asks of standard error, the terminal answers.
    """

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams

    def write(self, text: str) -> int:
        line = text.replace("\r", "\n")
        if text.startswith("\r"):
            line = line.strip() and f"{line.strip()}\n"
        for stream in self.streams:
            stream.write(line)
        return len(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self.streams[0], name)


@contextmanager
def logged(path: str | Path) -> Iterator[None]:
    """Copy standard error to ``path`` while the block runs; a traceback goes there as well.

    A ``UserError`` and a refusal of the machine are one line instead, and exit status 1.
    """
    terminal = sys.stderr
    with open(path, "w", encoding="utf-8") as file:
        sys.stderr = _Tee(terminal, file)
        try:
            yield
        except SystemExit:  # what there is to say has been said
            raise
        except BaseException as error:
            refused = isinstance(error, OSError) and error.errno in _REFUSALS
            if not refused and not isinstance(error, UserError):
                traceback.print_exc(file=file)
                raise
            log(f"Error: {' '.join(str(error).split())}")
            sys.exit(1)
        finally:
            sys.stderr = terminal


def log(message: str) -> None:
    """One line of a job's log."""
    print(message, file=sys.stderr, flush=True)


def progress(items: Iterable[Item], name: str, total: int | None = None) -> tqdm:
    """Iterate with a line every few seconds that says how far, how long and how much is left."""
    bar = "{desc}: {n_fmt}/{total_fmt} done, {elapsed} gone, {remaining} left{postfix}"
    return tqdm(
        items, desc=name, total=total, file=sys.stderr, mininterval=5.0, maxinterval=5.0, delay=3.0,
        bar_format=bar,
    )  # fmt: skip


def slots_folder() -> Path:
    """Where all jobs of a user on this machine keep the locks of its GPUs."""
    return Path(tempfile.gettempdir()) / f"gpu-slots-{os.getuid()}"


def own_gpu(
    device: str, count: int, environment: MutableMapping[str, str], folder: Path
) -> TextIO | None:
    """Take one of ``count`` GPUs for this process and hide the others from it.

    Snakemake counts GPUs and does not say which, so two jobs would both take the first: each
    waits for a lock on one. Hold on to the lock that is returned; the kernel lets it go when the
    process ends, whatever ends it. Nothing is taken where ``device`` is none, where there is no
    choice, or where a cluster has chosen. Must come before anything is done on a GPU.
    """
    if device not in ("cuda", "auto") or any(name in environment for name in _GIVEN_BY_A_CLUSTER):
        return None
    listed = [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]
    gpus = listed or [str(number) for number in range(count)]
    if len(gpus) < 2:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for tries in itertools.count():
        for gpu in gpus:
            lock = open(folder / gpu.replace("/", "_"), "a", encoding="utf-8")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            environment[VISIBLE] = gpu
            log(f"GPU {gpu} of {', '.join(gpus)}")
            return lock
        if not tries:
            log(f"all {len(gpus)} GPUs are taken by other jobs; waiting for one")
        time.sleep(2.0)


def dry_run(
    *arguments: str, configfiles: Sequence[str] = ()
) -> tuple[int, dict[str, int] | None, list[str]]:
    """What Snakemake would do: its exit code, the jobs left by rule, and what else it says.

    The jobs are ``None`` where it failed, and empty where nothing is left.
    """
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host", "rules"]
    command += ["--configfile", *configfiles] if configfiles else []
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    said, _, table = run.stdout.partition("Job stats:")
    jobs = dict(re.findall(r"^(\w[\w-]*) +(\d+)$", table.split("\n\n", 1)[0], flags=re.MULTILINE))
    left = {rule: int(n) for rule, n in jobs.items() if rule not in ("total", "all")}
    said = run.stdout if run.returncode else said.partition("Nothing to be")[0]
    lines = [line for line in (said + run.stderr).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_SAID_ALWAYS)]
    return run.returncode, None if run.returncode else left, lines
