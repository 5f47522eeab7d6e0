"""Draw figure 11: weights on the points of the grid."""

import pandas as pd

from workflow_scripts.lib.figures import plotting
from workflow_scripts.lib.mechanism import figure_drift
from workflow_scripts.lib.running.logs import logged
from workflow_scripts.lib.running.provenance import read_json


def main(
    *, drift: str, displacement: str, phase_flips: str, phases: str, figures: list[str], suite: dict
) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    drawing = figure_drift.draw(
        pd.read_csv(drift),
        pd.read_csv(displacement),
        pd.read_csv(phase_flips),
        read_json(phases),
        suite=suite,
    )
    plotting.save(drawing, figures)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            drift=snakemake.input.drift,
            displacement=snakemake.input.displacement,
            phase_flips=snakemake.input.phase_flips,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
