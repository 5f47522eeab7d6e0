"""Training of GPT-NeoX models as Pythia was trained, in a loop that can stop anywhere.

Everything a run depends on is a pure function of the step: the learning rate (``schedules``)
and the data order (``batch_rows``); nothing else is drawn after initialisation. A state is
therefore weights, Adam's two moments and two counters, and a run that was stopped and resumed
ends bit-identical to one that was not. What is measured of a run is measured from its
checkpoints.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.optim import AdamW

from flatminima.conditions import Condition
from flatminima.errors import Diverged
from flatminima.files import file_sha256, write_json, write_table
from flatminima.jobs import progress
from flatminima.model import WEIGHTS_FILE, save_model
from flatminima.schedules import Schedule
from flatminima.training.gradients import PLAIN, Compute, batch_gradients, sharpness_aware_gradients
from flatminima.training.workspace import Workspace, fingerprint, load_state, save_state

logger = logging.getLogger(__name__)
# Where torch has AdamW as one kernel; elsewhere it falls back on the slower one.
_FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Recipe:
    """How one update is made (section 5.1: "Adam with Pythia's original hyperparameters").

    ``weight_decay`` is decoupled (AdamW) and spares biases and layer norms; ``seed`` decides the
    data order; a ``sam_radius`` above 0 takes the gradient at the worst point that near.
    """

    batch_size: int
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    clip_norm: float
    seed: int
    sam_radius: float = 0.0
    compute: Compute = PLAIN


class Update(NamedTuple):
    """One finished update: the step it led to, its rate, and the batch's mean NLL before it."""

    step: int
    lr: float
    loss_nats: float


def read_recipe(training: Mapping, **changes: object) -> Recipe:
    """The recipe in a ``training`` section, with what forks change or add."""
    values = {**training, **changes}
    return Recipe(**{f.name: values[f.name] for f in fields(Recipe) if f.name in values})


def fork_recipe(condition: Condition, seed: int) -> Recipe:
    """The recipe that a fork trains with; ``seed`` decides its data order."""
    return read_recipe(
        condition.training,
        batch_size=condition.fork["batch_size"],
        seed=seed,
        compute=Compute(**condition.compute),
    )


def build_optimizer(model: nn.Module, recipe: Recipe) -> AdamW:
    """AdamW with fresh moments; weight decay on matrices only. Fused where the device has it."""
    parameters = list(model.parameters())
    fused = all(p.device.type in _FUSED_DEVICES for p in parameters) or None
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = recipe.beta1, recipe.beta2
    return AdamW(groups, lr=0.0, betas=betas, eps=recipe.eps, fused=fused)


def batch_rows(step: int, *, sequences: int, batch_size: int, seed: int) -> np.ndarray:
    """Rows of the training tokens that the update at ``step`` sees, ``[batch_size]``.

    Every epoch is a permutation of its own, drawn from (seed, epoch); a batch may
    straddle two epochs. Depends on nothing but the arguments.
    """
    places = (divmod(step * batch_size + row, sequences) for row in range(batch_size))
    return np.array([_order(seed, epoch, sequences)[row] for epoch, row in places])


@lru_cache(maxsize=2)  # a batch may straddle two epochs; drawing one takes as long as an update
def _order(seed: int, epoch: int, sequences: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(sequences)


def train(
    model: nn.Module,
    optimizer: AdamW,
    tokens: np.ndarray,
    schedule: Schedule,
    recipe: Recipe,
    *,
    start: int,
    stop: int,
) -> Iterator[Update]:
    """Train from step ``start`` to step ``stop``, yielding after each update.

    ``tokens`` is ``[sequences, length]``. Models are in evaluation mode, in which dropout is
    zero, as Pythia has it: nothing is drawn at random, and a job that is resumed takes the same
    updates. Raises ``Diverged`` where a loss or a gradient is not finite, before any weight moves.
    """
    rate, device = 0.0, next(model.parameters()).device
    for step in range(start, stop):
        model.eval()
        rows = batch_rows(
            step, sequences=len(tokens), batch_size=recipe.batch_size, seed=recipe.seed
        )
        ids = torch.from_numpy(tokens[rows].astype(np.int64)).to(device)
        if recipe.sam_radius:
            value = sharpness_aware_gradients(model, ids, recipe.sam_radius, recipe.compute)
        else:
            value = batch_gradients(model, ids, recipe.compute)
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm).item()
        if not (math.isfinite(value) and math.isfinite(norm)):
            moved = f" after an update at learning rate {rate:g}" if step > start else ""
            raise Diverged(
                f"training diverged: at step {step} the loss is {value} nats per token and the "
                f"norm of the gradient {norm}{moved}"
            )
        rate = schedule(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield Update(step + 1, rate, value)


def dropout_rates(model: nn.Module) -> dict[str, float]:
    """Rates above zero that a model's configuration has for dropout, by key in order."""
    config = model.config.get_text_config(decoder=True).to_dict()
    return {
        key: rate
        for key, rate in sorted(config.items())
        if "drop" in key and isinstance(rate, float) and rate > 0.0
    }


def train_job(
    model: nn.Module, tokens: np.ndarray, schedule: Schedule, recipe: Recipe, *, start: int,
    stop: int, checkpoints: Mapping[int, str], losses: str, workspace: str, save_every: int,
    made_by: Mapping, provenance: str | None = None, initial_state: str | None = None,
    final_state: str | None = None, key: str = "training.lr_max",
) -> None:  # fmt: skip
    """Train from ``start`` to ``stop``; write the checkpoints due on the way and all losses.

    ``model`` holds the weights of ``start``, ``tokens`` is ``[sequences, length]``;
    ``checkpoints`` maps each step to its folder, float32. Adam's moments are those of
    ``initial_state``, or fresh; ``final_state`` receives the state of the end, ``provenance``
    what made the checkpoints and the sha256 of their weights. The job goes on where it was
    stopped, as long as ``made_by`` is alike, and nothing appears in its place before all is
    done. Dropout of the model's configuration is set to zero (``train``), which log and
    provenance say. Raises ``Diverged`` with ``key``, the one of the configuration to blame.
    """
    rates = dropout_rates(model)
    if rates:
        logger.info("dropout is set to zero: %s", rates)
        made_by = {**made_by, "dropout_set_to_zero": rates}
    optimizer = build_optimizer(model, recipe)
    if initial_state is not None:
        load_state(Path(initial_state), model, optimizer)
    with Workspace(workspace, fingerprint(**made_by), save_every) as unfinished:
        step, nats = unfinished.resume(model, optimizer, start)
        if step == start and start in checkpoints:
            save_model(model, unfinished.staged(start), digests=True)
        updates = train(model, optimizer, tokens, schedule, recipe, start=step, stop=stop)
        bar = progress(updates, f"training, steps {step} to {stop}", total=stop - step)
        try:
            for update in bar:
                nats.append(update.loss_nats)
                if update.step in checkpoints:
                    if not all(p.isfinite().all() for p in model.parameters()):
                        raise Diverged(
                            f"training diverged: weights of step {update.step} are not finite; "
                            f"loss {update.loss_nats} nats per token, learning rate {update.lr:g}"
                        )
                    save_model(model, unfinished.staged(update.step), digests=True)
                    bar.set_postfix_str(f"loss {update.loss_nats:.3f} nats", refresh=False)
                unfinished.save(model, optimizer, update.step, nats)
        except Diverged as error:
            raise Diverged(f"{error}; lower config key {key}") from None
        if final_state is not None:
            save_state(Path(final_state), model, optimizer, step=stop, losses=[],
                       fingerprint=unfinished.fingerprint)  # fmt: skip
        unfinished.publish(checkpoints)
        steps = range(start, stop)
        table = {"step": [s + 1 for s in steps], "lr": map(schedule, steps)}
        write_table(losses, pd.DataFrame(table | {"loss_nats_per_token": nats}))
        if provenance is not None:
            made = {s: file_sha256(f"{folder}/{WEIGHTS_FILE}") for s, folder in checkpoints.items()}
            write_json(provenance, {**made_by, "weights_sha256": made})
