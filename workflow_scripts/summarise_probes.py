"""Turn the scores of single sequences into a row per step and quantizer, with intervals."""

import pandas as pd

from flatminima.files import write_rows
from flatminima.intervals import summarise
from flatminima.jobs import run


def main(sequences: pd.DataFrame, table: str, resamples: int) -> None:
    """Write the table. If no revision was scored, it only has a heading."""
    summaries = []
    if len(sequences):
        summaries.append(summarise(sequences, ["step"], resamples=resamples, seed=0))
    write_rows(summaries, table)


if __name__ == "__main__":
    run(main, snakemake)
