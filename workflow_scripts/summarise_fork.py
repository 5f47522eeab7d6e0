"""Turn the scores of one fork into gaps with their intervals."""

import pandas as pd

from flatminima.files import write_table
from flatminima.forks import trajectory
from flatminima.jobs import run
from flatminima.schedules import Condition


def main(suite: str, condition: str, seed: int, sequences: str, losses: str, table: str,
         settings: dict, labels: dict, sequence_length: int, resamples: int,
         code: str) -> None:  # fmt: skip
    """Write a row per probe and quantizer; ``condition`` is the name, ``settings`` the rest."""
    rows = trajectory(
        Condition(**settings),
        pd.read_parquet(sequences),
        pd.read_csv(losses),
        suite=suite, name=condition, seed=seed, labels=labels, sequence_length=sequence_length,
        resamples=resamples,
    )  # fmt: skip
    write_table(table, rows)


if __name__ == "__main__":
    run(main, snakemake)
