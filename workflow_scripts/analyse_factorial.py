"""Separate the effects of bits, symmetry and granularity; test one sensitivity times step²."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.factors import analyse


def main(
    cells: pd.DataFrame, sequences: list[pd.DataFrame], probed: dict, resamples: int, effects: str
) -> None:
    """Write the table of effects; ``sequences`` are the scores of all jobs.

    ``probed`` gives the cells of the suite's two quantizers in the design.
    """
    # A job whose checkpoints have all diverged has a table without rows.
    scores = pd.concat([table for table in sequences if len(table)], ignore_index=True)
    table = analyse(
        cells, scores, low=probed["low_bit"], high=probed["high_bit"], resamples=resamples
    )
    write_table(effects, table)


if __name__ == "__main__":
    run(main, snakemake)
