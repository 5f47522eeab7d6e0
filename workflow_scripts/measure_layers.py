"""Probe checkpoints with one matrix quantized alone, and with all but one."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run
from flatminima.mechanism.variants import probe_layers
from flatminima.mechanism.visits import visits
from flatminima.quantizer_specs import read_spec


def main(*, folders: dict, validation: str, settings: dict, threads: int, table: str) -> None:
    """Write a row per step, matrix and probe (in, out, all)."""
    spec = read_spec(settings["low_bit"])
    found = [probe_layers(one, spec) for one in visits(folders, validation, settings, threads)]
    write_table(table, pd.concat(found))


if __name__ == "__main__":
    run(main, snakemake)
