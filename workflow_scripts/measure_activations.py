"""Measure activation kurtosis, the cost of rounding activations, and anisotropy."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import logged
from flatminima.mechanism.activations import hidden_kurtosis, weights_and_activations
from flatminima.mechanism.anisotropy import anisotropy
from flatminima.mechanism.jobs import visits
from flatminima.quantizer_specs import read_spec


def main(*, folders: dict, validation: str, settings: dict, quantizer: dict, threads: int,
         table: str) -> None:  # fmt: skip
    """Write a row per step, measure and name."""
    spec, tables = read_spec(quantizer), []
    for visit in visits(folders, validation, settings, name="activations", threads=threads):
        how = {"batch_size": settings["batch_size"], "resamples": settings["resamples"],
               "device": visit.device}  # fmt: skip
        rows = hidden_kurtosis(visit.model, visit.tokens, **how)
        rows += weights_and_activations(
            visit.model, visit.tokens, spec, bits=settings["bits"], step=visit.step, **how
        )
        rows += anisotropy(visit.model, visit.tokens, **how)
        tables.append(pd.DataFrame(rows).assign(step=visit.step))
    gathered = pd.concat(tables)
    write_table(table, gathered[["step", *gathered.columns.drop("step")]])


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            table=snakemake.output.table,
            **{k: v for k, v in snakemake.params.items() if k != "code"},
        )
