"""Find convergence, onset and the phases of a suite's training run."""

import logging

import pandas as pd

from flatminima.absent_steps import diverged_steps, missing_steps
from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.phases import describe_phases, onset_words

logger = logging.getLogger(__name__)


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
    convergence_step = found["convergence"]["step"]
    logger.info(f"FP32 convergence at step {convergence_step:,}; {onset_words(found['onset'])}")


if __name__ == "__main__":
    run(main, snakemake)
