"""Gather the weight kurtosis of all revisions of a suite."""

from flatminima.files import read_rows
from flatminima.jobs import log, logged


def main(*, tables: list[str], suite: str, output: str) -> None:
    """Write ``kurtosis.csv`` in step order."""
    gathered = read_rows(tables).sort_values("step", kind="stable")
    gathered.insert(0, "suite", suite)
    gathered.to_csv(output, index=False)
    mean = gathered[gathered["statistic"] == "mean_over_tensors"]["excess_kurtosis"]
    log(f"mean excess kurtosis: {mean.iloc[0]:.2f} at first, {mean.iloc[-1]:.2f} at last")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            suite=snakemake.wildcards.suite,
            output=snakemake.output.table,
        )
