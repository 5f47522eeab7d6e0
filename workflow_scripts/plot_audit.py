"""Draw figure 1: the audit of a suite."""

import pandas as pd

from flatminima import audit_figure, style
from flatminima.files import read_json
from flatminima.jobs import run


def main(audit: str, phases: str, table1: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); the paper's points only over the paper's own model.

    ``suite`` has the keys label and is_paper_model.
    """
    points = pd.read_csv(table1) if suite["is_paper_model"] else None
    tables = pd.read_csv(audit), read_json(phases)
    style.save(audit_figure.draw(*tables, suite=suite, paper_points=points), outputs)


if __name__ == "__main__":
    run(main, snakemake)
