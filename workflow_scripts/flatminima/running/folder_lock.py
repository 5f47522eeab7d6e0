"""Who is at work in a folder: tells locks that a killed run left from locks in use.

Snakemake locks a folder with files, which a run that is killed cannot take away. So every
run and every job also holds a shared ``flock`` on one file, which the kernel lets go of
whatever becomes of the process. Where nobody on this machine holds it, and the last run
was at work on this machine and with its own jobs, what locks there are belong to nobody.
"""

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

HOLDER = "at_work.json"  # in Snakemake's own folder
LOCKS = "locks"


def _describe(local: bool) -> dict:
    pid = os.getpid()
    return {"machine": platform.node(), "pid": pid, "since": _started(pid), "local": local}


def _started(pid: object) -> str | None:
    """When a process began, in the kernel's ticks; its number alone is used again and again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _read(stream: TextIO) -> dict:
    stream.seek(0)
    try:
        holder = json.loads(stream.read())
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _write(stream: TextIO, holder: dict) -> None:
    stream.seek(0)
    stream.truncate()
    stream.write(json.dumps(holder) + "\n")
    stream.flush()


def start_run(state: Path, *, local: bool) -> tuple[TextIO | None, str]:
    """Begin a run in the folder whose Snakemake folder is ``state``.

    Locks of a run that was killed are removed where it is certain that they are. ``local``
    says whether the jobs of this run are on this machine. Returns the open file, which holds
    the place as long as it is open, and a line to say, empty where there is nothing.
    """
    try:
        state.mkdir(exist_ok=True)
        stream = open(state / HOLDER, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError:  # somebody else's folder, to be read only
        return None, ""
    last = _read(stream)
    locks = list(state.glob(f"{LOCKS}/*.lock"))
    line = ""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        known = last.get("machine") == platform.node() and last.get("local") is True
        if locks and known and local:
            for file in locks:
                file.unlink(missing_ok=True)
            line = "The last run was killed; its lock is removed, and the work goes on."
        _write(stream, _describe(local))
    except BlockingIOError:
        if locks and last.get("since") and _started(last.get("pid")) == last["since"]:
            line = f"Process {last['pid']} is at work in this folder."
        elif locks:
            line = "Jobs of a run that was killed are still at work in this folder."
    except OSError:  # a file system without such locks
        return None, ""
    fcntl.flock(stream, fcntl.LOCK_SH)
    return stream, line


@contextmanager
def at_work(state: Path) -> Iterator[None]:
    """Hold the folder while a job runs; nothing where no run has begun there."""
    try:
        stream = open(state / HOLDER, encoding="utf-8")  # noqa: SIM115
    except OSError:
        yield
        return
    with stream:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(stream, fcntl.LOCK_SH)
        yield
