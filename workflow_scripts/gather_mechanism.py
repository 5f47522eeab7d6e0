"""Gather the tables of one measurement from all its jobs."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run


def main(*, tables: list, table: str) -> None:
    """Write one table in step order."""
    gathered = pd.concat(map(pd.read_csv, tables), ignore_index=True)
    write_table(table, gathered.sort_values("step", kind="stable"))


if __name__ == "__main__":
    run(main, snakemake)
