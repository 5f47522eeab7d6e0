"""Measure the weight kurtosis of a series of checkpoints."""

from flatminima.files import write_rows
from flatminima.jobs import progress, run
from flatminima.kurtosis import kurtosis_of_checkpoint


def main(weights: list, steps: list, layers: str, table: str) -> None:
    """Write the three kurtosis statistics of each step; ``weights`` are its files, in order.

    A diverged checkpoint is named and left out.
    """
    series = list(zip(steps, weights, strict=True))
    tables = []
    for step, path in progress(series, "kurtosis"):
        tables += kurtosis_of_checkpoint(step, path, layers)
    write_rows(tables, table)


if __name__ == "__main__":
    run(main, snakemake)
