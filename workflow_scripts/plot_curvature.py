"""Draw figure 10: curvature along training."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.files import read_json
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_curvature, headlines


def main(*, curvature: str, audit: str, phases: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    table = pd.read_csv(curvature)
    drawing = figure_curvature.draw(table, pd.read_csv(audit), read_json(phases), suite=suite)
    plotting.save(drawing, figures)
    log(written(figures, headlines.curvature(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            curvature=snakemake.input.curvature,
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
