"""Measure activation kurtosis, the cost of rounding activations, and anisotropy."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.activations import activation_table
from flatminima.mechanism.visits import visits
from flatminima.quantizer_specs import read_spec


def main(*, folders: dict, validation: str, settings: dict, threads: int, table: str) -> None:
    """Write a row per step, measure and name."""
    spec = read_spec(settings["low_bit"])
    found = [
        activation_table(visit, spec, settings["bits"])
        for visit in visits(folders, validation, settings, threads)
    ]
    write_table(table, pd.concat(found))


if __name__ == "__main__":
    run(main, snakemake)
