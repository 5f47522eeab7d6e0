"""Draw figure 13: small runs against their own FP32 minimum."""

import pandas as pd

from flatminima.figures import plotting
from flatminima.headlines import written
from flatminima.jobs import log, logged
from flatminima.mechanism import figure_replication, headlines


def main(*, runs: str, comparison: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    compared = pd.read_csv(comparison)
    plotting.save(figure_replication.draw(pd.read_csv(runs), compared, suite=suite), figures)
    log(written(figures, headlines.replication(compared)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            runs=snakemake.input.runs,
            comparison=snakemake.input.comparison,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
