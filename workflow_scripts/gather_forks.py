"""Gather the trajectories of all forks of a suite."""

import pandas as pd

from flatminima.jobs import log, logged


def main(*, tables: list[str], output: str) -> None:
    """Write ``forks.csv`` in the order of the configuration."""
    gathered = pd.concat(map(pd.read_csv, tables), ignore_index=True)
    gathered.to_csv(output, index=False)
    low = gathered[(gathered["role"] == "low_bit") & (gathered["step"] == gathered["step"].max())]
    ends = low.groupby("schedule", sort=False)["gap_pct"].mean()
    log("final gaps: " + ", ".join(f"{name} {gap:.2f} %" for name, gap in ends.items()))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(tables=snakemake.input.tables, output=snakemake.output.table)
