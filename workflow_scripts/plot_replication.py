"""Draw figure 13: small runs against their own FP32 minimum."""

import pandas as pd

from workflow_scripts.lib.figures import plotting
from workflow_scripts.lib.headlines import written
from workflow_scripts.lib.mechanism import figure_replication, headlines
from workflow_scripts.lib.running.logs import logged, say


def main(*, runs: str, comparison: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png)."""
    compared = pd.read_csv(comparison)
    plotting.save(figure_replication.draw(pd.read_csv(runs), compared, suite=suite), figures)
    say(written(figures, headlines.replication(compared)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            runs=snakemake.input.runs,
            comparison=snakemake.input.comparison,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
