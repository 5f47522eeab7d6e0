"""Draw figure 1: the audit of a suite, with the paper's points only over the paper's own model."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import gap_figure, style


def draw(audit: pd.DataFrame, phases: dict, table1: pd.DataFrame, suite: dict) -> Figure:
    """Figure 1 of ``suite`` (keys label, is_paper_model, quantizers)."""
    paper_points = table1 if suite["is_paper_model"] else None
    return gap_figure.draw(audit, phases, suite=suite, paper_points=paper_points)


if __name__ == "__main__":
    style.run(draw, snakemake)
