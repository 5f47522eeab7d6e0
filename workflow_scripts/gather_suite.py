"""Gather the table of a suite's revisions."""

import pandas as pd

from workflow_scripts.lib.logs import logged, say
from workflow_scripts.lib.revisions import mark_duplicates


def main(*, tables: list[str], suite: str, output: str) -> None:
    """Write ``suite.csv``."""
    revisions = mark_duplicates(pd.concat(map(pd.read_csv, tables), ignore_index=True))
    revisions.insert(0, "suite", suite)
    revisions.to_csv(output, index=False)
    say(f"{len(revisions)} revisions, {revisions['weights_sha256'].nunique()} of them distinct")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            tables=snakemake.input.tables,
            suite=snakemake.wildcards.suite,
            output=snakemake.output.table,
        )
