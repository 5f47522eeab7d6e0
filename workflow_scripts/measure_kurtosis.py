"""Measure the weight kurtosis of a range of revisions."""

import pandas as pd

from workflow_scripts.lib.kurtosis import kurtosis_of_checkpoint
from workflow_scripts.lib.logs import logged, progress


def main(*, weights: dict, layers: str, output: str) -> None:
    """Write the three kurtosis statistics of each step; ``weights`` maps steps to files."""
    tables = [
        kurtosis_of_checkpoint(step, path, layers)
        for step, path in progress(weights.items(), "kurtosis", total=len(weights))
    ]
    pd.concat(tables, ignore_index=True).to_csv(output, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            weights=dict(zip(snakemake.params.steps, snakemake.input.weights, strict=True)),
            layers=snakemake.params.layers,
            output=snakemake.output.table,
        )
