"""Tables of ranges put together; a range of which no revision could be had has no rows."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from flatminima.errors import UserError


def write_rows(tables: Iterable[pd.DataFrame], output: str | Path) -> None:
    """Write tables below each other, as parquet or CSV by the suffix; a heading alone for none."""
    found = list(tables)
    rows = pd.concat(found, ignore_index=True) if found else pd.DataFrame({"step": []})
    if Path(output).suffix == ".parquet":
        rows.to_parquet(output, index=False)
    else:
        rows.to_csv(output, index=False)


def read_rows(paths: Iterable[str | Path]) -> pd.DataFrame:
    """All rows of CSV or parquet files in order; ``UserError`` where there are none at all."""
    tables = [
        pd.read_parquet(path) if Path(path).suffix == ".parquet" else pd.read_csv(path)
        for path in paths
    ]
    # Columns without a row have no dtype and would take that of the others away.
    tables = [table for table in tables if len(table)]
    if not tables:
        raise UserError("no revision of the suite could be had: there is nothing to gather")
    return pd.concat(tables, ignore_index=True)
