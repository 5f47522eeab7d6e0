"""Hold rules that are to warn of the onset against what happened."""

import pandas as pd

from flatminima.early_warning import warning_table
from flatminima.files import read_json, write_table
from flatminima.jobs import run


def main(*, audit: str, sequences: str, phases: str, table: str, spacing: int) -> None:
    """Write ``early_warning.csv``; ``sequences`` are the per-sequence scores of the audit."""
    warnings = warning_table(
        pd.read_csv(audit), pd.read_parquet(sequences), read_json(phases), spacing=spacing
    )
    write_table(table, warnings)


if __name__ == "__main__":
    run(main, snakemake)
