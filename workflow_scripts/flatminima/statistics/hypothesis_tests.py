"""The tests of sections 4 and 5 of the paper, and beside each what it hides: ``statistics.csv``."""

from dataclasses import asdict

import pandas as pd

from flatminima.statistics.checkpoint_tests import bit_width_rows, kurtosis_rows
from flatminima.statistics.fork_tests import fork_rows
from flatminima.statistics.multiplicity import adjust, in_family
from flatminima.statistics.rows import COLUMNS
from flatminima.statistics.sequence_tests import sequence_rows


def all_statistics(
    forks: pd.DataFrame,
    audit: pd.DataFrame,
    kurtosis: pd.DataFrame,
    phases: dict,
    *,
    spacing: int,
    baseline: str,
    sequences: pd.DataFrame | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Contents of ``statistics.csv``; ``spacing`` is the distance of evenly spaced steps.

    ``sequences`` holds the forks' scores (``sequence_tests.read_fork_sequences``); without
    them the rows whose unit is the sequence are left out. ``resamples`` and ``seed`` are
    those of the bootstrap over sequences.
    """
    against = [*fork_rows(forks, baseline)]
    if sequences is not None:
        against += sequence_rows(sequences, forks, baseline, resamples=resamples, seed=seed)
    rows = [
        *in_family(against, f"forks v {baseline}"),
        *in_family(kurtosis_rows(kurtosis, audit, phases, spacing), "kurtosis v low_bit gap"),
        *in_family(bit_width_rows(audit, spacing), "high_bit v low_bit"),
    ]
    table = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)
    return adjust(table.astype({"n_b": "Int64"}))
