"""Separate bits, symmetry and granularity, and hold one sensitivity times step² against all."""

import pandas as pd

from flatminima.files import write_table
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import headlines
from flatminima.mechanism.factors import analyse


def main(*, cells: str, sequences: list[str], probed: dict, resamples: int, output: str) -> None:
    """Write the table of effects; ``sequences`` are the scores of all jobs."""
    scores = pd.concat(map(pd.read_parquet, sequences), ignore_index=True)
    effects = analyse(
        pd.read_csv(cells), scores,
        low=probed["low_bit"], high=probed["high_bit"], resamples=resamples,
    )  # fmt: skip
    write_table(output, effects)
    log(written([output], headlines.factors(effects)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            cells=snakemake.input.cells,
            sequences=snakemake.input.sequences,
            probed=snakemake.params.probed,
            resamples=snakemake.params.resamples,
            output=snakemake.output.effects,
        )
