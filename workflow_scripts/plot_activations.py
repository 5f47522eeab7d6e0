"""Draw figure 12: activations beside weights."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.files import read_json
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_activations, headlines


def main(
    *, activations: str, kurtosis: str, phases: str, figures: list[str], suite: dict, bits: int
) -> None:
    """Write ``figures`` (pdf, svg, png). ``bits`` of a rounded activation."""
    table = pd.read_csv(activations)
    drawing = figure_activations.draw(
        table, pd.read_csv(kurtosis), read_json(phases), suite=suite, bits=bits
    )
    plotting.save(drawing, figures)
    log(written(figures, headlines.activations(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            activations=snakemake.input.activations,
            kurtosis=snakemake.input.kurtosis,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
            bits=snakemake.params.bits,
        )
