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
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from flatminima.errors import DamagedFile
from flatminima.files import atomic_path
from flatminima.jobs import log
from flatminima.model import load_tensors, read_metadata, save_tensors

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_COUNTERS = "state"


def fingerprint(**settings: object) -> str:
    """Hash of everything that decides what a job computes."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def save_state(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    *,
    step: int,
    fingerprint: str,
    losses: list[float],
) -> None:
    """Write a run's weights, moments, losses (nats per token) and counters to one file, atomically.

    ``fingerprint`` names the settings that the state belongs to.
    """
    tensors = {"losses": torch.tensor(losses, dtype=torch.float64)}
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach()
        if state := optimizer.state.get(parameter):
            tensors[f"exp_avg.{name}"] = state["exp_avg"]
            tensors[f"exp_avg_sq.{name}"] = state["exp_avg_sq"]
            tensors[f"updates.{name}"] = state["step"]
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    # Under one key: safetensors writes several in an order that differs from run to run.
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
    path: Path, model: nn.Module, optimizer: torch.optim.AdamW
) -> tuple[int, list[float]]:
    """Restore what ``save_state`` wrote; returns the step and the losses until then.

    Raises ``DamagedFile`` where it is not what was written, before any weight moves.
    """
    tensors, metadata = load_tensors(path)
    counters = _read_counters(metadata)
    if not counters or counters["sha256"] != _digest(tensors, counters):
        raise DamagedFile(f"{path}: damaged training state; the sha256 that it holds is another")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            if f"exp_avg.{name}" in tensors:
                optimizer.state[parameter] = {
                    "step": tensors[f"updates.{name}"].to(parameter.device),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(parameter.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(parameter.device),
                }
    return counters["step"], tensors["losses"].tolist()


def _read_counters(metadata: dict[str, str]) -> dict:
    """The counters of a saved state; empty where there are none that make sense."""
    try:
        counters = json.loads(metadata.get(_COUNTERS, "{}"))
    except json.JSONDecodeError:
        return {}
    return counters if {"step", "fingerprint", "sha256"} <= set(counters) else {}


def state_fingerprint(path: Path) -> str | None:
    """Fingerprint of a saved state; ``None`` where there is no state, or none that is whole."""
    try:
        return _read_counters(read_metadata(path)).get("fingerprint")
    except (FileNotFoundError, DamagedFile):
        return None


class Workspace:
    """A job's folder: its last training state, and files it has finished so far."""

    def __init__(self, folder: str | Path, fingerprint: str, save_every: int) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.save_every = save_every
        self.state = self.folder / "state.safetensors"
        self._asked_to_stop = 0
        self._handlers: dict = {}
        if state_fingerprint(self.state) != fingerprint:
            self._clear()

    def _clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

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
        self._handlers = {}

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Delete the folder if the job has ended well."""
        self._restore_handlers()
        if kind is None:
            shutil.rmtree(self.folder)

    def resume(
        self, model: nn.Module, optimizer: torch.optim.AdamW, start: int
    ) -> tuple[int, list[float]]:
        """Restore the last state and return its step and losses; ``start`` if there is none."""
        if not self.state.exists():
            return start, []
        try:
            step, losses = load_state(self.state, model, optimizer)
        except DamagedFile as error:
            log(f"{error}; the job begins anew")
            self._clear()
            return start, []
        log(f"going on from step {step}, where an unfinished job was saved")
        return step, losses

    def save(
        self, model: nn.Module, optimizer: torch.optim.AdamW, step: int, losses: list[float]
    ) -> None:
        """Save the state if ``step`` is a multiple of ``save_every`` or the job is to stop.

        Raises ``SystemExit`` in the second case, with the status that shells give to a signal.
        """
        if step % self.save_every == 0 or self._asked_to_stop:
            save_state(self.state, model, optimizer, step=step, fingerprint=self.fingerprint,
                       losses=losses)  # fmt: skip
        if self._asked_to_stop:
            name = signal.Signals(self._asked_to_stop).name
            log(f"{name}: stopped after step {step}, state saved; the same command goes on here")
            raise SystemExit(128 + self._asked_to_stop)

    def publish(self, files: Mapping[Path, Path]) -> None:
        """Put finished files (source to target) where the rule declares them.

        They stay in the workspace as well: a kill in between may leave some of them out,
        and the next run then finds them all. Linked where the file system can.
        """
        for source, target in files.items():
            with atomic_path(target) as temporary:
                try:
                    os.link(source, temporary)
                except OSError:
                    shutil.copyfile(source, temporary)
