"""Draw figure 8: every condition of the forks at its end."""

import pandas as pd

from workflow_scripts.lib.figures import figure_rivals, plotting
from workflow_scripts.lib.running.logs import logged


def main(*, rivals: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png); ``suite`` has the keys label and is_paper_model."""
    plotting.save(figure_rivals.draw(pd.read_csv(rivals), suite=suite), figures)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            rivals=snakemake.input.rivals,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
