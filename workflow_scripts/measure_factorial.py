"""Probe checkpoints with every combination of bits, symmetry, granularity and layers."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.variants import probe_cells
from flatminima.mechanism.visits import visits


def main(
    *, folders: dict, validation: str, settings: dict, threads: int, table: str, sequences: str
) -> None:
    """Write a row per step and cell, and the scores of each sequence."""
    design = {key: settings[key] for key in ("bits", "group_sizes", "formats", "low")}
    found = [probe_cells(one, design) for one in visits(folders, validation, settings, threads)]
    tables, scores = zip(*found, strict=True)
    write_table(table, pd.concat(tables))
    write_table(sequences, pd.concat(scores))


if __name__ == "__main__":
    run(main, snakemake)
