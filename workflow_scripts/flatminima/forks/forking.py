"""Forks: training that leaves a run at a checkpoint under another schedule (section 5)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from flatminima.files import write_table
from flatminima.forks.settings import ForkSettings
from flatminima.jobs import progress
from flatminima.scoring import Prober
from flatminima.text.tokens import check_ids
from flatminima.training import distributed
from flatminima.training.gradients import read_compute, set_attention
from flatminima.training.loop import build_optimizer, load_state, train
from flatminima.training.pretraining import read_recipe
from flatminima.training.workspace import Workspace


@dataclass(frozen=True)
class Fork:
    """One condition and one seed, which decides the data order and nothing else."""

    condition: ForkSettings
    seed: int

    def run(
        self,
        model: nn.Module,
        tokens: np.ndarray,
        prober: Prober,
        *,
        initial_state: str | None,
        workspace: Workspace,
    ) -> pd.DataFrame:
        """Train and probe; returns step, lr and loss_nats_per_token of every update.

        ``model`` holds the weights of ``start`` on the prober's device; ``tokens`` is
        ``[sequences, length]``; ``initial_state`` gives Adam's moments, ``None`` starts
        them fresh. What was probed is then in ``scores``. Of several processes the first
        one probes and saves.
        """
        check_ids(tokens, model.config.vocab_size, whose="the vocabulary")
        at, compute = self.condition, read_compute(self.condition.compute)
        set_attention(model, compute.attention)
        recipe = read_recipe(at.training, at.fork["batch_size"])
        optimizer = build_optimizer(model, recipe)
        if initial_state is not None:
            load_state(Path(initial_state), model, optimizer)
        step, losses = workspace.resume(model, optimizer, at.start)
        updates = train(
            model, optimizer, self._cut(tokens), at.schedule, recipe,
            start=step, stop=at.stop, seed=self.seed, device=prober.device, compute=compute,
        )  # fmt: skip
        bar = progress(updates, f"fork, steps {step} to {at.stop}", total=at.stop - step)
        for update in bar:
            losses.append(update.loss_nats)
            if not distributed.is_first():
                continue
            if update.step in at.probed_steps:
                scores = prober(model, update.step)
                write_table(self._file(workspace, update.step), scores)
                bar.set_postfix_str(f"loss {update.loss_nats:.3f} nats", refresh=False)
            workspace.save(model, optimizer, update.step, losses)
        rows = range(at.start, at.stop)
        return pd.DataFrame(
            {
                "step": [s + 1 for s in rows],
                "lr": [at.schedule(s) for s in rows],
                "loss_nats_per_token": losses,
            }
        )

    def scores(self, workspace: Workspace) -> pd.DataFrame:
        """Per-sequence scores of all probes, once ``run`` is through."""
        files = [self._file(workspace, step) for step in self.condition.probed_steps]
        return pd.concat(map(pd.read_parquet, files), ignore_index=True)

    @staticmethod
    def _file(workspace: Workspace, step: int) -> Path:
        return workspace.folder / f"step{step}.parquet"

    def _cut(self, tokens: np.ndarray) -> np.ndarray:
        """The same text in shorter sequences where the condition asks for it."""
        length = self.condition.fork.get("length", tokens.shape[1])
        if tokens.shape[1] % length:
            raise ValueError(f"sequences of {tokens.shape[1]} tokens do not divide into {length}")
        return tokens.reshape(-1, length)
