"""Find convergence, onset and the phases of a suite's training run."""

import pandas as pd

from flatminima.files import write_json
from flatminima.jobs import log, run
from flatminima.phases import describe_phases


def main(
    suite_table: pd.DataFrame, sequences: pd.DataFrame, audit: pd.DataFrame, phases: str,
    spacing: int, resamples: int, seed: int,
) -> None:  # fmt: skip
    """Write ``phases.json`` from the audit and the scores of single validation sequences."""
    missing = sorted(set(suite_table["step"]) - set(audit["step"]))
    found = describe_phases(audit, sequences, spacing=spacing, resamples=resamples, seed=seed,
                            missing=missing)  # fmt: skip
    write_json(phases, found)
    best, onset = found["convergence"]["step"], found["onset"]
    log(f"FP32 convergence at step {best}, onset at {onset['step']} {onset['reason']}")


if __name__ == "__main__":
    run(main, snakemake)
