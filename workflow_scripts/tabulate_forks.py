"""Table 2: the conditions of the fork experiment, beside the paper's numbers."""

import pandas as pd

from flatminima import headlines, tables
from flatminima.jobs import log, logged
from flatminima.labels import role_labels
from flatminima.table_formats import write


def main(*, statistics: str, forks: str, paper_table: str, outputs: list[str], suite: dict) -> None:
    """Write ``outputs`` (csv, md, tex).

    ``suite`` has the keys name, label, is_paper_model and spacing.
    """
    measured, found, paper = (pd.read_csv(path) for path in (forks, statistics, paper_table))
    low = role_labels(measured)["low_bit"]
    write(tables.forks_table(found, paper, suite=suite, low=low), outputs)
    log(headlines.written(outputs, headlines.forks(measured)))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            statistics=snakemake.input.statistics,
            forks=snakemake.input.forks,
            paper_table=snakemake.input.paper_table,
            outputs=list(snakemake.output),
            suite=snakemake.params.suite,
        )
