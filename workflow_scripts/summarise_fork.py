"""Turn the scores of one fork into gaps with their intervals."""

import pandas as pd

from flatminima import headlines
from flatminima.files import write_table
from flatminima.forks.settings import ForkSettings
from flatminima.forks.trajectories import trajectory
from flatminima.jobs import log, logged


def main(*, suite: str, name: str, seed: int, sequences: str, losses: str, table: str,
         settings: dict, labels: dict, sequence_length: int, resamples: int,
         code: str) -> None:  # fmt: skip
    """Write a row per probe and quantizer."""
    rows = trajectory(
        ForkSettings(**settings),
        pd.read_parquet(sequences),
        pd.read_csv(losses),
        suite=suite, name=name, seed=seed, labels=labels, sequence_length=sequence_length,
        resamples=resamples,
    )  # fmt: skip
    write_table(table, rows)
    log(headlines.written([table], headlines.one_fork(rows)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            suite=snakemake.wildcards.suite,
            seed=int(snakemake.wildcards.seed),
            sequences=snakemake.input.sequences,
            losses=snakemake.input.losses,
            table=snakemake.output.table,
            **snakemake.params,
        )
