"""Table 2: the conditions of the fork experiment, beside the paper's numbers."""

import pandas as pd

from workflow_scripts.lib import tables
from workflow_scripts.lib.labels import role_labels
from workflow_scripts.lib.running.logs import logged
from workflow_scripts.lib.table_formats import write


def main(*, statistics: str, forks: str, paper_table: str, outputs: list[str], suite: dict) -> None:
    """Write ``outputs`` (csv, md, tex).

    ``suite`` has the keys name, label, is_paper_model and spacing.
    """
    low = role_labels(pd.read_csv(forks))["low_bit"]
    found, paper = pd.read_csv(statistics), pd.read_csv(paper_table)
    write(tables.forks_table(found, paper, suite=suite, low=low), outputs)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            statistics=snakemake.input.statistics,
            forks=snakemake.input.forks,
            paper_table=snakemake.input.paper_table,
            outputs=list(snakemake.output),
            suite=snakemake.params.suite,
        )
