"""Separate bits, symmetry and granularity, and hold one sensitivity times step² against all."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.factors import analyse


def main(
    cells: pd.DataFrame, sequences: list[pd.DataFrame], probed: dict, resamples: int, effects: str
) -> None:
    """Write the table of effects; ``sequences`` are the scores of all jobs.

    ``probed`` says where the suite's own two quantizers lie in the design.
    """
    low, high = probed["low_bit"], probed["high_bit"]
    # A job whose checkpoints have all diverged has a table without rows.
    scores = pd.concat([table for table in sequences if len(table)], ignore_index=True)
    write_table(effects, analyse(cells, scores, low=low, high=high, resamples=resamples))


if __name__ == "__main__":
    run(main, snakemake)
