"""Data-parallel training: one process per GPU, each with its share of every batch.

Started by ``torch.distributed.run`` (torchrun), which tells every process its rank in the
environment; a process that was started otherwise is the only one. Gradients are averaged
over the processes before they are clipped, so that all of them make the same update and
hold the same weights. The first one probes and saves.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor, nn

HERE = str(Path(__file__).resolve().parents[2])
# Others wait this long for the first process, which probes between updates.
_PATIENCE = timedelta(hours=4)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def started_by_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this is the process that probes and saves."""
    return rank() == 0


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the other processes while the block runs; nothing where there are none.

    ``device`` is ``cuda`` (NCCL, one GPU a process) or ``cpu`` (gloo).
    """
    if not started_by_torchrun():
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals to stop: what the first process does about them needs this one's share.

    torchrun ends a process that is still there half a minute later.
    """
    handlers = {s: signal.signal(s, signal.SIG_IGN) for s in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def wait_for_all() -> None:
    """Return once every process has come here."""
    if world_size() > 1:
        dist.barrier()


def share(batch: Tensor) -> Tensor:
    """This process's rows of ``[batch, length]``; ``ValueError`` where they cannot be equal."""
    size = world_size()
    if len(batch) % size:
        raise ValueError(f"a batch of {len(batch)} sequences cannot be shared by {size} processes")
    return batch[rank() :: size]


def average(model: nn.Module, loss: float) -> float:
    """Average gradients, in place, and the loss over all processes; returns the loss."""
    size = world_size()
    if size == 1:
        return loss
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    value = torch.tensor(loss, dtype=torch.float64, device=gradients[0].device)
    # Summed and divided: gloo has no mean.
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in (*gradients, value)]:
        work.wait()
    for gradient in gradients:
        gradient.div_(size)
    return value.item() / size


def launch(module: str, job: Mapping, path: Path, *, processes: int) -> None:
    """Run ``python -m module path`` in several processes and wait; ``path`` receives ``job``.

    Their standard error goes to this process's, line by line. A signal to stop is handed
    on, and ends in ``SystemExit``. Raises ``RuntimeError`` where one of them fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(job, indent=2, default=str), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", module, str(path)]
    search = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": search},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with _handed_on(child) as signals:
        for line in child.stderr:
            sys.stderr.write(line)
        status = child.wait()
    if signals:
        raise SystemExit(128 + signals[0])
    if status:
        raise RuntimeError(f"{processes} processes of {module}: exit status {status}, see above")


@contextmanager
def _handed_on(child: subprocess.Popen) -> Iterator[list[int]]:
    """Hand signals to stop to ``child``, which ends with the block in any case; yields them."""
    received: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        child.send_signal(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {s: signal.signal(s, hand_on) for s in _STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if child.poll() is None:
            child.terminate()
            child.wait()
