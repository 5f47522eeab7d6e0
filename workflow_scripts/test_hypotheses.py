"""Compute every statistical test and summary of a suite."""

import json
from pathlib import Path

import pandas as pd

from flatminima import headlines
from flatminima.jobs import log, logged
from flatminima.statistics.hypothesis_tests import all_statistics
from flatminima.statistics.sequence_tests import read_fork_sequences


def main(
    *, forks: str, sequences: list[str], audit: str, kurtosis: str, phases: str, output: str,
    spacing: int, baseline: str, resamples: int, seed: int,
) -> None:  # fmt: skip
    """Write ``statistics.csv``; ``baseline`` is the schedule that others are compared with."""
    known = json.loads(Path(phases).read_text(encoding="utf-8"))
    statistics = all_statistics(
        pd.read_csv(forks), pd.read_csv(audit), pd.read_csv(kurtosis), known,
        spacing=spacing, baseline=baseline, sequences=read_fork_sequences(sequences),
        resamples=resamples, seed=seed,
    )  # fmt: skip
    statistics.insert(0, "suite", known["suite"])
    statistics.to_csv(output, index=False)
    log(headlines.written([output], headlines.tests(statistics)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            forks=snakemake.input.forks,
            sequences=snakemake.input.sequences,
            audit=snakemake.input.audit,
            kurtosis=snakemake.input.kurtosis,
            phases=snakemake.input.phases,
            output=snakemake.output.statistics,
            spacing=snakemake.params.spacing,
            baseline=snakemake.params.baseline,
            resamples=snakemake.params.resamples,
            seed=snakemake.params.seed,
        )
