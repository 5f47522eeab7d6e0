"""Draw figure 1: the audit of a suite."""

import json
from pathlib import Path

import pandas as pd

from flatminima import headlines
from flatminima.figures import figure_audit, plotting
from flatminima.jobs import log, logged


def main(*, audit: str, phases: str, paper_table: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png); the paper's points only over the paper's own model.

    ``suite`` has the keys name, label, is_paper_model and spacing.
    """
    points = pd.read_csv(paper_table) if suite["is_paper_model"] else None
    found = json.loads(Path(phases).read_text(encoding="utf-8"))
    table = pd.read_csv(audit)
    drawing = figure_audit.draw(table, found, suite=suite, paper_points=points)
    plotting.save(drawing, figures)
    log(headlines.written(figures, headlines.audit(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            paper_table=snakemake.input.paper_table,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
