"""Compute every statistical test and summary of a suite."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.statistics_table import all_statistics, read_fork_sequences


def main(
    forks: pd.DataFrame,
    audit: pd.DataFrame,
    kurtosis: pd.DataFrame,
    phases: dict,
    sequences: list[str],
    cooled: list[pd.DataFrame],
    statistics: str,
    spacing: int,
    baseline: str,
    primary: dict,
    resamples: int,
    seed: int,
) -> None:
    """Write ``statistics.csv``; ``baseline`` is the schedule that others are compared with.

    ``primary`` names the one test that was chosen beforehand; ``cooled`` is cooled.csv if
    the forks have a common cool-down, otherwise empty.
    """
    table = all_statistics(
        forks,
        audit,
        kurtosis,
        phases,
        spacing=spacing,
        baseline=baseline,
        primary=primary,
        cooled=cooled[0] if cooled else None,
        sequences=read_fork_sequences(sequences),
        resamples=resamples,
        seed=seed,
    )
    table.insert(0, "suite", phases["suite"])
    write_table(statistics, table)


if __name__ == "__main__":
    run(main, snakemake)
