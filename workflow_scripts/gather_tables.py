"""Join tables of one kind: kurtosis, forks, or measurements beyond the paper."""

import pandas as pd

from flatminima.files import read_rows, write_table
from flatminima.jobs import run


def main(tables: list, table: str, in_step_order: bool, labels: dict) -> None:
    """Write all rows in the order of ``tables`` or by step; ``labels`` become the first columns."""
    rows = read_rows(tables)
    if in_step_order:
        rows = rows.sort_values("step", kind="stable")
    write_table(table, pd.concat([pd.DataFrame(labels, index=rows.index), rows], axis=1))


if __name__ == "__main__":
    run(main, snakemake)
