"""Draw figure 6: which property of the grid costs what."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_factorial, headlines


def main(*, cells: str, factors: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    effects = pd.read_csv(factors)
    plotting.save(figure_factorial.draw(pd.read_csv(cells), effects, suite=suite), figures)
    log(written(figures, headlines.factors(effects)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            cells=snakemake.input.cells,
            factors=snakemake.input.factors,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
