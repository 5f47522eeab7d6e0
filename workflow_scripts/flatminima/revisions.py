r"""What the checkpoints of a suite are: where they are found, what they are called, what they hold.

A hub's branch holds one training step each. A *pattern* is a regular expression of the whole name
of such a branch, with a group ``step``: ``step(?P<step>\d+)`` for Pythia. Which branch holds which
step is read from the hub's list once and committed (``resources/revisions/{suite}.csv``), so that
planning needs no network. One's own run is found by a pattern such as ``runs/mine/step{step}``.

Weights are deleted once they are measured, yet whether a revision lies where it belongs shows
only beside the others. So of each checkpoint a random projection is kept: each weight is given
a random sign and added to one of ``BUCKETS`` sums (a count sketch: Charikar, Chen and
Farach-Colton, 2002, with the bucket taken in turn). Signs depend on the tensor's name only, so
that sketches of two checkpoints can be subtracted, and the squared length of the difference
estimates, without bias, the squared L2 distance of all weights; its relative standard error is
about sqrt(2 / BUCKETS), 1 % for a distance itself, and 9 % for that of a single tensor.

Planning reads this module, so torch is imported where weights are.
"""

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from flatminima.errors import DamagedFile
from flatminima.files import (
    CONFIG_FILE,
    PICKLES,
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
    check_whole,
    file_sha256,
    read_index,
    weights_digest,
)
from flatminima.integrity import WHOLE, Found, distances
from flatminima.missing import PRESENT

STEP_GROUP = r"(?P<step>\d+)"
DEFAULT_PATTERN = f"step{STEP_GROUP}"  # Pythia and PolyPythias
COLUMNS = ["step", "branch", "commit"]  # of a frozen table
PLACE = "{step}"
BUCKETS = 4093  # a prime: no row or column of a matrix keeps falling into the same sum
TENSOR_BUCKETS = 61
_FOLD = np.arange(BUCKETS) % TENSOR_BUCKETS
_COUNTS = ["bytes", "n_tensors", "n_weights"]
_COLUMNS = ["step", "status", "reason", "revision", "commit", "tokens_seen", "files", "sha256",
            "weights_sha256", "bytes", "dtype", "n_tensors", "n_weights"]  # fmt: skip


# Branches of a hub


def step_of(pattern: str, branch: str) -> int | None:
    """Step that a branch holds; ``None`` where its name is another kind, such as ``main``."""
    match = re.fullmatch(pattern, branch)
    return int(match["step"]) if match else None


def branch_of(pattern: str, step: int) -> str | None:
    """Name of the branch of ``step``; ``None`` where the name says more than the step.

    ``stage1-step1000-tokens3B`` is such a name: only the hub's list of branches knows it.
    """
    branch = pattern.replace(STEP_GROUP, str(step))
    return branch if step_of(pattern, branch) == step else None


def table_of_branches(pattern: str, branches: Mapping[str, str]) -> pd.DataFrame:
    """The branches (name to commit) that hold a step, in step order.

    Raises ``ValueError`` where no branch fits the pattern or two hold the same step.
    """
    rows = [(step_of(pattern, name), name, commit) for name, commit in branches.items()]
    table = pd.DataFrame([row for row in rows if row[0] is not None], columns=COLUMNS)
    if table.empty:
        shown = ", ".join(sorted(branches)[:3]) or "none"
        raise ValueError(f"none of {len(branches)} branches fits {pattern!r}; there are {shown}")
    for step, names in table.groupby("step")["branch"]:
        if len(names) > 1:
            raise ValueError(f"branches {' and '.join(sorted(names))} are both step {step}")
    return table.sort_values("step", ignore_index=True)


def read_table(path: Path) -> dict[int, str] | None:
    """Branch of each step in order, ``None`` where there is no file; ``ValueError`` for others."""
    if not path.is_file():
        return None
    table = pd.read_csv(path, dtype={"branch": str, "commit": str})
    if list(table.columns) != COLUMNS or table.empty or not table["step"].is_monotonic_increasing:
        raise ValueError(f"{path} is no table of {', '.join(COLUMNS)} in step order")
    return table.set_index("step")["branch"].to_dict()


# Folders of one's own run


@dataclass(frozen=True)
class LocalCheckpoint:
    """A whole checkpoint: its folder, and the names of its weights and of all its files."""

    folder: str
    weights: str
    files: tuple[str, ...]


class LocalRun(NamedTuple):
    """Checkpoints by step in order, and one line for each folder that was skipped."""

    checkpoints: dict[int, LocalCheckpoint]
    skipped: list[str]


def check_pattern(pattern: str) -> None:
    """Raise ``ValueError`` unless the pattern has one place for the step."""
    if pattern.count(PLACE) != 1 or "*" in pattern:
        raise ValueError(f"{pattern!r} must have {PLACE} once and no *")


def read_checkpoint(folder: Path) -> LocalCheckpoint:
    """What a folder holds; raises ``DamagedFile`` where that is no whole checkpoint."""
    if not (folder / CONFIG_FILE).is_file():
        raise DamagedFile("no config.json")
    forms = (WEIGHTS_FILE, WEIGHTS_INDEX, *PICKLES)
    weights = next((name for name in forms if (folder / name).is_file()), None)
    if weights is None:
        raise DamagedFile("no weights")
    if weights in PICKLES:
        raise DamagedFile(
            f"weights only in {weights}, a pickle, which could run code; "
            f"save_pretrained of transformers writes {WEIGHTS_FILE}"
        )
    shards = sorted(set(read_index(folder / weights).values())) if weights == WEIGHTS_INDEX else []
    for name in shards or [weights]:
        if not (folder / name).is_file():
            raise DamagedFile(f"no {name}, which {weights} names")
        check_whole(folder / name)
    return LocalCheckpoint(folder.as_posix(), weights, (CONFIG_FILE, weights, *shards))


def find_checkpoints(pattern: str) -> LocalRun:
    """All whole checkpoints of a pattern; ``ValueError`` for two folders of the same step."""
    before, _, after = pattern.rpartition(PLACE)
    fits = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
    paths = glob.iglob(f"{glob.escape(before)}*{glob.escape(after)}")
    matches = [match for path in paths if (match := fits.fullmatch(path)) and Path(path).is_dir()]
    checkpoints, skipped = {}, []
    for step, folder in sorted((int(match[1]), Path(match[0])) for match in matches):
        try:
            found = read_checkpoint(folder)
        except DamagedFile as reason:
            skipped.append(f"{folder.as_posix()}: {reason}")
            continue
        if step in checkpoints:
            both = f"{checkpoints[step].folder} and {found.folder}"
            raise ValueError(f"{both} are both step {step}")
        checkpoints[step] = found
    return LocalRun(checkpoints, skipped)


def notice_replaced(checkpoints: Mapping[int, LocalCheckpoint], root: Path) -> list[str]:
    """Folders whose weights are not those that the results under ``root`` were made of.

    What was made of them is made to look older than any weights, so that Snakemake makes it
    anew: a file that was copied with its time stamp looks like one that was always there. No
    file is read that has not been written, copied or moved since it was described.
    """
    found = []
    for table in sorted(root.glob("revisions/*.csv")):
        described, at = pd.read_csv(table), table.stat().st_mtime
        odd = [
            checkpoints[row.step].folder
            for row in described.itertuples()
            if row.step in checkpoints and _differs(checkpoints[row.step], row, at)
        ]
        if odd:
            others = root / "deployed.csv", *root.glob("mechanism/*")
            for path in (*root.glob(f"*/{table.stem}.*"), *filter(Path.exists, others)):
                os.utime(path, (1, 1))
        found += odd
    return found


def _differs(checkpoint: LocalCheckpoint, row: tuple, described_at: float) -> bool:
    names = [name for name in checkpoint.files if name.endswith(".safetensors")]
    files = [Path(checkpoint.folder, name) for name in names]
    if sum(file.stat().st_size for file in files) != row.bytes:
        return True
    if max(file.stat().st_ctime for file in files) <= described_at:
        return False
    return _files_digest(files) != row.sha256


def _files_digest(files: Iterable[Path]) -> str:
    """sha256 of the one file of weights; of shards that of their names and hashes."""
    digests = {file.name: file_sha256(file) for file in files}
    return digests.get(WEIGHTS_FILE) or weights_digest(digests)


# What a checkpoint holds


def sketch(name: str, weights: np.ndarray) -> np.ndarray:
    """Sketch of one tensor of any shape, float64 ``[BUCKETS]``; those of all are added up."""
    flat = np.asarray(weights, dtype=np.float32).ravel()
    seed = list(hashlib.sha256(name.encode()).digest()[:16])
    bits = np.random.default_rng(seed).bytes(-(-flat.size // 8))
    drawn = np.unpackbits(np.frombuffer(bits, np.uint8), count=flat.size)
    signed = np.zeros(-(-flat.size // BUCKETS) * BUCKETS, dtype=np.float32)
    np.multiply(flat, 1.0 - 2.0 * drawn.astype(np.float32), out=signed[: flat.size])
    return signed.reshape(-1, BUCKETS).sum(axis=0, dtype=np.float64)


def fingerprint_checkpoint(step: int, path: str | Path) -> pd.DataFrame:
    """Rows of one checkpoint: step, tensor, shape, n_weights, sha256, sum_of_squares, sketch.

    One row per tensor with a sketch of ``TENSOR_BUCKETS`` sums, and one called ``all`` of
    ``BUCKETS``. ``shape`` is text such as ``64x192``; sums are in float64.
    """
    from flatminima.model import read_weights, tensor_digests

    digests = tensor_digests(path)
    rows, whole = [], np.zeros(BUCKETS)
    for name, tensor in read_weights(path):
        values = tensor.float().numpy()
        sums = sketch(name, values)
        whole += sums
        folded = np.bincount(_FOLD, weights=sums).tolist()
        squares = float(np.square(values, dtype=np.float64).sum())
        shape = "x".join(map(str, values.shape))
        rows.append((step, name, shape, values.size, digests[name], squares, folded))
    total = sum(row[3] for row in rows), sum(row[5] for row in rows)
    rows.append((step, WHOLE, "", total[0], "", total[1], whole.tolist()))
    columns = ["step", "tensor", "shape", "n_weights", "sha256", "sum_of_squares", "sketch"]
    return pd.DataFrame(rows, columns=columns)


def describe_checkpoint(
    step: int, weights: str | Path, origin: Mapping, fingerprint: pd.DataFrame
) -> dict:
    """What ``suite.csv`` says of a checkpoint by itself.

    ``origin`` is what a hub served (``hub.download_checkpoint``), empty for one made here.
    """
    from flatminima.model import weight_files, weights_dtypes

    tensors = fingerprint[fingerprint["tensor"] != WHOLE]
    files, hashes = weight_files(weights), origin.get("files", {})
    return {
        "step": step,
        "status": PRESENT,
        "revision": origin.get("revision", f"step{step}"),
        "commit": origin.get("commit"),
        "files": " ".join(f"{name}:{hashes[name]}" for name in sorted(hashes)),
        "sha256": _files_digest(files),
        "weights_sha256": weights_digest(tensors.set_index("tensor")["sha256"].to_dict()),
        "bytes": sum(file.stat().st_size for file in files),
        "dtype": weights_dtypes(weights),
        "n_tensors": len(tensors),
        "n_weights": tensors["n_weights"].sum(),
    }


def revision_table(rows: Sequence[Mapping], tokens_per_step: int | None) -> pd.DataFrame:
    """Rows of ``describe_checkpoint`` as a table; counts stay whole numbers beside gaps.

    Of a missing revision a row has step, status, reason and revision.
    """
    table = pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(_COUNTS, "Int64"))
    if tokens_per_step is not None:
        table["tokens_seen"] = table["step"] * tokens_per_step
    return table


# The whole suite


def suite_table(
    revisions: pd.DataFrame, fingerprints: pd.DataFrame, found: Sequence[Found], suite: str
) -> pd.DataFrame:
    """The columns of ``suite.csv``: every revision, how far it moved, and what is odd about it.

    ``duplicate_of`` is the first earlier step with the same weights; Pythia's steps 0 and 1 are
    the same, since the first update has a learning rate of zero. ``distance_to_previous`` is the
    estimated L2 distance of all weights to the previous revision that is there, relative to its
    norm, with the standard error of a sketch (1 %); exactly 0 for equal weights.
    """
    table = revisions.sort_values("step", ignore_index=True).astype(dict.fromkeys(_COUNTS, "Int64"))
    table.insert(0, "suite", suite)
    steps = table.loc[table["status"] == PRESENT, "step"].tolist()
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")
    norms = np.sqrt(whole.loc[steps, "sum_of_squares"].to_numpy())[:-1]
    apart = np.diagonal(distances(fingerprints, steps), offset=1)
    moved = pd.Series(apart / np.where(norms > 0.0, norms, np.nan), index=steps[1:])
    first = table.groupby("weights_sha256")["step"].transform("min")
    kinds = {step: [one.kind for one in found if step in one.steps] for step in table["step"]}
    return table.assign(
        duplicate_of=first.where(first < table["step"]).astype("Int64"),
        distance_to_previous=table["step"].map(moved.map(lambda value: float(f"{value:.4g}"))),
        findings=[" ".join(dict.fromkeys(kinds[step])) for step in table["step"]],
    )
