"""From a fork's scores and losses to the rows of ``forks/*.csv``."""

from collections.abc import Mapping

import pandas as pd

from flatminima.forks.settings import ForkSettings
from flatminima.intervals import summarise


def trajectory(
    condition: ForkSettings,
    scores: pd.DataFrame,
    losses: pd.DataFrame,
    *,
    suite: str,
    name: str,
    seed: int,
    labels: Mapping[str, object],
    sequence_length: int,
    resamples: int,
) -> pd.DataFrame:
    """One row per probe and quantizer of one condition and one seed.

    ``scores`` are the per-sequence scores of all probes, ``losses`` has step and
    loss_nats_per_token of every update; ``labels`` become columns of their own. The
    learning rate and the phase of a row are those of the last update before the probe.
    """
    table = summarise(scores, ["step"], resamples=resamples, seed=0)
    steps, schedule = table["step"], condition.schedule
    lr = steps.map(lambda step: schedule(step - 1))
    tokens_per_step = condition.fork["batch_size"] * sequence_length
    by_step = losses.set_index("step")["loss_nats_per_token"]
    before = {
        "suite": suite,
        "schedule": name,
        **labels,
        "seed": seed,
        "fork_step": condition.start,
        "step": steps,
        "tokens_since_fork": (steps - condition.start) * tokens_per_step,
        "lr_last_update": lr,
        "lr_fraction_last_update": lr / condition.training["lr_max"],
        "update_phase": steps.map(lambda step: schedule.last_update_phase(step) or ""),
        "train_loss_nats_per_token": steps.map(by_step),
    }
    return pd.concat([pd.DataFrame(before), table.drop(columns="step")], axis=1)
