"""Turn the scores of one fork into gaps with their intervals."""

import pandas as pd

from flatminima.files import write_table
from flatminima.forks import trajectory
from flatminima.jobs import run
from flatminima.schedules import Condition


def main(
    suite: str, condition: str, seed: int, sequences: pd.DataFrame, losses: pd.DataFrame,
    table: str, settings: dict, labels: dict, sequence_length: int, resamples: int,
) -> None:  # fmt: skip
    """Write a row per probe and quantizer; ``condition`` is the name, ``settings`` the rest."""
    about = {"suite": suite, "name": condition, "seed": seed, "labels": labels}
    rows = trajectory(Condition(**settings), sequences, losses, **about,
                      sequence_length=sequence_length, resamples=resamples)  # fmt: skip
    write_table(table, rows)


if __name__ == "__main__":
    run(main, snakemake)
