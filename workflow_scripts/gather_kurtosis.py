"""Gather the weight kurtosis of all revisions of a suite."""

import pandas as pd

from workflow_scripts.lib.logs import logged


def main(*, tables: list[str], suite: str, output: str) -> None:
    """Write ``kurtosis.csv`` in step order."""
    gathered = pd.concat(map(pd.read_csv, tables), ignore_index=True)
    gathered = gathered.sort_values("step", kind="stable")
    gathered.insert(0, "suite", suite)
    gathered.to_csv(output, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            suite=snakemake.wildcards.suite,
            output=snakemake.output.table,
        )
