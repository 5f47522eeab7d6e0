"""Probe real quantized inference at a few revisions, beside the simulated quantizers."""

import pandas as pd

from flatminima.checkpoints import load_model
from flatminima.deployed import probe_deployed
from flatminima.jobs import logged, progress
from flatminima.probing import Prober


def main(*, folders: dict, validation: str, probe: dict, threads: int, suite: str,
         output: str) -> None:  # fmt: skip
    """Write a row per step and format; ``folders`` maps steps to checkpoint folders."""
    prober, tables = Prober(validation, probe, threads), []
    for step, folder in progress(folders.items(), "probing", total=len(folders)):
        model = load_model(folder, prober.device)
        simulated = prober(model, step)
        tables.append(probe_deployed(model, prober, step, simulated, resamples=probe["resamples"]))
    table = pd.concat(tables, ignore_index=True)
    table.insert(0, "suite", suite)
    table.to_csv(output, index=False)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            folders=snakemake.params.folders,
            validation=snakemake.input.validation,
            probe=snakemake.params.probe,
            threads=snakemake.threads,
            suite=snakemake.wildcards.suite,
            output=snakemake.output.table,
        )
