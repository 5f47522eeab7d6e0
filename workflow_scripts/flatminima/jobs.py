"""How a job runs: its script's ``main``, its log, its progress, its GPU.

This module decides no numbers, so the hash of the code does not cover it
(``code_hash.INFRASTRUCTURE``). Every error ends a job with one line on the terminal. If the user
cannot act on the error, the log has its traceback as well.
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
from typing import NamedTuple, TextIO, TypeVar

import pandas as pd
from tqdm import tqdm

from flatminima.errors import UserError, one_line
from flatminima.files import read_content
from flatminima.messages import message_handlers

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
# errno values of environment problems: disk full, permission denied, I/O error.
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
# Beginnings of lines that Snakemake prints in every dry run.
_USUAL_LINES = ("Config file", "Assuming unrestricted", "Building DAG", "Using workflow specific")
# Variables that clusters set. A cluster assigns GPUs to jobs itself, and may renumber them.
_CLUSTER_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST")


def run(main: Callable[..., None], snakemake: object) -> None:
    """Call a script's ``main`` with what its rule declares, and write the job's log.

    Each parameter of ``main`` gets the input, output, param, resource or wildcard of its name, or
    ``threads``. ``inputs`` and ``outputs`` get all files: a mapping if the parameter is annotated
    ``dict``, a list otherwise. A parameter annotated ``int`` gets a number. A parameter annotated
    ``DataFrame``, ``list[DataFrame]`` or ``dict`` gets the content of the files.
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
            # The annotation may be ``dict`` itself or a text such as ``dict[str, str]``.
            wants_names = str(parameter.annotation).startswith(("dict", "<class 'dict'"))
            chosen[name] = _plain(dict(files.items()) if wants_names else list(files))
        elif name in declared:
            chosen[name] = _as_annotated(declared[name], parameter.annotation)
    return chosen


def _as_annotated(argument: object, annotation: object) -> object:
    """Convert an argument by its annotation: to a number, to the content of files, or not."""
    if annotation is int:
        return int(argument)
    if annotation in (pd.DataFrame, pd.DataFrame | None, dict) and isinstance(argument, str):
        return read_content(argument)
    if annotation == list[pd.DataFrame]:
        return [read_content(path) for path in argument]
    return _plain(argument)


def _plain(argument: object) -> object:
    """Snakemake's own types of text and lists as plain ``str`` and ``list``."""
    if isinstance(argument, dict):
        return {key: _plain(inner) for key, inner in argument.items()}
    if isinstance(argument, list):
        return [_plain(inner) for inner in argument]
    return str(argument) if isinstance(argument, str) else argument


class _Tee:
    """Writes to the terminal and to a log; progress bars become plain lines in both.

    All other attributes are the terminal's, for libraries that check whether this is a terminal.
    """

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams

    def write(self, text: str) -> int:
        line = text.replace("\r", "\n")
        if text.startswith("\r"):  # a progress bar, which may be empty when it is cleared
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
    """The last line of a failed job; logs a traceback if the user cannot act on the error."""
    from_environment = isinstance(error, OSError) and error.errno in _ENVIRONMENT_ERRORS
    if from_environment or isinstance(error, UserError):
        return " ".join(str(error).split())
    logger.debug("", exc_info=error)
    return f"unexpected {type(error).__name__}: {one_line(error)} (traceback in {log_file})"


def progress(items: Iterable[Item], name: str, total: int | None = None) -> tqdm:
    """Iterate with a line every few seconds: number done, elapsed time, remaining time."""
    return tqdm(
        items,
        desc=name,
        total=total,
        file=sys.stderr,
        mininterval=5.0,
        maxinterval=5.0,
        delay=3.0,
        bar_format="{desc}: {n_fmt}/{total_fmt} done, {elapsed} gone, {remaining} left{postfix}",
    )


def slots_folder() -> Path:
    """Folder of the GPU locks, shared by all jobs of a user on this machine."""
    return Path(tempfile.gettempdir()) / f"gpu-slots-{os.getuid()}"


def own_gpu(
    device: str, count: int, environment: MutableMapping[str, str], folder: Path
) -> TextIO | None:
    """Take one of ``count`` GPUs for this process and hide the others from it.

    Snakemake counts GPUs but does not assign them, so two jobs would both use the first. Each job
    therefore waits for a lock on one GPU. The caller must keep the returned lock; the kernel
    releases it when the process ends for any reason. Returns ``None`` and takes nothing if
    ``device`` is not a GPU, if there is only one GPU, or if a cluster assigns GPUs. Must be called
    before torch uses a GPU.
    """
    if device not in ("cuda", "auto"):
        return None
    if any(name in environment for name in _CLUSTER_VARIABLES):
        return None
    visible_gpus = [name.strip() for name in environment.get(VISIBLE, "").split(",")]
    gpus = [name for name in visible_gpus if name] or [str(number) for number in range(count)]
    # With one GPU Snakemake runs one job at a time by itself.
    if len(gpus) < 2:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in itertools.count():
        for gpu in gpus:
            lock = open(folder / gpu.replace("/", "_"), "a", encoding="utf-8")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            # Torch counts the GPUs that it can see: this one becomes cuda:0.
            environment[VISIBLE] = gpu
            logger.info(f"GPU {gpu} of {', '.join(gpus)}")
            return lock
        if attempt == 0:
            logger.info(f"all {len(gpus)} GPUs are taken by other jobs; waiting for one")
        time.sleep(2.0)


class DryRun(NamedTuple):
    """What Snakemake would do.

    ``jobs`` has the number of remaining jobs by rule. It is ``None`` if Snakemake failed, and
    empty if nothing remains. ``messages`` are the other lines that Snakemake printed.
    """

    exit_code: int
    jobs: dict[str, int] | None
    messages: list[str]


def dry_run(*arguments: str, configfiles: Sequence[str] = ()) -> DryRun:
    """Run ``snakemake --dry-run`` with these arguments and read what it prints."""
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host", "rules"]
    if configfiles:
        command += ["--configfile", *configfiles]
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    # The output ends with a table of "rule  count", once or twice, after this heading.
    before_table, _, tables = run.stdout.partition("Job stats:")
    first_table = tables.split("\n\n", 1)[0]
    counts = dict(re.findall(r"^(\w[\w-]*) +(\d+)$", first_table, flags=re.MULTILINE))
    jobs = {rule: int(count) for rule, count in counts.items() if rule not in ("total", "all")}

    printed = before_table.partition("Nothing to be")[0]
    if run.returncode:
        printed = run.stdout
        jobs = None
    lines = [line for line in (printed + run.stderr).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(_USUAL_LINES)]
    return DryRun(run.returncode, jobs, messages)
