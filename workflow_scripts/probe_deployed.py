"""Probe real quantized inference at a few revisions, beside the simulated quantizers."""

import pandas as pd

from flatminima.jobs import progress, run
from flatminima.model import load_model
from flatminima.scoring import Prober
from flatminima.tools.deployed import probe_deployed


def main(folders: dict, validation: str, probe: dict, resamples: int, threads: int, suite: str,
         table: str) -> None:  # fmt: skip
    """Write a row per step and format; ``folders`` maps steps to checkpoint folders."""
    prober, tables = Prober(validation, probe, threads), []
    for step, folder in progress(folders.items(), "probing", total=len(folders)):
        model = load_model(folder, prober.device)
        simulated = prober(model, step)
        tables.append(probe_deployed(model, prober, step, simulated, resamples=resamples))
    found = pd.concat(tables, ignore_index=True)
    found.insert(0, "suite", suite)
    found.to_csv(table, index=False)


if __name__ == "__main__":
    run(main, snakemake)
