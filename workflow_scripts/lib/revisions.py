"""The table of a suite's revisions: what each checkpoint holds, and which are the same."""

from pathlib import Path

import pandas as pd

from workflow_scripts.lib.checkpoints import (
    tensor_digests,
    weight_files,
    weights_digest,
    weights_dtypes,
)
from workflow_scripts.lib.provenance import read_json
from workflow_scripts.lib.tokens import file_sha256


def describe_checkpoint(
    step: int, weights: str | Path, record: str | Path | None, tokens_per_step: int | None
) -> dict:
    """One row of ``suite.csv``; ``record`` names the hub commit where there is one."""
    origin = read_json(record) if record else {}
    return {
        "step": step,
        "revision": origin.get("revision", f"step{step}"),
        "commit": origin.get("commit", ""),
        "tokens_seen": None if tokens_per_step is None else step * tokens_per_step,
        "sha256": _sha256(weights),
        "weights_sha256": weights_digest(tensor_digests(weights)),
        "bytes": sum(file.stat().st_size for file in weight_files(weights)),
        "dtype": weights_dtypes(weights),
    }


def _sha256(weights: str | Path) -> str:
    """sha256 of a file of weights; of shards, that of their names and hashes in name order."""
    files = weight_files(weights)
    if files == [Path(weights)]:
        return file_sha256(weights)
    return weights_digest({file.name: file_sha256(file) for file in files})


def mark_duplicates(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``duplicate_of``: the first earlier step with the same weights, or nothing.

    In Pythia step 0 and step 1 are the same, since the first update has a learning
    rate of zero.
    """
    table = table.sort_values("step", ignore_index=True)
    first = table.groupby("weights_sha256")["step"].transform("min")
    table["duplicate_of"] = first.where(first < table["step"]).astype("Int64")
    return table
