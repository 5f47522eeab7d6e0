"""Where an unfinished training job keeps what it needs to go on after a kill.

The folder lies outside the declared outputs of the rule, so Snakemake does not
delete it when a job fails. It belongs to one fingerprint (settings, inputs, code);
what another fingerprint left behind is thrown away.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from workflow_scripts.lib.checkpoints import atomic_path
from workflow_scripts.lib.training import load_state, save_state, state_fingerprint


def fingerprint(**settings: object) -> str:
    """Hash of everything that decides what a job computes."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


class Workspace:
    """A job's folder: its last training state, and files it has finished so far."""

    def __init__(self, folder: str | Path, fingerprint: str, save_every: int) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.save_every = save_every
        self.state = self.folder / "state.safetensors"
        if state_fingerprint(self.state) != fingerprint:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def resume(
        self, model: nn.Module, optimizer: torch.optim.AdamW, start: int
    ) -> tuple[int, list[float]]:
        """Restore the last state and return its step and losses; ``start`` if there is none."""
        if not self.state.exists():
            return start, []
        return load_state(self.state, model, optimizer)

    def save(
        self, model: nn.Module, optimizer: torch.optim.AdamW, step: int, losses: list[float]
    ) -> None:
        """Save the state if ``step`` is a multiple of ``save_every``."""
        if step % self.save_every == 0:
            save_state(
                self.state, model, optimizer,
                step=step, fingerprint=self.fingerprint, losses=losses,
            )  # fmt: skip

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
