"""Draw figure 2: excess kurtosis of the weights, and against the gap."""

import json
from pathlib import Path

import pandas as pd

from flatminima import headlines
from flatminima.figures import figure_kurtosis, plotting
from flatminima.jobs import log, logged


def main(*, kurtosis: str, audit: str, phases: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png).

    ``suite`` has the keys name, label, is_paper_model and spacing.
    """
    found = json.loads(Path(phases).read_text(encoding="utf-8"))
    table = pd.read_csv(kurtosis)
    drawing = figure_kurtosis.draw(table, pd.read_csv(audit), found, suite=suite)
    plotting.save(drawing, figures)
    log(headlines.written(figures, headlines.kurtosis(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            kurtosis=snakemake.input.kurtosis,
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
