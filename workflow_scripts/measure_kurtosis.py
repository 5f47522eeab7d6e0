"""Measure the weight kurtosis of a series of checkpoints."""

from flatminima.files import write_rows
from flatminima.jobs import progress, run
from flatminima.kurtosis import kurtosis_of_checkpoint
from flatminima.revisions.absent import absence


def main(weights: list, steps: list, layers: str, table: str) -> None:
    """Write the three kurtosis statistics of each step; ``weights`` are its files, in order."""
    there = {s: path for s, path in zip(steps, weights, strict=True) if absence(path) is None}
    tables = [
        kurtosis_of_checkpoint(step, path, layers)
        for step, path in progress(there.items(), "kurtosis", total=len(there))
    ]
    write_rows(tables, table)


if __name__ == "__main__":
    run(main, snakemake)
