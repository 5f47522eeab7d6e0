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

from flatminima.absent_steps import PRESENT
from flatminima.errors import DamagedFile, UserError
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
from flatminima.integrity import COUNT_COLUMNS, WHOLE_MODEL

STEP_GROUP = r"(?P<step>\d+)"
DEFAULT_PATTERN = f"step{STEP_GROUP}"  # Pythia and PolyPythias
COLUMNS = ["step", "branch", "commit"]  # of a frozen table
PLACE = "{step}"
BUCKETS = 4093  # a prime: no row or column of a matrix keeps falling into the same sum
TENSOR_BUCKETS = 61
_FOLD = np.arange(BUCKETS) % TENSOR_BUCKETS
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

    Raises ``UserError`` where no branch fits the pattern or two hold the same step.
    """
    rows = [(step_of(pattern, name), name, commit) for name, commit in branches.items()]
    table = pd.DataFrame([row for row in rows if row[0] is not None], columns=COLUMNS)
    if table.empty:
        shown = ", ".join(sorted(branches)[:3]) or "none"
        raise UserError(f"none of {len(branches)} branches fits {pattern!r}; there are {shown}")
    for step, names in table.groupby("step")["branch"]:
        if len(names) > 1:
            raise UserError(f"branches {' and '.join(sorted(names))} are both step {step}")
    return table.sort_values("step", ignore_index=True)


def read_table(path: Path) -> dict[int, str] | None:
    """Branch of each step in order, ``None`` where there is no file; ``UserError`` for others."""
    if not path.is_file():
        return None
    table = pd.read_csv(path, dtype={"branch": str, "commit": str})
    if list(table.columns) != COLUMNS or table.empty or not table["step"].is_monotonic_increasing:
        raise UserError(f"{path} is no table of {', '.join(COLUMNS)} in step order")
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
    """Raise ``UserError`` unless the pattern has one place for the step."""
    if pattern.count(PLACE) != 1 or "*" in pattern:
        raise UserError(f"{pattern!r} must have {PLACE} once and no *")


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
    """All whole checkpoints of a pattern; ``UserError`` for two folders of the same step."""
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
            raise UserError(f"{both} are both step {step}")
        checkpoints[step] = found
    return LocalRun(checkpoints, skipped)


def file_states(paths: Iterable[str | Path]) -> dict[str, list[int]]:
    """Size in bytes, time of change and time of the inode's change (ns) of each file, by path.

    A file with other bytes has another state, also one that was copied with its time stamp:
    no program can set the inode's time. No file is read.
    """
    states = {}
    for path in paths:
        status = os.stat(path)
        states[str(path)] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return states


def changed_checkpoints(checkpoints: Mapping[int, LocalCheckpoint], root: Path) -> list[str]:
    """Folders whose files were written, copied or touched since they were described.

    What describes them are the tables ``revisions/step0-step7.csv`` under ``root``, whose names
    say of which steps they are. Nothing is written, and no file is read.
    """
    folders = []
    for table in sorted(root.glob("revisions/step*.csv")):
        described_ns = table.stat().st_mtime_ns
        ends = [int(number) for number in re.findall(r"\d+", table.stem)]
        for step, checkpoint in checkpoints.items():
            if not ends[0] <= step <= ends[-1]:
                continue
            states = file_states(Path(checkpoint.folder, name) for name in checkpoint.files)
            if max(inode_ns for _, _, inode_ns in states.values()) > described_ns:
                folders.append(checkpoint.folder)
    return list(dict.fromkeys(folders))


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
    rows.append((step, WHOLE_MODEL, "", total[0], "", total[1], whole.tolist()))
    columns = ["step", "tensor", "shape", "n_weights", "sha256", "sum_of_squares", "sketch"]
    return pd.DataFrame(rows, columns=columns)


def describe_checkpoint(
    step: int, weights: str | Path, origin: Mapping, fingerprint: pd.DataFrame
) -> dict:
    """What ``suite.csv`` says of a checkpoint by itself.

    ``origin`` is what a hub served (``hub.download_checkpoint``), empty for one made here.
    """
    from flatminima.model import weight_files, weights_dtypes

    tensors = fingerprint[fingerprint["tensor"] != WHOLE_MODEL]
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
    table = pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(COUNT_COLUMNS, "Int64"))
    if tokens_per_step is not None:
        table["tokens_seen"] = table["step"] * tokens_per_step
    return table
