"""Draw figure 9: noise, sensitivity and their product."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.files import read_json
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_sensitivity, headlines


def main(*, sensitivity: str, phases: str, figures: list[str], suite: dict, low: str) -> None:
    """Write ``figures`` (pdf, svg, png). ``low`` is the name of the low-bit quantizer."""
    table = pd.read_csv(sensitivity)
    plotting.save(figure_sensitivity.draw(table, read_json(phases), suite=suite, low=low), figures)
    log(written(figures, headlines.sensitivity(table, low)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            sensitivity=snakemake.input.sensitivity,
            phases=snakemake.input.phases,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
            low=snakemake.params.low,
        )
