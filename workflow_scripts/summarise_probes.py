"""Turn the scores of single sequences into a row per step and quantizer, with intervals."""

import pandas as pd

from flatminima.files import write_rows
from flatminima.intervals import summarise
from flatminima.jobs import run


def main(sequences: pd.DataFrame, table: str, resamples: int) -> None:
    """Write the table; of no revision at all it is a heading."""
    scored = [sequences] if len(sequences) else []
    write_rows([summarise(one, ["step"], resamples=resamples, seed=0) for one in scored], table)


if __name__ == "__main__":
    run(main, snakemake)
