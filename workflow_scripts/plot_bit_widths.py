"""Draw figure 5: the high-bit quantizer's cost against the low-bit one's."""

import pandas as pd

from flatminima import headlines
from flatminima.figures import figure_bit_widths, plotting
from flatminima.jobs import log, logged


def main(*, audit: str, paper_table: str, figures: list[str], suite: dict) -> None:
    """Write ``figures`` (pdf, svg, png); the printed Table 1 has a panel of its own.

    ``suite`` has the keys label, is_paper_model and spacing.
    """
    table = pd.read_csv(audit)
    drawing = figure_bit_widths.draw(table, pd.read_csv(paper_table), suite=suite)
    plotting.save(drawing, figures)
    log(headlines.written(figures, headlines.audit(table)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            audit=snakemake.input.audit,
            paper_table=snakemake.input.paper_table,
            figures=list(snakemake.output),
            suite=snakemake.params.suite,
        )
