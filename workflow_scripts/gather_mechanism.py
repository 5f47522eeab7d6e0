"""Gather the tables of one measurement from all its jobs."""

import pandas as pd

from flatminima.files import write_table
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import headlines


def main(*, tables: list[str], output: str) -> None:
    """Write one table in step order."""
    gathered = pd.concat(map(pd.read_csv, tables), ignore_index=True)
    write_table(output, gathered.sort_values("step", kind="stable"))
    log(written([output], headlines.rows(gathered)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(tables=snakemake.input.tables, output=snakemake.output.table)
