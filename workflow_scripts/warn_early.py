"""Compare rules that should warn of the onset with the observed onset."""

import pandas as pd

from flatminima.early_warning import warning_table
from flatminima.files import write_table
from flatminima.jobs import run


def main(
    audit: pd.DataFrame, sequences: pd.DataFrame, phases: dict, table: str, spacing: int
) -> None:
    """Write ``early_warning.csv``; ``sequences`` are the per-sequence scores of the audit."""
    write_table(table, warning_table(audit, sequences, phases, spacing=spacing))


if __name__ == "__main__":
    run(main, snakemake)
