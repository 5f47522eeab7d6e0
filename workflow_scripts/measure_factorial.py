"""Probe checkpoints with every combination of bits, symmetry, granularity and layers."""

from flatminima.files import write_rows
from flatminima.jobs import run
from flatminima.mechanism.variants import probe_cells
from flatminima.mechanism.visits import visits
from flatminima.missing import leaving_out_diverged


def main(
    *, folders: dict, validation: str, settings: dict, threads: int, table: str, sequences: str
) -> None:
    """Write a row per step and cell, and the scores of each sequence.

    A checkpoint that has diverged is named and left out.
    """
    design = {key: settings[key] for key in ("bits", "group_sizes", "formats", "low")}
    tables = []
    scores = []
    for visit in visits(folders, validation, settings, threads):
        with leaving_out_diverged(visit.step):
            cells, cell_scores = probe_cells(visit, design)
            tables.append(cells)
            scores.append(cell_scores)
    write_rows(tables, table)
    write_rows(scores, sequences)


if __name__ == "__main__":
    run(main, snakemake)
