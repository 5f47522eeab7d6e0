"""Gather the weight kurtosis of all revisions of a suite."""

from flatminima.files import read_rows
from flatminima.jobs import run


def main(tables: list, suite: str, table: str) -> None:
    """Write ``kurtosis.csv`` in step order."""
    gathered = read_rows(tables).sort_values("step", kind="stable")
    gathered.insert(0, "suite", suite)
    gathered.to_csv(table, index=False)


if __name__ == "__main__":
    run(main, snakemake)
