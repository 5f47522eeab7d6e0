"""Probe checkpoints with every combination of bits, symmetry, granularity and layers."""

from functools import partial

from flatminima.files import write_rows
from flatminima.jobs import run
from flatminima.mechanism.variants import probe_cells
from flatminima.mechanism.visits import measure_each


def main(
    *, folders: dict, validation: str, settings: dict, threads: int, table: str, sequences: str
) -> None:
    """Write a row per step and cell, and the scores of each sequence.

    A diverged checkpoint is named and left out.
    """
    design = {key: settings[key] for key in ("bits", "group_sizes", "formats", "low")}
    probe = partial(probe_cells, design=design)
    tables_and_scores = measure_each(probe, folders, validation, settings, threads)
    write_rows([cells for cells, _ in tables_and_scores], table)
    write_rows([scores for _, scores in tables_and_scores], sequences)


if __name__ == "__main__":
    run(main, snakemake)
