"""Draw figure 7: which matrix breaks when."""

import pandas as pd

from workflow_scripts.lib.figures import plotting
from workflow_scripts.lib.mechanism import figure_layers
from workflow_scripts.lib.running.logs import logged
from workflow_scripts.lib.running.provenance import read_json


def main(*, layers: str, phases: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    drawing = figure_layers.draw(pd.read_csv(layers), read_json(phases), suite=suite)
    plotting.save(drawing, figures)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            layers=snakemake.input.layers,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
