"""The files of a probed range of revisions."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from flatminima.files import write_rows
from flatminima.intervals import summarise


def write_probes(
    scores: Sequence[pd.DataFrame], *, resamples: int, table: str | Path, sequences: str | Path
) -> None:
    """Write the scores of each sequence, and a row per step and quantizer.

    ``scores`` has a table of ``probing.Prober`` for each revision that could be had.
    """
    write_rows(scores, sequences)
    found = [summarise(pd.concat(scores), ["step"], resamples=resamples, seed=0)] if scores else []
    write_rows(found, table)
