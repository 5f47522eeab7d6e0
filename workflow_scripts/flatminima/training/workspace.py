"""Where an unfinished training job keeps what it needs to go on after a kill.

A state is weights, Adam's two moments, the losses so far and two counters, in one safetensors
file that holds its own digest. The folder lies outside the declared outputs of the rule, so
Snakemake does not delete it when a job fails. It belongs to one fingerprint (settings,
inputs, code); what another fingerprint left behind, and a state that is damaged, is thrown
away.

Used as a context, a workspace lets a job that is asked to stop (SIGTERM, as a cluster sends
before it takes a machine back, or Ctrl-C) finish its update and save its state first.
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
_COUNTERS = "state"  # one key: safetensors writes several in an order that differs by run
_MOMENTS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "updates": "step"}


def fingerprint(**settings: object) -> str:
    """Hash of everything that decides what a job computes."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def save_state(
    path: Path, model: nn.Module, optimizer: AdamW, *, step: int, fingerprint: str, losses: list
) -> None:
    """Write a run's weights, moments, losses (nats per token) and counters to one file, atomically.

    ``fingerprint`` names the settings that the state belongs to.
    """
    tensors = {"losses": torch.tensor(losses, dtype=torch.float64)}
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach()
        if state := optimizer.state.get(parameter):
            tensors |= {f"{kind}.{name}": state[key] for kind, key in _MOMENTS.items()}
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
    """Restore what ``save_state`` wrote; returns the step and the losses until then.

    Raises ``DamagedFile`` where it is not what was written, or not of ``fingerprint``, before
    any weight moves.
    """
    tensors, metadata = load_tensors(path)
    try:
        counters = json.loads(metadata[_COUNTERS])
        whole = counters["sha256"] == _digest(tensors, counters)
    except (KeyError, ValueError):
        whole = False
    if not whole:
        raise DamagedFile(f"{path}: damaged training state; the sha256 that it holds is another")
    if fingerprint not in (None, counters["fingerprint"]):
        raise DamagedFile(f"{path}: it is of other settings, inputs or code")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            if f"exp_avg.{name}" in tensors:
                optimizer.state[parameter] = {
                    key: tensors[f"{kind}.{name}"].to(parameter.device)
                    for kind, key in _MOMENTS.items()
                }
    return counters["step"], tensors["losses"].tolist()


class Workspace:
    """A job's folder: its last training state, and the checkpoints it has finished so far."""

    def __init__(self, folder: str | Path, fingerprint: str, save_every: int) -> None:
        self.folder, self.fingerprint, self.save_every = Path(folder), fingerprint, save_every
        self.state = self.folder / "state.safetensors"
        self._asked_to_stop, self._handlers = 0, {}

    def __enter__(self) -> "Workspace":
        self._handlers = {s: signal.signal(s, self._stop_later) for s in STOP_SIGNALS}
        return self

    def _stop_later(self, number: int, frame: FrameType | None) -> None:
        """Stop after this update; a second signal does at once what it always does."""
        self._asked_to_stop = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Delete the folder if the job has ended well."""
        self._restore_handlers()
        if kind is None:
            shutil.rmtree(self.folder)

    def resume(self, model: nn.Module, optimizer: AdamW, start: int) -> tuple[int, list[float]]:
        """Restore the last state and return its step and losses; ``start`` if there is none.

        What is there without a state to go on from is thrown away.
        """
        try:
            step, losses = load_state(self.state, model, optimizer, self.fingerprint)
        except (DamagedFile, FileNotFoundError) as error:
            if isinstance(error, DamagedFile):
                logger.warning(f"{error}; the job begins anew")
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            return start, []
        logger.info(f"going on from step {step}, where an unfinished job was saved")
        return step, losses

    def save(self, model: nn.Module, optimizer: AdamW, step: int, losses: list[float]) -> None:
        """Save the state if ``step`` is a multiple of ``save_every`` or the job is to stop.

        Raises ``SystemExit`` in the second case, with the status that shells give to a signal.
        """
        if step % self.save_every == 0 or self._asked_to_stop:
            save_state(self.state, model, optimizer, step=step, fingerprint=self.fingerprint,
                       losses=losses)  # fmt: skip
        if self._asked_to_stop:
            name = signal.Signals(self._asked_to_stop).name
            logger.info(
                f"{name}: stopped after step {step}, state saved; the same command goes on here"
            )
            raise SystemExit(128 + self._asked_to_stop)

    def staged(self, step: int) -> Path:
        """Where the checkpoint of a step stands until the job is done."""
        return self.folder / f"step{step}"

    def publish(self, folders: Mapping[int, str | Path]) -> None:
        """Put the checkpoints of all steps where the rule declares them.

        They stay in the workspace as well: a kill in between may leave some of them out,
        and the next run then finds them all. Linked where the file system can.
        """
        for step, folder in folders.items():
            for name in (*CHECKPOINT_FILES, DIGESTS_FILE):
                source = self.staged(step) / name
                with atomic_path(Path(folder) / name) as temporary:
                    try:
                        os.link(source, temporary)
                    except OSError:
                        shutil.copyfile(source, temporary)
