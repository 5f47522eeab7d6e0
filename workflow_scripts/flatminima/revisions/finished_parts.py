"""Where a job of many parts keeps those it has finished, so that a kill costs one of them.

The folder lies outside the declared outputs of the rule, so Snakemake does not delete it
when a job fails. It belongs to one fingerprint (settings, inputs, code); what another
fingerprint left behind is thrown away.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from flatminima.files import atomic_path, read_json, write_json


def fingerprint(**settings: object) -> str:
    """Hash of everything that decides what a job computes."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


class FinishedParts:
    """A job's folder. A part is a record and some tables; it counts once its record is there."""

    def __init__(self, folder: str | Path, fingerprint: str) -> None:
        self.folder = Path(folder)
        owner = self.folder / "fingerprint.json"
        if not owner.exists() or read_json(owner) != {"fingerprint": fingerprint}:
            shutil.rmtree(self.folder, ignore_errors=True)
            with atomic_path(owner) as temporary:
                write_json(temporary, {"fingerprint": fingerprint})

    def _record(self, part: str) -> Path:
        return self.folder / f"{part}.json"

    def has(self, part: str) -> bool:
        """Whether the part was finished."""
        return self._record(part).exists()

    def keep(self, part: str, record: Mapping, tables: Mapping[str, pd.DataFrame]) -> None:
        """Keep a part: its tables first, and the record that says they are whole."""
        for name, table in tables.items():
            with atomic_path(self.folder / f"{part}-{name}.parquet") as temporary:
                table.to_parquet(temporary, index=False)
        with atomic_path(self._record(part)) as temporary:
            write_json(temporary, record)

    def record(self, part: str) -> dict:
        """The record of a finished part."""
        return read_json(self._record(part))

    def table(self, part: str, name: str) -> pd.DataFrame:
        """One table of a finished part."""
        return pd.read_parquet(self.folder / f"{part}-{name}.parquet")

    def remove(self) -> None:
        """Delete the folder once the job's outputs are all in place."""
        shutil.rmtree(self.folder)
