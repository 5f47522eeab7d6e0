"""Forks: training that leaves a run at a checkpoint under another schedule (section 5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from workflow_scripts.lib.files import write_table
from workflow_scripts.lib.intervals import summarise
from workflow_scripts.lib.logs import progress
from workflow_scripts.lib.pretraining import read_recipe, read_schedule
from workflow_scripts.lib.probing import Prober
from workflow_scripts.lib.schedules import Schedule, fork_schedule, last_update_phase
from workflow_scripts.lib.tokens import check_ids
from workflow_scripts.lib.training import build_optimizer, load_state, train
from workflow_scripts.lib.workspace import Workspace


@dataclass(frozen=True)
class Fork:
    """One condition and one seed.

    ``definition`` is an entry of ``fork.schedules``; ``fork`` and ``training`` are the
    sections of the suite; ``total_steps`` is the last step of the suite's own run;
    ``seed`` decides the data order and nothing else.
    """

    definition: Mapping
    fork: Mapping
    training: Mapping
    total_steps: int
    seed: int

    @property
    def start(self) -> int:
        """Step of the checkpoint that the fork leaves from."""
        return self.fork["start"]

    @property
    def stop(self) -> int:
        """Step after the fork's last update."""
        return self.start + self.fork["steps"]

    @property
    def probed_steps(self) -> range:
        """Steps at which the fork is probed, counted back from its end.

        All of the fork, or where ``fork`` has ``probe_last`` that many steps of its end.
        """
        every = self.fork["probe_every"]
        span = self.fork.get("probe_last", self.fork["steps"])
        return range(self.stop - span + every, self.stop + 1, every)

    @property
    def schedule(self) -> Schedule:
        """Learning rate by absolute step."""
        baseline = read_schedule(self.training, self.total_steps)
        return fork_schedule(dict(self.definition), baseline=baseline, start=self.start)

    def run(
        self,
        model: nn.Module,
        tokens: np.ndarray,
        prober: Prober,
        *,
        initial_state: str | None,
        workspace: Workspace,
    ) -> tuple[pd.DataFrame, list[float]]:
        """Train and probe; returns per-sequence scores of all probes and every update's loss.

        ``model`` holds the weights of ``start`` on the prober's device; ``tokens`` is
        ``[sequences, length]``; ``initial_state`` gives Adam's moments, ``None`` starts
        them fresh. Losses are in nats per token.
        """
        check_ids(tokens, model.config.vocab_size, whose="the vocabulary")
        recipe = read_recipe(self.training, self.fork["batch_size"])
        optimizer = build_optimizer(model, recipe)
        if initial_state is not None:
            load_state(Path(initial_state), model, optimizer)
        step, losses = workspace.resume(model, optimizer, self.start)
        updates = train(
            model, optimizer, tokens, self.schedule, recipe,
            start=step, stop=self.stop, seed=self.seed, device=prober.device,
        )  # fmt: skip
        bar = progress(updates, f"fork, steps {step} to {self.stop}", total=self.stop - step)
        for update in bar:
            losses.append(update.loss_nats)
            if update.step in self.probed_steps:
                scores = prober(model, update.step)
                write_table(workspace.folder / f"step{update.step}.parquet", scores)
                bar.set_postfix_str(f"loss {update.loss_nats:.3f} nats", refresh=False)
            workspace.save(model, optimizer, update.step, losses)
        files = [workspace.folder / f"step{step}.parquet" for step in self.probed_steps]
        return pd.concat(map(pd.read_parquet, files), ignore_index=True), losses

    def trajectory(
        self,
        scores: pd.DataFrame,
        losses: list[float],
        *,
        suite: str,
        name: str,
        sequence_length: int,
        resamples: int,
    ) -> pd.DataFrame:
        """One row per probe and quantizer, in the columns of ``forks/*.csv``.

        ``scores`` and ``losses`` are what ``run`` returned. The learning rate and the
        phase of a row are those of the last update before the probe.
        """
        table = summarise(scores, ["step"], resamples=resamples, seed=0)
        steps, schedule = table["step"], self.schedule
        lr = steps.map(lambda step: schedule(step - 1))
        tokens_per_step = self.fork["batch_size"] * sequence_length
        before = {
            "suite": suite,
            "schedule": name,
            "seed": self.seed,
            "fork_step": self.start,
            "step": steps,
            "tokens_since_fork": (steps - self.start) * tokens_per_step,
            "lr_last_update": lr,
            "lr_fraction_last_update": lr / self.training["lr_max"],
            "update_phase": steps.map(lambda step: last_update_phase(schedule, step) or ""),
            "train_loss_nats_per_token": steps.map(lambda step: losses[step - self.start - 1]),
        }
        return pd.concat([pd.DataFrame(before), table.drop(columns="step")], axis=1)
