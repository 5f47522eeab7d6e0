"""Draw figure 10: curvature along training."""

import pandas as pd

from workflow_scripts.lib.figures import plotting
from workflow_scripts.lib.mechanism import figure_curvature
from workflow_scripts.lib.running.logs import logged
from workflow_scripts.lib.running.provenance import read_json


def main(*, curvature: str, audit: str, phases: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    drawing = figure_curvature.draw(
        pd.read_csv(curvature), pd.read_csv(audit), read_json(phases), suite=suite
    )
    plotting.save(drawing, figures)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            curvature=snakemake.input.curvature,
            audit=snakemake.input.audit,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
