r"""Where the checkpoints of a suite are, how they are named, and a description of their weights.

Each branch of a hub repository contains one training step. A *pattern* is a regular expression
that matches the complete name of such a branch and has a group ``step``: ``step(?P<step>\d+)`` for
Pythia. ``flatminima freeze`` reads the hub's list of branches once and stores it, to be committed
(``resources/revisions/{suite}.csv``). So planning needs no network. Checkpoints of a local run are
found by a pattern of folders such as ``runs/mine/step{step}``.

Weights of hub revisions are deleted after measurement. Whether a revision has the weights that its
name promises shows only in comparison with other revisions. So a random projection of each
checkpoint is kept, a count sketch (Charikar, Chen and Farach-Colton, 2002): each weight gets a
random sign and is added to one of ``BUCKETS`` sums, which take turns. The signs depend on the
tensor's name only, so sketches of two checkpoints can be subtracted. The squared length of the
difference is an unbiased estimate of the squared L2 distance of all weights. The relative standard
error of the estimate is about sqrt(2 / BUCKETS): 1 % for a distance, 9 % for a distance of single
tensors, which have fewer buckets.

Planning imports this module, so torch is imported only by functions on weights.
"""

import glob
import hashlib
import math
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
COLUMNS = ["step", "branch", "commit"]  # of a stored table of branches
PLACE = "{step}"  # of the step in a pattern of folders
BUCKETS = 4093  # a prime, so that a column of a matrix is spread over all sums
TENSOR_BUCKETS = 61
_TENSOR_BUCKET = np.arange(BUCKETS) % TENSOR_BUCKETS
_COLUMNS = [
    *("step", "status", "reason", "revision", "commit", "tokens_seen", "files", "sha256"),
    *("weights_sha256", "bytes", "dtype", "n_tensors", "n_weights"),
]


# Branches of a hub repository


def step_of(pattern: str, branch: str) -> int | None:
    """Step of a branch; ``None`` if its name does not fit the pattern, such as ``main``."""
    match = re.fullmatch(pattern, branch)
    return int(match["step"]) if match else None


def branch_of(pattern: str, step: int) -> str | None:
    """Name of the branch of ``step``; ``None`` if names contain more than the step.

    An example is ``stage1-step1000-tokens3B``: it is known only from the hub's list of branches.
    """
    branch = pattern.replace(STEP_GROUP, str(step))
    return branch if step_of(pattern, branch) == step else None


def table_of_branches(pattern: str, branches: Mapping[str, str]) -> pd.DataFrame:
    """The branches that fit the pattern, in step order. ``branches`` maps names to commits.

    Raises ``UserError`` if no branch fits the pattern or if two have the same step.
    """
    rows = []
    for name, commit in branches.items():
        step = step_of(pattern, name)
        if step is not None:
            rows.append((step, name, commit))
    table = pd.DataFrame(rows, columns=COLUMNS)
    if table.empty:
        examples = ", ".join(sorted(branches)[:3]) or "none"
        raise UserError(
            f"none of {len(branches)} branches fits the pattern {pattern!r}; such as {examples}"
        )
    for step, names in table.groupby("step")["branch"]:
        if len(names) > 1:
            raise UserError(
                f"branches {' and '.join(sorted(names))} are both step {step} by the pattern"
            )
    return table.sort_values("step", ignore_index=True)


def read_table(path: Path) -> dict[int, str] | None:
    """Branch of each step in order, or ``None`` without a file. Raises ``UserError``."""
    if not path.is_file():
        return None
    table = pd.read_csv(path, dtype={"branch": str, "commit": str}, keep_default_na=False)
    if list(table.columns) != COLUMNS or table.empty or not table["step"].is_monotonic_increasing:
        raise UserError(
            f"{path}: the columns must be {', '.join(COLUMNS)}, with at least one row and "
            "increasing steps"
        )
    return table.set_index("step")["branch"].to_dict()


# Folders of a local run


@dataclass(frozen=True)
class LocalCheckpoint:
    """A complete checkpoint: its folder, and the names of its weights and of all its files."""

    folder: str
    weights: str
    files: tuple[str, ...]


class LocalRun(NamedTuple):
    """Checkpoints by step, in order, and one line per folder that was skipped."""

    checkpoints: dict[int, LocalCheckpoint]
    skipped: list[str]


def check_pattern(pattern: str) -> None:
    """Raise ``UserError`` unless the pattern contains ``{step}`` once."""
    if pattern.count(PLACE) != 1 or "*" in pattern:
        raise UserError(f"{pattern!r} must have {PLACE} once, for the number of the step, and no *")


def read_checkpoint(folder: Path) -> LocalCheckpoint:
    """The checkpoint in a folder. Raises ``DamagedFile`` unless it is complete."""
    if not (folder / CONFIG_FILE).is_file():
        raise DamagedFile("no config.json")
    formats = (WEIGHTS_FILE, WEIGHTS_INDEX, *PICKLES)
    weights = next((name for name in formats if (folder / name).is_file()), None)
    if weights is None:
        raise DamagedFile(f"no weights ({WEIGHTS_FILE} or {WEIGHTS_INDEX})")
    if weights in PICKLES:
        raise DamagedFile(
            f"weights only in {weights}, a pickle, which could run code; "
            f"save_pretrained of transformers writes {WEIGHTS_FILE}"
        )
    shards = []
    if weights == WEIGHTS_INDEX:
        shards = sorted(set(read_index(folder / weights).values()))
    for name in shards or [weights]:
        if not (folder / name).is_file():
            raise DamagedFile(f"no {name}, which is listed in {weights}")
        # A download or a save that was cut off is shorter than its header says.
        check_whole(folder / name)
    return LocalCheckpoint(folder.as_posix(), weights, (CONFIG_FILE, weights, *shards))


def find_checkpoints(pattern: str) -> LocalRun:
    """All complete checkpoints of a pattern. ``UserError`` if two folders have the same step."""
    before, _, after = pattern.rpartition(PLACE)
    folder_pattern = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
    folders = []
    for path in glob.iglob(f"{glob.escape(before)}*{glob.escape(after)}"):
        match = folder_pattern.fullmatch(path)
        if match and Path(path).is_dir():
            folders.append((int(match[1]), Path(path)))

    checkpoints: dict[int, LocalCheckpoint] = {}
    skipped = []
    for step, folder in sorted(folders):
        try:
            checkpoint = read_checkpoint(folder)
        except DamagedFile as reason:
            skipped.append(f"{folder.as_posix()}: {reason}")
            continue
        if step in checkpoints:
            both_folders = f"{checkpoints[step].folder} and {checkpoint.folder}"
            raise UserError(f"{both_folders} are both step {step}")
        checkpoints[step] = checkpoint
    return LocalRun(checkpoints, skipped)


def file_states(paths: Iterable[str | Path]) -> dict[str, list[int]]:
    """Size (bytes), mtime and ctime (ns) of each file, by path. No file is read.

    A replaced file has another state, even if it was copied with its time stamp: the ctime is the
    time of the inode's last change, and programs cannot set it.
    """
    states = {}
    for path in paths:
        status = os.stat(path)
        states[str(path)] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return states


def changed_checkpoints(checkpoints: Mapping[int, LocalCheckpoint], root: Path) -> list[str]:
    """Folders whose files were written, copied or touched after they were described.

    The tables ``revisions/step0-step7.csv`` under ``root`` describe them. Their names give the
    range of steps. Nothing is written, and no file is read.
    """
    folders = []
    for table in sorted(root.glob("revisions/step*.csv")):
        described_ns = table.stat().st_mtime_ns
        step_numbers = [int(number) for number in re.findall(r"\d+", table.stem)]
        for step, checkpoint in checkpoints.items():
            if not step_numbers[0] <= step <= step_numbers[-1]:
                continue
            states = file_states(Path(checkpoint.folder, name) for name in checkpoint.files)
            if max(inode_ns for _, _, inode_ns in states.values()) > described_ns:
                folders.append(checkpoint.folder)
    return list(dict.fromkeys(folders))


def _files_digest(files: Iterable[Path]) -> str:
    """sha256 of the only file of weights. For shards, one over their names and hashes."""
    digests = {file.name: file_sha256(file) for file in files}
    return digests.get(WEIGHTS_FILE) or weights_digest(digests)


# Description of a checkpoint


def sketch(name: str, weights: np.ndarray) -> np.ndarray:
    """Sketch of one tensor of any shape: float64 ``[BUCKETS]``.

    The sum over all tensors is the sketch of the model.
    """
    flat = np.asarray(weights, dtype=np.float32).ravel()
    seed = list(hashlib.sha256(name.encode()).digest()[:16])
    n_bytes = math.ceil(flat.size / 8)  # one random bit per weight
    random_bytes = np.random.default_rng(seed).bytes(n_bytes)
    bits = np.unpackbits(np.frombuffer(random_bytes, np.uint8), count=flat.size)

    # Weight i goes to bucket i modulo BUCKETS: rows of BUCKETS weights, added up by column.
    n_rows = math.ceil(flat.size / BUCKETS)
    signed = np.zeros(n_rows * BUCKETS, dtype=np.float32)
    np.multiply(flat, 1.0 - 2.0 * bits.astype(np.float32), out=signed[: flat.size])
    return signed.reshape(-1, BUCKETS).sum(axis=0, dtype=np.float64)


def fingerprint_checkpoint(step: int, path: str | Path) -> pd.DataFrame:
    """Rows of one checkpoint: step, tensor, shape, n_weights, sha256, sum_of_squares, sketch.

    Each tensor has a row with a sketch of ``TENSOR_BUCKETS`` sums. The last row is the model, with
    a sketch of ``BUCKETS`` sums. ``shape`` is text such as ``64x192``. Sums are in float64.
    """
    from flatminima.model import read_weights, tensor_digests

    digests = tensor_digests(path)
    rows = []
    tensor_sizes = []
    sums_of_squares = []
    model_sketch = np.zeros(BUCKETS)
    for name, tensor in read_weights(path):
        weights = tensor.float().numpy()
        tensor_sketch = sketch(name, weights)
        sum_of_squares = float(np.square(weights, dtype=np.float64).sum())
        shape = "x".join(map(str, weights.shape))
        # The sketch of a single tensor is folded into fewer sums, to save space.
        folded = np.bincount(_TENSOR_BUCKET, weights=tensor_sketch).tolist()
        rows.append((step, name, shape, weights.size, digests[name], sum_of_squares, folded))
        tensor_sizes.append(weights.size)
        sums_of_squares.append(sum_of_squares)
        model_sketch += tensor_sketch
    model_sums = (sum(sums_of_squares), model_sketch.tolist())
    rows.append((step, WHOLE_MODEL, "", sum(tensor_sizes), "", *model_sums))
    columns = ["step", "tensor", "shape", "n_weights", "sha256", "sum_of_squares", "sketch"]
    return pd.DataFrame(rows, columns=columns)


def describe_checkpoint(
    step: int, weights: str | Path, origin: Mapping, fingerprint: pd.DataFrame
) -> dict:
    """The columns of ``suite.csv`` that need no other checkpoint.

    ``origin`` is the record of a download (``hub.download_checkpoint``), empty for others.
    """
    from flatminima.model import weight_files, weights_dtypes

    tensors = fingerprint[fingerprint["tensor"] != WHOLE_MODEL]
    files = weight_files(weights)
    hub_digests = origin.get("files", {})
    return {
        "step": step,
        "status": PRESENT,
        "revision": origin.get("revision", f"step{step}"),
        "commit": origin.get("commit"),
        "files": " ".join(f"{name}:{hub_digests[name]}" for name in sorted(hub_digests)),
        "sha256": _files_digest(files),
        "weights_sha256": weights_digest(tensors.set_index("tensor")["sha256"].to_dict()),
        "bytes": sum(file.stat().st_size for file in files),
        "dtype": weights_dtypes(weights),
        "n_tensors": len(tensors),
        "n_weights": tensors["n_weights"].sum(),
    }


def revision_table(rows: Sequence[Mapping], tokens_per_step: int | None) -> pd.DataFrame:
    """Rows of ``describe_checkpoint`` as a table.

    The row of a missing revision has step, status, reason and revision only. ``Int64`` keeps
    counts whole numbers in columns with missing values.
    """
    table = pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(COUNT_COLUMNS, "Int64"))
    if tokens_per_step is not None:
        table["tokens_seen"] = table["step"] * tokens_per_step
    return table
