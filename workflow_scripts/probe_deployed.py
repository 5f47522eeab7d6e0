"""Probe real quantized inference at a few revisions, and compare it with the simulation."""

import pandas as pd

from flatminima.jobs import progress, run
from flatminima.model import load_model
from flatminima.scoring import Prober
from flatminima.tools.deployed import probe_deployed


def main(
    folders: dict,
    validation: str,
    probe: dict,
    resamples: int,
    threads: int,
    suite: str,
    table: str,
) -> None:
    """Write one row per step and format; ``folders`` maps steps to checkpoint folders."""
    prober = Prober(validation, probe, threads)

    def probe_checkpoint(step: int, folder: str) -> pd.DataFrame:
        # The model is local to this function, so that it is freed before the next one is loaded.
        model = load_model(folder, prober.device)
        simulated = prober(model, step)
        return probe_deployed(model, prober, step, simulated, resamples=resamples)

    steps = progress(folders.items(), "probing", total=len(folders))
    tables = [probe_checkpoint(step, folder) for step, folder in steps]
    rows = pd.concat(tables, ignore_index=True)
    rows.insert(0, "suite", suite)
    rows.to_csv(table, index=False)


if __name__ == "__main__":
    run(main, snakemake)
