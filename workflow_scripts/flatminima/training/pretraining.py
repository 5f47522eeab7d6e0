"""Training a suite from scratch and keeping the checkpoints of its grid."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.files import DIGESTS_FILE
from flatminima.jobs import progress
from flatminima.model import build_model, save_model
from flatminima.schedules import RunSchedule, pretraining_schedule
from flatminima.suite import CHECKPOINT_FILES
from flatminima.text.tokens import check_ids
from flatminima.training.loop import (
    Recipe,
    build_optimizer,
    load_state,
    save_state,
    train,
)
from flatminima.training.workspace import Workspace


def read_recipe(training: Mapping, batch_size: int | None = None) -> Recipe:
    """The recipe in a ``training`` section, with another batch size for forks."""
    values = {**training} if batch_size is None else {**training, "batch_size": batch_size}
    return Recipe(**{f.name: values[f.name] for f in fields(Recipe) if f.name in values})


def read_schedule(training: Mapping, total_steps: int) -> RunSchedule:
    """The schedule of a whole run from its ``training`` section."""
    return pretraining_schedule(
        training["schedule"],
        lr_max=training["lr_max"],
        lr_min=training["lr_min"],
        warmup_steps=training["warmup_steps"],
        total_steps=total_steps,
    )


def pretrain(
    tokens: np.ndarray,
    *,
    architecture: Mapping,
    vocab_size: int,
    training: Mapping,
    total_steps: int,
    start: int,
    stop: int,
    checkpoints: Mapping[int, str],
    initial_state: str | None,
    final_state: str,
    workspace: Workspace,
) -> pd.DataFrame:
    """Train from ``start`` to ``stop`` and write the checkpoints due in between.

    ``tokens`` is ``[sequences, length]``; ``checkpoints`` maps each step to its
    folder. A run that begins at 0 initialises the model, a later one takes
    ``initial_state``. Nothing appears in its place before the whole job is done.
    Returns one row per update: step, lr, loss_nats_per_token.
    """
    recipe, schedule = read_recipe(training), read_schedule(training, total_steps)
    check_ids(tokens, vocab_size, whose="config key tokenizer.vocab_size: the vocabulary")
    model = build_model(architecture, vocab_size, training["seed"])
    optimizer = build_optimizer(model, recipe)
    if initial_state is not None:
        load_state(Path(initial_state), model, optimizer)
    step, losses = workspace.resume(model, optimizer, start)
    staged = {due: workspace.folder / f"step{due}" for due in checkpoints}
    if step == 0 and 0 in staged:
        save_model(model, staged[0], digests=True)
    updates = train(
        model, optimizer, tokens, schedule, recipe, start=step, stop=stop, seed=training["seed"]
    )
    bar = progress(updates, f"training, steps {step} to {stop}", total=stop - step)
    for update in bar:
        losses.append(update.loss_nats)
        if update.step in staged:
            save_model(model, staged[update.step], digests=True)
            bar.set_postfix_str(f"loss {update.loss_nats:.3f} nats", refresh=False)
        workspace.save(model, optimizer, update.step, losses)
    save_state(
        Path(final_state), model, optimizer, step=stop, fingerprint=workspace.fingerprint, losses=[]
    )
    workspace.publish(
        {
            staged[due] / name: Path(folder) / name
            for due, folder in checkpoints.items()
            for name in (*CHECKPOINT_FILES, DIGESTS_FILE)
        }
    )
    rows = range(start, stop)
    return pd.DataFrame(
        {
            "step": [s + 1 for s in rows],
            "lr": [schedule(s) for s in rows],
            "loss_nats_per_token": losses,
        }
    )
