"""Gather the weight kurtosis of all revisions of a suite."""

from workflow_scripts.lib.gathering import read_rows
from workflow_scripts.lib.running.logs import logged


def main(*, tables: list[str], suite: str, output: str) -> None:
    """Write ``kurtosis.csv`` in step order."""
    gathered = read_rows(tables).sort_values("step", kind="stable")
    gathered.insert(0, "suite", suite)
    gathered.to_csv(output, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            suite=snakemake.wildcards.suite,
            output=snakemake.output.table,
        )
