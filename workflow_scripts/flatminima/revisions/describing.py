"""The table of a suite's revisions: what each checkpoint holds, which are the same, what is odd."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.model import weight_files, weights_digest, weights_dtypes
from flatminima.revisions.findings import PRESENT, Found
from flatminima.revisions.fingerprints import WHOLE, distances
from flatminima.text.tokens import file_sha256

_COUNTS = ["bytes", "n_tensors", "n_weights", "duplicate_of"]


def describe_checkpoint(
    step: int,
    weights: str | Path,
    origin: Mapping,
    fingerprint: pd.DataFrame,
    tokens_per_step: int | None,
) -> dict:
    """One row of ``suite.csv``.

    ``origin`` names what a hub served (revision, commit, files by their sha256) and is empty
    for a checkpoint made here; ``fingerprint`` is ``fingerprints.fingerprint_checkpoint``'s.
    """
    whole = fingerprint["tensor"] == WHOLE
    digests = fingerprint.loc[~whole].set_index("tensor")["sha256"].to_dict()
    return _named(step, origin, tokens_per_step) | {
        "sha256": _sha256(weights),
        "weights_sha256": weights_digest(digests),
        "bytes": sum(file.stat().st_size for file in weight_files(weights)),
        "dtype": weights_dtypes(weights),
        "n_tensors": len(digests),
        "n_weights": int(fingerprint.loc[whole, "n_weights"].item()),
    }


def describe_missing(step: int, origin: Mapping, tokens_per_step: int | None) -> dict:
    """The row of a revision that could not be had; ``origin`` has the reason."""
    unknown = ("sha256", "weights_sha256", "bytes", "dtype", "n_tensors", "n_weights")
    return _named(step, origin, tokens_per_step) | dict.fromkeys(unknown)


def _named(step: int, origin: Mapping, tokens_per_step: int | None) -> dict:
    files = origin.get("files", {})
    return {
        "step": step,
        "status": origin.get("status", PRESENT),
        "reason": origin.get("reason", ""),
        "revision": origin.get("revision", f"step{step}"),
        "commit": origin.get("commit", ""),
        "tokens_seen": None if tokens_per_step is None else step * tokens_per_step,
        "files": " ".join(f"{name}:{files[name]}" for name in sorted(files)),
    }


def revision_table(rows: Sequence[Mapping]) -> pd.DataFrame:
    """Rows of a range as a table whose counts stay whole numbers beside gaps."""
    table = pd.DataFrame(rows)
    return table.astype({name: "Int64" for name in _COUNTS if name in table})


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
    return table.assign(duplicate_of=first.where(first < table["step"]).astype("Int64"))


def distances_to_previous(table: pd.DataFrame, fingerprints: pd.DataFrame) -> pd.Series:
    """Estimated L2 distance to the previous revision that is there, relative to its norm, by step.

    Over all weights, with the standard error of ``fingerprints`` (1 %), to four digits;
    exactly 0 for equal weights.
    """
    steps = table.loc[table["status"] == PRESENT, "step"].tolist()
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")
    norms = np.sqrt(whole.loc[steps, "sum_of_squares"].to_numpy())
    between = np.diagonal(distances(fingerprints, steps), offset=1)
    relative = between / np.where(norms[:-1] > 0.0, norms[:-1], np.nan)
    return pd.Series([float(f"{value:.4g}") for value in relative], index=steps[1:])


def suite_table(
    revisions: pd.DataFrame, fingerprints: pd.DataFrame, found: Sequence[Found], suite: str
) -> pd.DataFrame:
    """The columns of ``suite.csv``: every revision, how far it moved, and what is odd about it."""
    table = mark_duplicates(revisions)
    table.insert(0, "suite", suite)
    moved = table["step"].map(distances_to_previous(table, fingerprints))
    kinds = {step: [] for step in table["step"]}
    for one in found:
        for step in one.steps:
            kinds[step].append(one.kind)
    named = [" ".join(dict.fromkeys(kinds[step])) for step in table["step"]]
    table = table.assign(distance_to_previous=moved, findings=named)
    return table.astype({name: "Int64" for name in _COUNTS})
