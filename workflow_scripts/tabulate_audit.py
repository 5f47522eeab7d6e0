"""Table 1: the audit at ten steps, beside the paper's numbers."""

import pandas as pd

from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.tables import audit_table, write


def main(audit: str, phases: str, paper_table: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (csv, md, tex); ``suite`` has label, is_paper_model and spacing."""
    found, paper = read_json(phases), pd.read_csv(paper_table)
    write(audit_table(pd.read_csv(audit), found, paper, suite=suite), outputs)


if __name__ == "__main__":
    run(main, snakemake)
