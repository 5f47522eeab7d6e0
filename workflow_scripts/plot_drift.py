"""Draw figure 11: weights on the points of the grid."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.files import read_json
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_drift, headlines


def main(
    *, drift: str, displacement: str, phase_flips: str, phases: str, figures: list[str], suite: dict
) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    table, moved, flips = (pd.read_csv(path) for path in (drift, displacement, phase_flips))
    plotting.save(figure_drift.draw(table, moved, flips, read_json(phases), suite=suite), figures)
    log(written(figures, headlines.drift(table)))


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
