"""Gather every condition of the forks at its end."""

import pandas as pd

from flatminima.files import write_table
from flatminima.forks import rival_table
from flatminima.jobs import run


def main(forks: str, tables: list[str], table: str) -> None:
    """Write ``rivals.csv``; ``tables`` lie in ``variants/`` (trained) or in ``averages/``."""
    variants = [pd.read_csv(path) for path in tables if "/variants/" in path]
    averages = [pd.read_csv(path) for path in tables if "/averages/" in path]
    write_table(table, rival_table(pd.read_csv(forks), variants, averages))


if __name__ == "__main__":
    run(main, snakemake)
