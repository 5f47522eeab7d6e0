"""Measure the weight kurtosis of a range of revisions."""

from flatminima.files import write_rows
from flatminima.jobs import log, logged, progress
from flatminima.kurtosis import kurtosis_of_checkpoint
from flatminima.revisions.absent import absence


def main(*, weights: dict, layers: str, output: str) -> None:
    """Write the three kurtosis statistics of each step; ``weights`` maps steps to files."""
    there = {step: path for step, path in weights.items() if absence(path) is None}
    tables = [
        kurtosis_of_checkpoint(step, path, layers)
        for step, path in progress(there.items(), "kurtosis", total=len(there))
    ]
    write_rows(tables, output)
    for step, table in list(zip(there, tables, strict=True))[-1:]:
        mean = table.loc[table["statistic"] == "mean_over_tensors", "excess_kurtosis"].item()
        log(f"mean excess kurtosis {mean:.2f} at step {step:,}; {len(tables)} revisions")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            weights=dict(zip(snakemake.params.steps, snakemake.input.weights, strict=True)),
            layers=snakemake.params.layers,
            output=snakemake.output.table,
        )
