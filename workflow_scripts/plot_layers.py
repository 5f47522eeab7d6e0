"""Draw figure 7: which matrix breaks when."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.files import read_json
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_layers, headline_layers


def main(*, layers: str, phases: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    table = pd.read_csv(layers)
    plotting.save(figure_layers.draw(table, read_json(phases), suite=suite), figures)
    log(written(figures, headline_layers.layers(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            layers=snakemake.input.layers,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
