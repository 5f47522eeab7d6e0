"""Compute every statistical test and summary of a suite."""

import pandas as pd

from flatminima.comparisons import all_statistics, read_fork_sequences
from flatminima.files import read_json, write_table
from flatminima.jobs import run


def main(
    *, forks: str, sequences: list[str], cooled: list[str], audit: str, kurtosis: str,
    phases: str, statistics: str,
    spacing: int, baseline: str, primary: dict, resamples: int, seed: int,
) -> None:  # fmt: skip
    """Write ``statistics.csv``; ``baseline`` is the schedule that others are compared with.

    ``primary`` names the one test that was chosen beforehand; ``cooled`` holds cooled.csv where
    the forks have a common cool-down.
    """
    known = read_json(phases)
    table = all_statistics(
        pd.read_csv(forks), pd.read_csv(audit), pd.read_csv(kurtosis), known,
        spacing=spacing, baseline=baseline, primary=primary,
        cooled=pd.read_csv(cooled[0]) if cooled else None,
        sequences=read_fork_sequences(sequences),
        resamples=resamples, seed=seed,
    )  # fmt: skip
    table.insert(0, "suite", known["suite"])
    write_table(statistics, table)


if __name__ == "__main__":
    run(main, snakemake)
