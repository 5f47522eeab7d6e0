"""Measure quantization noise and the loss's sensitivity to it at checkpoints."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.sensitivity import LossSurface, sensitivity_table
from flatminima.mechanism.visits import visits
from flatminima.quantizer_specs import read_spec


def main(*, folders: dict, validation: str, settings: dict, threads: int, table: str) -> None:
    """Write a row per step, perturbation and matrix."""
    specs = {role: read_spec(settings[role]) for role in ("low_bit", "high_bit")}
    found = []
    for visit in visits(folders, validation, settings, threads):
        surface = LossSurface(visit, list(visit.weights(specs["low_bit"].layers)))
        found.append(sensitivity_table(surface, specs, step=visit.step, draws=settings["draws"],
                                       resamples=visit.resamples))  # fmt: skip
    write_table(table, pd.concat(found))


if __name__ == "__main__":
    run(main, snakemake)
