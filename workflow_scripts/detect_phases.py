"""Find convergence, onset and the phases of a suite's training run."""

import pandas as pd

from flatminima.files import write_json
from flatminima.jobs import log, run
from flatminima.phases import describe_phases


def main(
    *, suite_table: str, sequences: str, audit: str, phases: str, spacing: int, resamples: int,
    seed: int,
) -> None:  # fmt: skip
    """Write ``phases.json`` from the audit and the scores of single validation sequences."""
    measured, suite = pd.read_csv(audit), pd.read_csv(suite_table)
    found = describe_phases(
        measured,
        pd.read_parquet(sequences),
        spacing=spacing,
        resamples=resamples,
        seed=seed,
        missing=sorted(set(suite["step"]) - set(measured["step"])),
    )
    write_json(phases, found)
    onset = found["onset"]
    log(f"FP32 convergence at step {found['convergence']['step']}, onset at {onset['step']}"
        + (f" ({onset['reason']})" if onset["reason"] else ""))  # fmt: skip


if __name__ == "__main__":
    run(main, snakemake)
