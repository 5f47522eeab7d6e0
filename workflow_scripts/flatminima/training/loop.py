"""Training of GPT-NeoX models as Pythia was trained, in a loop that can be stopped and resumed.

The learning rate (``schedules``) and the data order (``batch_rows``) are pure functions of the
step, and nothing else is random after initialisation. A training state therefore needs only
weights, Adam's two moments and two counters. A run that was stopped and resumed ends with the same
bits as an uninterrupted run. Training measures nothing; its checkpoints are measured later.
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
# Devices on which torch has AdamW as a single, faster kernel.
_FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Recipe:
    """Settings of an update (section 5.1: "Adam with Pythia's original hyperparameters").

    ``weight_decay`` is decoupled (AdamW) and does not apply to biases and layer norms. ``seed``
    decides the data order. With a ``sam_radius`` above 0, gradients are those of
    ``sharpness_aware_gradients``.
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
    """One update: the step after it, its rate, and the batch's mean NLL before it."""

    step: int
    lr: float
    loss_nats: float


def read_recipe(training: Mapping, **changes: object) -> Recipe:
    """The recipe in a ``training`` section, with ``changes``."""
    settings = {**training, **changes}
    names = [field.name for field in fields(Recipe)]
    return Recipe(**{name: settings[name] for name in names if name in settings})


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
    betas = (recipe.beta1, recipe.beta2)
    # The rate is set before each update, by ``train``.
    return AdamW(groups, lr=0.0, betas=betas, eps=recipe.eps, fused=fused)


def batch_rows(step: int, *, sequences: int, batch_size: int, seed: int) -> np.ndarray:
    """Rows of the training tokens that the update at ``step`` uses, ``[batch_size]``.

    Each epoch has its own random order of all sequences, drawn from (seed, epoch). A batch may
    span two epochs. The rows depend on the arguments only.
    """
    rows = []
    for position in range(step * batch_size, (step + 1) * batch_size):
        epoch, position_in_epoch = divmod(position, sequences)
        rows.append(_order(seed, epoch, sequences)[position_in_epoch])
    return np.array(rows)


@lru_cache(maxsize=2)  # a batch may span two epochs; drawing an order takes as long as an update
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

    ``tokens`` is ``[sequences, length]``. The model is in evaluation mode, in which dropout is
    zero, as in Pythia's training. Nothing is drawn at random, so a resumed job makes the same
    updates. Raises ``Diverged``, before any weight moves, if a loss or a gradient is not finite.
    """
    device = next(model.parameters()).device
    rate = 0.0
    for step in range(start, stop):
        model.eval()  # in each step: the caller may have changed it between two updates
        rows = batch_rows(
            step, sequences=len(tokens), batch_size=recipe.batch_size, seed=recipe.seed
        )
        ids = torch.from_numpy(tokens[rows].astype(np.int64)).to(device)
        if recipe.sam_radius:
            loss = sharpness_aware_gradients(model, ids, recipe.sam_radius, recipe.compute)
        else:
            loss = batch_gradients(model, ids, recipe.compute)
        # The norm before clipping. It is not finite if any gradient is not.
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            last_update = f" after an update at learning rate {rate:g}" if step > start else ""
            raise Diverged(
                f"training diverged: at step {step} the loss is {loss} nats per token and the "
                f"norm of the gradient {norm}{last_update}"
            )
        rate = schedule(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield Update(step + 1, rate, loss)


def dropout_rates(model: nn.Module) -> dict[str, float]:
    """Dropout rates above zero in a model's configuration, by key in alphabetical order."""
    config = model.config.get_text_config(decoder=True).to_dict()
    return {
        key: rate
        for key, rate in sorted(config.items())
        if "drop" in key and isinstance(rate, float) and rate > 0.0
    }


def train_job(
    model: nn.Module,
    tokens: np.ndarray,
    schedule: Schedule,
    recipe: Recipe,
    *,
    start: int,
    stop: int,
    checkpoints: Mapping[int, str],
    losses: str,
    workspace: str,
    save_every: int,
    made_by: Mapping,
    provenance: str | None = None,
    initial_state: str | None = None,
    final_state: str | None = None,
    key: str = "training.lr_max",
) -> None:
    """Train from ``start`` to ``stop``, and write checkpoints and all losses.

    A job that was stopped resumes from ``workspace``, if ``made_by`` is unchanged. No output
    appears before the job is done. The model's dropout is set to zero (see ``train``); the log and
    the provenance mention this.

    Args:
        model: has the weights of step ``start``
        tokens: ``[sequences, length]``
        schedule: learning rate by step
        recipe: settings of an update
        start: first step
        stop: step after the last update
        checkpoints: folder of the float32 checkpoint to write, by step
        losses: table of step, learning rate, and loss in nats per token
        workspace: folder for the training state of an unfinished job
        save_every: steps between two training states
        made_by: everything that decides the weights
        provenance: file for ``made_by`` and the sha256 of all weights
        initial_state: file with Adam's moments; without it they are fresh
        final_state: file for the training state at ``stop``
        key: the configuration key to blame if training diverges

    Raises:
        Diverged: if a loss, a gradient or a weight is not finite; the message names ``key``
    """
    rates = dropout_rates(model)
    if rates:
        logger.info("dropout is set to zero: %s", rates)
        made_by = {**made_by, "dropout_set_to_zero": rates}
    optimizer = build_optimizer(model, recipe)
    if initial_state is not None:
        load_state(Path(initial_state), model, optimizer)

    with Workspace(workspace, fingerprint(**made_by), save_every) as unfinished:
        step, loss_history = unfinished.resume(model, optimizer, start)
        # A resumed job has written the checkpoint of its first step already.
        if step == start and start in checkpoints:
            save_model(model, unfinished.staged(start), digests=True)
        updates = train(model, optimizer, tokens, schedule, recipe, start=step, stop=stop)
        bar = progress(updates, f"training, steps {step} to {stop}", total=stop - step)
        try:
            for update in bar:
                loss_history.append(update.loss_nats)
                if update.step in checkpoints:
                    _check_weights(model, update)
                    save_model(model, unfinished.staged(update.step), digests=True)
                    bar.set_postfix_str(f"loss {update.loss_nats:.3f} nats", refresh=False)
                # The state comes after the checkpoint. A job that resumes from the state then
                # finds every checkpoint that is due before it.
                unfinished.save(model, optimizer, update.step, loss_history)
        except Diverged as error:
            raise Diverged(f"{error}; lower config key {key}") from None

        if final_state is not None:
            save_state(
                Path(final_state),
                model,
                optimizer,
                step=stop,
                losses=[],
                fingerprint=unfinished.fingerprint,
            )
        unfinished.publish(checkpoints)
        steps = range(start, stop)
        table = {
            "step": [step + 1 for step in steps],
            # Rates are computed anew, because a resumed job has seen only some of them.
            "lr": map(schedule, steps),
            "loss_nats_per_token": loss_history,
        }
        write_table(losses, pd.DataFrame(table))
        if provenance is not None:
            weights_sha256 = {
                step: file_sha256(f"{folder}/{WEIGHTS_FILE}")
                for step, folder in checkpoints.items()
            }
            write_json(provenance, {**made_by, "weights_sha256": weights_sha256})


def _check_weights(model: nn.Module, update: Update) -> None:
    """Raise ``Diverged`` if a weight is not finite after ``update``."""
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise Diverged(
            f"training diverged: weights of step {update.step} are not finite; "
            f"loss {update.loss_nats} nats per token, learning rate {update.lr:g}"
        )
