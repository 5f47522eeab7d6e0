"""Gather every condition of the forks at its end."""

import pandas as pd

from flatminima.files import read_content, write_table
from flatminima.forks import rival_table
from flatminima.jobs import run


def main(forks: pd.DataFrame, tables: list[str], table: str) -> None:
    """Write ``rivals.csv``; ``tables`` lie in ``variants/`` (trained) or in ``averages/``."""
    variants, averages = (
        [read_content(path) for path in tables if f"/{kind}/" in path]
        for kind in ("variants", "averages")
    )
    write_table(table, rival_table(forks, variants, averages))


if __name__ == "__main__":
    run(main, snakemake)
