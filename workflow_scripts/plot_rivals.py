"""Draw figure 8: every condition of the forks at its end."""

import pandas as pd

from flatminima import headlines
from flatminima.figures import figure_rivals, plotting
from flatminima.jobs import log, logged


def main(*, rivals: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png); ``suite`` has the keys label and is_paper_model."""
    table = pd.read_csv(rivals)
    plotting.save(figure_rivals.draw(table, suite=suite), figures)
    log(headlines.written(figures, headlines.rivals(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            rivals=snakemake.input.rivals,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
