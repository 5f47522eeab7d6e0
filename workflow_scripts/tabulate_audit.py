"""Table 1: the audit at ten steps, beside the paper's numbers."""

import json
from pathlib import Path

import pandas as pd

from flatminima import headlines, tables
from flatminima.jobs import log, logged
from flatminima.table_formats import write


def main(*, audit: str, phases: str, paper_table: str, outputs: list[str], suite: dict) -> None:
    """Write ``outputs`` (csv, md, tex).

    ``suite`` has the keys name, label, is_paper_model and spacing.
    """
    found = json.loads(Path(phases).read_text(encoding="utf-8"))
    measured = pd.read_csv(audit)
    write(tables.audit_table(measured, found, pd.read_csv(paper_table), suite=suite), outputs)
    log(headlines.written(outputs, headlines.audit(measured)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            paper_table=snakemake.input.paper_table,
            outputs=list(snakemake.output),
            suite=snakemake.params.suite,
        )
