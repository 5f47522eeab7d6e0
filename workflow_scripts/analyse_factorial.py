"""Separate bits, symmetry and granularity, and hold one sensitivity times step² against all."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.factors import analyse


def main(*, cells: str, sequences: list, probed: dict, resamples: int, effects: str) -> None:
    """Write the table of effects; ``sequences`` are the scores of all jobs.

    ``probed`` says where the suite's own two quantizers lie in the design.
    """
    scores = pd.concat(map(pd.read_parquet, sequences), ignore_index=True)
    found = analyse(pd.read_csv(cells), scores, low=probed["low_bit"], high=probed["high_bit"],
                    resamples=resamples)  # fmt: skip
    write_table(effects, found)


if __name__ == "__main__":
    run(main, snakemake)
