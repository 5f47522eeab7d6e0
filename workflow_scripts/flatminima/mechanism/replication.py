"""Small runs of several widths and seeds: does the onset follow each run's own FP32 minimum?

Each run is the suite's own training, shortened: the schedule, the optimiser and the text
of the suite, fewer steps and a part of the text in proportion, so that every run sees its
text as often as the suite's run does. Nothing of a run is kept but its scores.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from flatminima.jobs import progress
from flatminima.model import build_model
from flatminima.schedules import read_schedule
from flatminima.scoring import Prober
from flatminima.suite import even_steps
from flatminima.training.loop import build_optimizer, read_recipe, train


def run_scores(
    tokens: np.ndarray,
    prober: Prober,
    *,
    architecture: Mapping,
    vocab_size: int,
    training: Mapping,
    spacing: int,
    last: int,
    seed: int,
) -> pd.DataFrame:
    """Train one run from scratch and score it at the even steps; ``Prober``'s table.

    ``tokens`` is ``[sequences, length]``; ``seed`` decides initialisation and data order.
    """
    model = build_model(dict(architecture), vocab_size, seed)
    optimizer = build_optimizer(model, recipe := read_recipe(training))
    schedule = read_schedule(training, last)
    due = set(even_steps(spacing=spacing, last=last))
    updates = train(model, optimizer, tokens, schedule, recipe, start=0, stop=last, seed=seed)
    found = [
        prober(model, update.step)
        for update in progress(updates, f"run, {last} steps", total=last)
        if update.step in due
    ]
    return pd.concat(found, ignore_index=True)
