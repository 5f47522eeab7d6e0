"""The table of a suite's revisions: what each checkpoint holds, and which are the same."""

from pathlib import Path

import pandas as pd

from workflow_scripts.lib.checkpoints import tensor_digests, weights_digest, weights_dtypes
from workflow_scripts.lib.provenance import read_json
from workflow_scripts.lib.tokens import file_sha256


def describe_checkpoint(
    step: int, weights: str | Path, record: str | Path | None, tokens_per_step: int
) -> dict:
    """One row of ``suite.csv``; ``record`` names the hub commit where there is one."""
    origin = read_json(record) if record else {}
    return {
        "step": step,
        "revision": origin.get("revision", f"step{step}"),
        "commit": origin.get("commit", ""),
        "tokens_seen": step * tokens_per_step,
        "sha256": file_sha256(weights),
        "weights_sha256": weights_digest(tensor_digests(weights)),
        "bytes": Path(weights).stat().st_size,
        "dtype": weights_dtypes(weights),
    }


def mark_duplicates(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``duplicate_of``: the first earlier step with the same weights, or nothing.

    In Pythia step 0 and step 1 are the same, since the first update has a learning
    rate of zero.
    """
    table = table.sort_values("step", ignore_index=True)
    first = table.groupby("weights_sha256")["step"].transform("min")
    table["duplicate_of"] = first.where(first < table["step"]).astype("Int64")
    return table
