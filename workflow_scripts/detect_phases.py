"""Find convergence, onset and the phases of a suite's training run."""

import json
from pathlib import Path

import pandas as pd

from flatminima.jobs import log, logged
from flatminima.revisions.missing import missing_steps
from flatminima.statistics.phases import describe_phases


def main(
    *, suite_table: str, sequences: str, audit: str, output: str, spacing: int, resamples: int,
    seed: int,
) -> None:  # fmt: skip
    """Write ``phases.json`` from the audit and the scores of single validation sequences."""
    phases = describe_phases(
        pd.read_csv(audit),
        pd.read_parquet(sequences),
        spacing=spacing,
        resamples=resamples,
        seed=seed,
        missing=missing_steps(pd.read_csv(suite_table)),
    )
    Path(output).write_text(json.dumps(phases, indent=2) + "\n", encoding="utf-8")
    onset = phases["onset"]
    log(f"FP32 convergence at step {phases['convergence']['step']}, onset at {onset['step']}"
        + (f" ({onset['reason']})" if onset["reason"] else ""))  # fmt: skip


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(
            suite_table=snakemake.input.suite_table,
            sequences=snakemake.input.sequences,
            audit=snakemake.input.audit,
            output=snakemake.output.phases,
            spacing=snakemake.params.spacing,
            resamples=snakemake.params.resamples,
            seed=snakemake.params.seed,
        )
