"""Draw figure 4: LAMBADA perplexities that the Pythia authors published."""

import pandas as pd

from flatminima import headlines
from flatminima.figures import figure_lambada, plotting
from flatminima.jobs import log, logged


def main(*, lambada: str, figures: list[str]) -> None:
    """Write ``figures`` (pdf, svg, png) from resources/paper/pythia_lambada.csv."""
    table = pd.read_csv(lambada)
    plotting.save(figure_lambada.draw(table), figures)
    log(headlines.written(figures, headlines.lambada(table, figure_lambada.PAPER_MODEL)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(lambada=snakemake.input.lambada, figures=list(snakemake.output))
