"""Find convergence, onset and the phases of a suite's training run."""

import pandas as pd

from flatminima.files import write_json
from flatminima.jobs import log, run
from flatminima.missing import diverged_steps, missing_steps
from flatminima.phases import describe_phases, onset_words


def main(
    suite_table: pd.DataFrame, sequences: pd.DataFrame, audit: pd.DataFrame, phases: str,
    spacing: int, resamples: int, seed: int,
) -> None:  # fmt: skip
    """Write ``phases.json`` from the audit and the scores of single validation sequences."""
    found = describe_phases(
        audit,
        sequences,
        spacing=spacing,
        resamples=resamples,
        seed=seed,
        missing=missing_steps(suite_table),
        diverged=diverged_steps(suite_table, audit),
    )
    write_json(phases, found)
    log(f"FP32 convergence at step {found['convergence']['step']:,}; {onset_words(found['onset'])}")


if __name__ == "__main__":
    run(main, snakemake)
