"""Gather every condition of the forks at its end."""

import pandas as pd

from flatminima import headlines
from flatminima.files import write_table
from flatminima.forks.rivals import rival_table
from flatminima.jobs import log, logged


def main(*, forks: str, tables: list[str], output: str) -> None:
    """Write ``rivals.csv``; ``tables`` lie in ``variants/`` (trained) or in ``averages/``."""
    variants = [pd.read_csv(path) for path in tables if "/variants/" in path]
    averages = [pd.read_csv(path) for path in tables if "/averages/" in path]
    table = rival_table(pd.read_csv(forks), variants, averages)
    write_table(output, table)
    log(headlines.written([output], headlines.rivals(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            forks=snakemake.input.forks,
            tables=list(snakemake.input.tables),
            output=snakemake.output.table,
        )
