"""Hold rules that are to warn of the onset against what happened."""

import json
from pathlib import Path

import pandas as pd

from flatminima import headlines
from flatminima.jobs import log, logged
from flatminima.statistics.early_warning import warning_table


def main(*, audit: str, sequences: str, phases: str, output: str, spacing: int) -> None:
    """Write ``early_warning.csv``; ``sequences`` are the per-sequence scores of the audit."""
    table = warning_table(
        pd.read_csv(audit),
        pd.read_parquet(sequences),
        json.loads(Path(phases).read_text(encoding="utf-8")),
        spacing=spacing,
    )
    table.to_csv(output, index=False)
    log(headlines.written([output], headlines.warnings(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            audit=snakemake.input.audit,
            sequences=snakemake.input.sequences,
            phases=snakemake.input.phases,
            output=snakemake.output.table,
            spacing=snakemake.params.spacing,
        )
