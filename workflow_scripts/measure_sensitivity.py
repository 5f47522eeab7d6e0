"""Measure quantization noise and the loss's sensitivity to it at checkpoints."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import logged
from flatminima.mechanism.jobs import specs_of, visits
from flatminima.mechanism.sensitivity import sensitivity_table
from flatminima.mechanism.surface import LossSurface


def main(*, folders: dict, validation: str, settings: dict, quantizers: dict, threads: int,
         table: str) -> None:  # fmt: skip
    """Write a row per step, perturbation and matrix; ``quantizers`` by role."""
    specs = specs_of(quantizers)
    tables = []
    for visit in visits(folders, validation, settings, name="sensitivity", threads=threads):
        names = list(visit.weights(specs["low_bit"].layers))
        surface = LossSurface(
            visit.model, visit.tokens, names,
            batch_size=settings["batch_size"], device=visit.device,
        )  # fmt: skip
        tables.append(
            sensitivity_table(
                surface, specs, step=visit.step,
                draws=settings["draws"], resamples=settings["resamples"],
            )
        )  # fmt: skip
    write_table(table, pd.concat(tables))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            table=snakemake.output.table,
            **{k: v for k, v in snakemake.params.items() if k != "code"},
        )
