"""How a job runs: its script's ``main``, its log, its progress, its GPU.

Nothing here decides a number, so nothing here is part of the hash of the code
(``code_hash.INFRASTRUCTURE``). Every error ends a job with one line on the terminal.
If the user cannot act on it, the log has the traceback as well.
"""

import errno
import fcntl
import inspect
import itertools
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, TypeVar

import pandas as pd
from tqdm import tqdm

from flatminima.errors import UserError, one_line
from flatminima.files import read_content
from flatminima.messages import message_handlers

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
# Errors of the environment, which no code can mend: disk full, permission denied, I/O error.
_ENVIRONMENT_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
)
VISIBLE = "CUDA_VISIBLE_DEVICES"
# What Snakemake says of every dry run.
_SAID_ALWAYS = ("Config file", "Assuming unrestricted", "Building DAG", "Using workflow specific")
# Clusters give each job its GPUs themselves, and may number them anew.
_GIVEN_BY_A_CLUSTER = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST")


def run(main: Callable[..., None], snakemake: object) -> None:
    """Call a script's ``main`` with what its rule declares, and write the job's log.

    Each parameter of ``main`` takes the input, output, param, resource or wildcard of its
    name, or ``threads``. ``inputs`` and ``outputs`` take all files: as a mapping where the
    parameter is annotated ``dict``, as a list otherwise. A parameter annotated ``int`` gets a
    number. One annotated ``DataFrame``, ``list[DataFrame]`` or ``dict`` gets the content of the
    files.
    """
    with logged(snakemake.log[0]):
        main(**arguments(main, snakemake))


def arguments(main: Callable, job: object) -> dict[str, object]:
    """The arguments that ``main`` is called with, by parameter name."""
    declared: dict[str, object] = {"threads": getattr(job, "threads", 1)}
    # If two parts declare the same name, the later part in this order wins.
    for part_name in ("wildcards", "resources", "params", "output", "input"):
        part = getattr(job, part_name, None)
        declared |= dict(part.items() if hasattr(part, "items") else getattr(part, "__dict__", {}))

    chosen = {}
    for name, parameter in inspect.signature(main).parameters.items():
        if name in ("inputs", "outputs"):
            files = job.input if name == "inputs" else job.output
            wants_names = str(parameter.annotation).startswith(("dict", "<class 'dict'"))
            chosen[name] = _plain(dict(files.items()) if wants_names else list(files))
        elif name in declared:
            chosen[name] = _as_annotated(declared[name], parameter.annotation)
    return chosen


def _as_annotated(argument: object, annotation: object) -> object:
    """The argument as its annotation asks for: a number, the content of files, or unchanged."""
    if annotation is int:
        return int(argument)
    if annotation in (pd.DataFrame, pd.DataFrame | None, dict) and isinstance(argument, str):
        return read_content(argument)
    if annotation == list[pd.DataFrame]:
        return [read_content(path) for path in argument]
    return _plain(argument)


def _plain(argument: object) -> object:
    """Paths as text and lists of them as lists, without Snakemake's own types."""
    if isinstance(argument, dict):
        return {key: _plain(inner) for key, inner in argument.items()}
    if isinstance(argument, list):
        return [_plain(inner) for inner in argument]
    return str(argument) if isinstance(argument, str) else argument


class _Tee:
    """Writes to the terminal and to a log; progress bars become plain lines in both.

    Any other attribute is the terminal's, for libraries that ask whether it is one.
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
    """Write the messages and the standard error of the block to the terminal and to ``path``.

    An exception becomes one line and exit status 1. If it is neither a ``UserError`` nor an
    error of the environment, its traceback is written to ``path``, and only there.
    """
    terminal = sys.stderr
    with open(path, "w", encoding="utf-8") as file:
        to_terminal = logging.StreamHandler(terminal)
        to_terminal.setLevel(logging.INFO)
        to_file = logging.StreamHandler(file)
        to_file.setLevel(logging.DEBUG)  # tracebacks are messages of this level
        sys.stderr = _Tee(terminal, file)
        try:
            with message_handlers(to_terminal, to_file):
                try:
                    yield
                except Exception as error:
                    logger.error(f"Error: {_last_line(error, path)}")
                    sys.exit(1)
        finally:
            sys.stderr = terminal


def _last_line(error: Exception, log_file: str | Path) -> str:
    """The line that a job ends with; logs the traceback where the user cannot act on the line."""
    from_environment = isinstance(error, OSError) and error.errno in _ENVIRONMENT_ERRORS
    if from_environment or isinstance(error, UserError):
        return " ".join(str(error).split())
    logger.debug("", exc_info=error)
    return f"unexpected {type(error).__name__}: {one_line(error)} (traceback in {log_file})"


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
            logger.info(f"GPU {gpu} of {', '.join(gpus)}")
            return lock
        if not tries:
            logger.info(f"all {len(gpus)} GPUs are taken by other jobs; waiting for one")
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
