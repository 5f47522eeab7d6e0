"""Hold the onset of every small run against its own FP32 minimum."""

import pandas as pd

from flatminima.files import write_table
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import headlines
from flatminima.mechanism.replication_phases import run_phases


def main(*, tables: list[str], sequences: list[str], spacing: int, resamples: int, runs: str,
         comparison: str) -> None:  # fmt: skip
    """Write all probes of all runs, and a row per run with its minimum and its onset."""
    found = [pd.read_csv(path) for path in tables]
    write_table(runs, pd.concat(found, ignore_index=True))
    rows = [
        run_phases(table, pd.read_parquet(path), spacing=spacing, resamples=resamples)
        for table, path in zip(found, sequences, strict=True)
    ]
    compared = pd.DataFrame(rows)
    write_table(comparison, compared)
    log(written([runs, comparison], headlines.replication(compared)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            sequences=snakemake.input.sequences,
            spacing=snakemake.params.spacing,
            resamples=snakemake.params.resamples,
            runs=snakemake.output.runs,
            comparison=snakemake.output.comparison,
        )
