"""Turn the scores of one fork into gaps with their intervals."""

import pandas as pd

from flatminima.conditions import Condition
from flatminima.files import write_table
from flatminima.intervals import summarise
from flatminima.jobs import run


def main(
    suite: str,
    condition: str,
    seed: int,
    sequences: pd.DataFrame,
    losses: pd.DataFrame,
    table: str,
    settings: dict,
    labels: dict,
    sequence_length: int,
    resamples: int,
) -> None:
    """Write a row per probe and quantizer; ``condition`` is the name, ``settings`` the rest.

    ``labels`` become columns of their own. The learning rate and the phase of a row are those of
    the last update before the probe.
    """
    fork = Condition(**settings)
    rows = summarise(sequences, ["step"], resamples=resamples, seed=0)
    steps = rows["step"]
    schedule = fork.schedule
    lr = steps.map(lambda step: schedule(step - 1))  # of the update that made the step
    loss_by_step = losses.set_index("step")["loss_nats_per_token"]
    about_the_run = {
        "suite": suite,
        "schedule": condition,
        **labels,
        "seed": seed,
        "fork_step": fork.start,
        "step": steps,
        "tokens_since_fork": (steps - fork.start) * fork.fork["batch_size"] * sequence_length,
        "lr_last_update": lr,
        "lr_fraction_last_update": lr / fork.training["lr_max"],
        "update_phase": steps.map(lambda step: schedule.last_update_phase(step) or ""),
        "train_loss_nats_per_token": steps.map(loss_by_step),
    }
    write_table(table, pd.concat([pd.DataFrame(about_the_run), rows.drop(columns="step")], axis=1))


if __name__ == "__main__":
    run(main, snakemake)
