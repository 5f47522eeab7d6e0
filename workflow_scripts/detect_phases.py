"""Find convergence, onset and the phases of a suite's training run."""

import logging

import pandas as pd

from flatminima.absent_steps import diverged_steps, missing_steps
from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.phases import describe_phases, onset_words

logger = logging.getLogger(__name__)


def main(
    suite_table: pd.DataFrame,
    sequences: pd.DataFrame,
    audit: pd.DataFrame,
    phases: str,
    spacing: int,
    resamples: int,
    seed: int,
) -> None:
    """Write ``phases.json`` from the audit and the scores of single validation sequences."""
    description = describe_phases(
        audit,
        sequences,
        spacing=spacing,
        resamples=resamples,
        seed=seed,
        missing=missing_steps(suite_table),
        diverged=diverged_steps(suite_table, audit),
    )
    write_json(phases, description)
    convergence_step = description["convergence"]["step"]
    onset = onset_words(description["onset"])
    logger.info(f"FP32 convergence at step {convergence_step:,}; {onset}")


if __name__ == "__main__":
    run(main, snakemake)
