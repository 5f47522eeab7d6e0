"""Hold the onset of every small run against its own FP32 minimum."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.replication import run_phases


def main(*, tables: list, sequences: list, spacing: int, resamples: int, runs: str,
         comparison: str) -> None:  # fmt: skip
    """Write all probes of all runs, and a row per run with its minimum and its onset."""
    found = [pd.read_csv(path) for path in tables]
    write_table(runs, pd.concat(found, ignore_index=True))
    rows = [
        run_phases(table, pd.read_parquet(path), spacing=spacing, resamples=resamples)
        for table, path in zip(found, sequences, strict=True)
    ]
    write_table(comparison, pd.DataFrame(rows))


if __name__ == "__main__":
    run(main, snakemake)
