"""Draw figure 1: the audit of a suite."""

import pandas as pd

from flatminima import audit_figure, style
from flatminima.files import read_json
from flatminima.jobs import run


def main(audit: str, phases: str, paper_table: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); the paper's points only over the paper's own model.

    ``suite`` has the keys label and is_paper_model.
    """
    points = pd.read_csv(paper_table) if suite["is_paper_model"] else None
    drawing = audit_figure.draw(
        pd.read_csv(audit), read_json(phases), suite=suite, paper_points=points
    )
    style.save(drawing, outputs)


if __name__ == "__main__":
    run(main, snakemake)
