"""Measure the largest eigenvalue and the trace of the Hessian at checkpoints."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.sensitivity import LossSurface, curvature_row
from flatminima.mechanism.visits import visits


def main(*, folders: dict, validation: str, settings: dict, threads: int, table: str) -> None:
    """Write a row per step."""
    rows = []
    for visit in visits(folders, validation, settings, threads):
        surface = LossSurface(visit, list(visit.weights(settings["layers"])))
        rows.append(curvature_row(surface, step=visit.step, draws=settings["draws"],
                                  resamples=visit.resamples))  # fmt: skip
    write_table(table, pd.DataFrame(rows))


if __name__ == "__main__":
    run(main, snakemake)
