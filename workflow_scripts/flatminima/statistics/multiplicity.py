"""Many tests of one question: Holm's correction within a stated family.

A family is one test of one measure on one unit, applied to all comparisons of a subject
(such as three schedules against one control). Different tests of the same comparison are
not a family: they are alternatives shown beside each other.
"""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from statsmodels.stats.multitest import multipletests

from flatminima.statistics.rows import Row


def in_family(rows: Iterable[Row], subject: str) -> Iterator[Row]:
    """Name the family of every row that has a p."""
    for row in rows:
        name = f"{subject}: {row.test} of {row.measure} by {row.unit}"
        yield row if np.isnan(row.p_value) else replace(row, family=name)


def adjust(table: pd.DataFrame) -> pd.DataFrame:
    """Fill ``p_adjusted`` of ``statistics.csv`` from ``p_value`` and ``family``.

    Holm's step-down bounds the chance of one false finding in a family, whatever the
    dependence between its tests.
    """
    tested = table[table["family"] != ""]
    # multipletests collects garbage in every call, which takes a tenth of a second while
    # it looks at everything that is loaded.
    gc.freeze()
    try:
        adjusted = tested.groupby("family")["p_value"].transform(
            lambda p: multipletests(p.to_numpy(), method="holm")[1]
        )
    finally:
        gc.unfreeze()
    return table.assign(p_adjusted=adjusted.reindex(table.index))
