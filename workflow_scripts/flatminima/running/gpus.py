"""A GPU of its own for each job on a machine with several.

Snakemake counts GPUs and does not say which: two jobs would both take the first. A job
therefore locks the file of one GPU (``flock``; the kernel lets it go when the process ends,
whatever ends it) and sees that one only, through ``CUDA_VISIBLE_DEVICES``.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from flatminima.running.logs import say

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Clusters give each job its GPUs themselves, and may number them anew.
_GIVEN_BY_A_CLUSTER = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST")
_POLL_S = 2.0


@dataclass(frozen=True)
class Slot:
    """One GPU, by its number or name, held as long as ``lock`` is open."""

    gpu: str
    lock: TextIO


def slots_folder() -> Path:
    """Where all jobs of a user on this machine keep the locks of its GPUs."""
    return Path(tempfile.gettempdir()) / f"gpu-slots-{os.getuid()}"


def take_slot(gpus: Sequence[str], folder: Path, *, poll_s: float = _POLL_S) -> Slot:
    """Lock the first GPU that no other job has; waits until there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = False
    while True:
        for gpu in gpus:
            lock = open(folder / gpu.replace("/", "_"), "a", encoding="utf-8")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return Slot(gpu, lock)
            except BlockingIOError:
                lock.close()
        if not waiting:
            say(f"all {len(gpus)} GPUs are taken by other jobs; waiting for one")
            waiting = True
        time.sleep(poll_s)


def own_gpu(
    device: str, count: int, environment: MutableMapping[str, str], folder: Path
) -> Slot | None:
    """Take one of ``count`` GPUs for this process and hide the others from it.

    Nothing is taken where ``device`` is none, where there is no choice, or where a cluster
    has chosen. Must come before anything is done on a GPU; hold on to what is returned.
    """
    if device not in ("cuda", "auto") or any(name in environment for name in _GIVEN_BY_A_CLUSTER):
        return None
    listed = [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]
    gpus = listed or [str(number) for number in range(count)]
    if len(gpus) < 2:
        return None
    slot = take_slot(gpus, folder)
    environment[VISIBLE] = slot.gpu
    say(f"GPU {slot.gpu} of {', '.join(gpus)}")
    return slot
