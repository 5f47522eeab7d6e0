"""Gather the trajectories of all forks of a suite."""

import pandas as pd

from workflow_scripts.lib.running.logs import logged


def main(*, tables: list[str], output: str) -> None:
    """Write ``forks.csv`` in the order of the configuration."""
    pd.concat(map(pd.read_csv, tables), ignore_index=True).to_csv(output, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(tables=snakemake.input.tables, output=snakemake.output.table)
