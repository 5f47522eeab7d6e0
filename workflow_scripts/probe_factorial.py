"""Probe checkpoints with every combination of bits, symmetry, granularity and layers."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import logged
from flatminima.mechanism.factorial import probe_cells
from flatminima.mechanism.jobs import visits


def main(*, folders: dict, validation: str, settings: dict, probed: dict, threads: int,
         table: str, sequences: str) -> None:  # fmt: skip
    """Write a row per step and cell, and the scores of each sequence.

    ``probed`` says where the suite's own two quantizers lie in the design.
    """
    design = {key: settings[key] for key in ("bits", "group_sizes", "formats")}
    found = [
        probe_cells(
            visit.model, visit.tokens, design | {"low": probed["low_bit"]}, step=visit.step,
            batch_size=settings["batch_size"], resamples=settings["resamples"],
            device=visit.device,
        )
        for visit in visits(folders, validation, settings, name="factorial", threads=threads)
    ]  # fmt: skip
    tables, scores = zip(*found, strict=True)
    write_table(table, pd.concat(tables))
    write_table(sequences, pd.concat(scores))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            table=snakemake.output.table,
            sequences=snakemake.output.sequences,
            **{k: v for k, v in snakemake.params.items() if k != "code"},
        )
