"""Turn the scores of single sequences into a row per step and quantizer, with intervals."""

import pandas as pd

from flatminima.files import write_rows
from flatminima.intervals import summarise
from flatminima.jobs import run


def main(sequences: str, table: str, resamples: int) -> None:
    """Write the table; of no revision at all it is a heading."""
    scores = pd.read_parquet(sequences)
    rows = [summarise(scores, ["step"], resamples=resamples, seed=0)] if len(scores) else []
    write_rows(rows, table)


if __name__ == "__main__":
    run(main, snakemake)
