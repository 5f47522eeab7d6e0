"""Measure the largest eigenvalue and the trace of the Hessian at checkpoints."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import logged
from flatminima.mechanism.curvature import curvature_row
from flatminima.mechanism.jobs import visits
from flatminima.mechanism.surface import LossSurface


def main(*, folders: dict, validation: str, settings: dict, layers: str, threads: int,
         table: str) -> None:  # fmt: skip
    """Write a row per step; ``layers`` are those whose weights may move."""
    rows = []
    for visit in visits(folders, validation, settings, name="curvature", threads=threads):
        surface = LossSurface(
            visit.model, visit.tokens, list(visit.weights(layers)),
            batch_size=settings["batch_size"], device=visit.device,
        )  # fmt: skip
        draws, resamples = settings["draws"], settings["resamples"]
        rows.append(curvature_row(surface, step=visit.step, draws=draws, resamples=resamples))
    write_table(table, pd.DataFrame(rows))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            validation=snakemake.input.validation,
            threads=snakemake.threads,
            table=snakemake.output.table,
            **{k: v for k, v in snakemake.params.items() if k != "code"},
        )
