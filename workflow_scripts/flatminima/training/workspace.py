"""Where an unfinished training job keeps what it needs to go on after a kill.

The folder lies outside the declared outputs of the rule, so Snakemake does not
delete it when a job fails. It belongs to one fingerprint (settings, inputs, code);
what another fingerprint left behind, and a state that is damaged, is thrown away.

Used as a context, it lets a job that is asked to stop (SIGTERM, as a cluster sends before
it takes a machine back, or Ctrl-C) finish its update and save its state first.
"""

import os
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from flatminima.errors import DamagedFile
from flatminima.files import atomic_path
from flatminima.jobs import log
from flatminima.revisions.finished_parts import fingerprint
from flatminima.training.loop import load_state, save_state, state_fingerprint

__all__ = ["Workspace", "fingerprint"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        self.folder.mkdir(parents=True, exist_ok=True)

    def _clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Workspace":
        # Only the main thread may set handlers; elsewhere a signal does what it always does.
        if threading.current_thread() is threading.main_thread():
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
            self.remove()

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
            save_state(
                self.state, model, optimizer,
                step=step, fingerprint=self.fingerprint, losses=losses,
            )  # fmt: skip
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

    def remove(self) -> None:
        """Delete the folder once the job's outputs are all in place."""
        shutil.rmtree(self.folder)
