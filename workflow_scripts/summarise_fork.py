"""Turn the scores of one fork into gaps with their intervals."""

import pandas as pd

from workflow_scripts.lib import headlines
from workflow_scripts.lib.files import write_table
from workflow_scripts.lib.forks.settings import ForkSettings
from workflow_scripts.lib.forks.trajectories import trajectory
from workflow_scripts.lib.running.logs import logged, say


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
    say(headlines.written([table], headlines.one_fork(rows)))


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
