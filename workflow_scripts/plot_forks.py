"""Draw figure 3: the forks under three learning-rate schedules."""

import pandas as pd

from flatminima import headlines
from flatminima.figures import figure_forks, plotting
from flatminima.jobs import log, logged


def main(*, forks: str, audit: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png).

    ``suite`` has the keys name, label, is_paper_model and spacing.
    """
    table = pd.read_csv(forks)
    plotting.save(figure_forks.draw(table, pd.read_csv(audit), suite=suite), figures)
    log(headlines.written(figures, headlines.forks(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            forks=snakemake.input.forks,
            audit=snakemake.input.audit,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
