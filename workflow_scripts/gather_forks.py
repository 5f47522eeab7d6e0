"""Gather the trajectories of forks in the order of the configuration."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run


def main(tables: list[str], table: str) -> None:
    """Write all rows below each other."""
    write_table(table, pd.concat(map(pd.read_csv, tables), ignore_index=True))


if __name__ == "__main__":
    run(main, snakemake)
