"""Table 2: the conditions of the fork experiment, beside the paper's numbers."""

import pandas as pd

from flatminima.jobs import run
from flatminima.style import role_labels
from flatminima.tables import forks_table, write


def main(forks: str, statistics: str, paper_table: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (csv, md, tex); ``suite`` has the keys label and is_paper_model."""
    low = role_labels(pd.read_csv(forks), suite)["low_bit"]
    found, paper = pd.read_csv(statistics), pd.read_csv(paper_table)
    write(forks_table(found, paper, suite=suite, low=low), outputs)


if __name__ == "__main__":
    run(main, snakemake)
