"""Probe checkpoints with one matrix quantized alone, and with all but one."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import logged
from flatminima.mechanism.jobs import visits
from flatminima.mechanism.layerwise import probe_layers
from flatminima.quantizer_specs import read_spec


def main(*, folders: dict, validation: str, settings: dict, quantizer: dict, threads: int,
         table: str) -> None:  # fmt: skip
    """Write a row per step, matrix and probe (in, out, all)."""
    spec = read_spec(quantizer)
    tables = [
        probe_layers(
            visit.model, visit.tokens, spec, step=visit.step, batch_size=settings["batch_size"],
            resamples=settings["resamples"], device=visit.device,
        )
        for visit in visits(folders, validation, settings, name="layers", threads=threads)
    ]  # fmt: skip
    write_table(table, pd.concat(tables))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            table=snakemake.output.table,
            **{k: v for k, v in snakemake.params.items() if k != "code"},
        )
