"""The folder in which an unfinished training job keeps its state, to resume after a kill.

A state is weights, Adam's two moments, the losses so far and two counters. It is one safetensors
file with its own sha256. The folder is not a declared output of the rule, so Snakemake does not
delete it when a job fails. A fingerprint identifies the job's settings, inputs and code. States
with another fingerprint and damaged states are deleted.

As a context manager, a workspace handles requests to stop: SIGTERM, which a cluster sends before
it takes a machine back, and Ctrl-C. The job first finishes its update and saves its state.
"""

import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from flatminima.errors import DamagedFile
from flatminima.files import CHECKPOINT_FILES, DIGESTS_FILE, atomic_path
from flatminima.model import load_tensors, save_tensors

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A single key in the file's metadata: the order of several keys would differ from run to run.
_COUNTERS = "state"
# Names in the file, and torch's names of them in an optimizer's state.
_MOMENTS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "updates": "step"}


def fingerprint(**settings: object) -> str:
    """Hash of the settings that decide what a job computes."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def save_state(
    path: Path, model: nn.Module, optimizer: AdamW, *, step: int, fingerprint: str, losses: list
) -> None:
    """Write weights, moments, losses (nats per token) and counters to one file, atomically.

    ``fingerprint`` identifies the settings that the state belongs to.
    """
    tensors = {"losses": torch.tensor(losses, dtype=torch.float64)}
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach()
        moments = optimizer.state.get(parameter)
        if moments:  # empty before the first update
            tensors |= {f"{kind}.{name}": moments[key] for kind, key in _MOMENTS.items()}
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    counters = {"step": step, "fingerprint": fingerprint}
    counters["sha256"] = _digest(tensors, counters)
    save_tensors(path, tensors, {_COUNTERS: json.dumps(counters)})


def _digest(tensors: dict[str, Tensor], counters: dict) -> str:
    """sha256 over the counters, and the names and bytes of all tensors."""
    digest = hashlib.sha256(f"{counters['step']} {counters['fingerprint']}".encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_state(
    path: Path, model: nn.Module, optimizer: AdamW, fingerprint: str | None = None
) -> tuple[int, list[float]]:
    """Restore what ``save_state`` wrote. Returns the step and the losses until then.

    Raises ``DamagedFile``, before any weight changes, if the file is damaged or has another
    fingerprint than ``fingerprint``.
    """
    tensors, metadata = load_tensors(path)
    try:
        counters = json.loads(metadata[_COUNTERS])
        is_intact = counters["sha256"] == _digest(tensors, counters)
    except (KeyError, ValueError):
        is_intact = False
    if not is_intact:
        raise DamagedFile(f"{path}: damaged training state; its content has another sha256")
    if fingerprint not in (None, counters["fingerprint"]):
        raise DamagedFile(f"{path}: saved under different settings, inputs or code")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            # A parameter that was never updated has no moments.
            if f"exp_avg.{name}" in tensors:
                optimizer.state[parameter] = {
                    key: tensors[f"{kind}.{name}"].to(parameter.device)
                    for kind, key in _MOMENTS.items()
                }
    return counters["step"], tensors["losses"].tolist()


class Workspace:
    """A job's folder: its last training state and the checkpoints that it has finished so far."""

    def __init__(self, folder: str | Path, fingerprint: str, save_every: int) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.save_every = save_every
        self.state = self.folder / "state.safetensors"
        self._stop_signal = 0  # the signal that requested a stop; 0 if there was none
        self._handlers: dict[signal.Signals, object] = {}  # the previous ones

    def __enter__(self) -> "Workspace":
        for stop_signal in STOP_SIGNALS:
            self._handlers[stop_signal] = signal.signal(stop_signal, self._stop_later)
        return self

    def _stop_later(self, number: int, frame: FrameType | None) -> None:
        """Request a stop after the current update. A second signal stops the job at once."""
        self._stop_signal = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Delete the folder if the job has ended without an error."""
        self._restore_handlers()
        if kind is None:
            shutil.rmtree(self.folder)

    def resume(self, model: nn.Module, optimizer: AdamW, start: int) -> tuple[int, list[float]]:
        """Restore the last state and return its step and losses.

        If there is no valid state, empty the folder and return ``start`` and no losses.
        """
        try:
            step, losses = load_state(self.state, model, optimizer, self.fingerprint)
        except (DamagedFile, FileNotFoundError) as error:
            if isinstance(error, DamagedFile):
                logger.warning(f"{error}; the job starts over")
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            return start, []
        logger.info(f"resuming from step {step}, where an unfinished job was saved")
        return step, losses

    def save(self, model: nn.Module, optimizer: AdamW, step: int, losses: list[float]) -> None:
        """Save the state if ``step`` is a multiple of ``save_every`` or a stop was requested.

        After a request to stop, raises ``SystemExit`` with 128 plus the number of the signal, as
        shells do.
        """
        if step % self.save_every == 0 or self._stop_signal:
            save_state(
                self.state,
                model,
                optimizer,
                step=step,
                fingerprint=self.fingerprint,
                losses=losses,
            )
        if self._stop_signal:
            name = signal.Signals(self._stop_signal).name
            logger.info(
                f"{name}: stopped after step {step}, state saved; the same command resumes here"
            )
            raise SystemExit(128 + self._stop_signal)

    def staged(self, step: int) -> Path:
        """Folder of a finished checkpoint until the job is done."""
        return self.folder / f"step{step}"

    def publish(self, folders: Mapping[int, str | Path]) -> None:
        """Put the checkpoints into the folders that the rule declares.

        They also stay in the workspace, so that a job that is killed here can publish all of them
        in its next run. Files are linked if the file system allows it, and copied otherwise.
        """
        for step, folder in folders.items():
            for name in (*CHECKPOINT_FILES, DIGESTS_FILE):
                source = self.staged(step) / name
                with atomic_path(Path(folder) / name) as temporary:
                    try:
                        os.link(source, temporary)
                    except OSError:
                        shutil.copyfile(source, temporary)
