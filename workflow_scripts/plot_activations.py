"""Draw figure 12: activations beside weights."""

import pandas as pd

from workflow_scripts.lib.figures import plotting
from workflow_scripts.lib.headlines import written
from workflow_scripts.lib.mechanism import figure_activations, headlines
from workflow_scripts.lib.running.logs import logged, say
from workflow_scripts.lib.running.provenance import read_json


def main(
    *, activations: str, kurtosis: str, phases: str, figures: list[str], suite: dict, bits: int
) -> None:
    """Write ``figures`` (pdf, svg, png). ``bits`` of a rounded activation."""
    table = pd.read_csv(activations)
    drawing = figure_activations.draw(
        table, pd.read_csv(kurtosis), read_json(phases), suite=suite, bits=bits
    )
    plotting.save(drawing, figures)
    say(written(figures, headlines.activations(table)))


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
