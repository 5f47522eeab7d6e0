"""The tests of sections 4 and 5 of the paper, and beside each what it hides: ``statistics.csv``."""

from dataclasses import asdict

import pandas as pd

from workflow_scripts.lib.checkpoint_tests import bit_width_rows, kurtosis_rows
from workflow_scripts.lib.fork_tests import fork_rows
from workflow_scripts.lib.statistics_rows import COLUMNS


def all_statistics(
    forks: pd.DataFrame, audit: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, *,
    spacing: int, baseline: str,
) -> pd.DataFrame:  # fmt: skip
    """Contents of ``statistics.csv``; ``spacing`` is the distance of evenly spaced steps."""
    rows = [
        *fork_rows(forks, baseline),
        *kurtosis_rows(kurtosis, audit, phases, spacing),
        *bit_width_rows(audit, spacing),
    ]
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS).astype({"n_b": "Int64"})
