"""Writes files so that they appear under their final name only when they are complete.

A file is written under a temporary name beside its target, flushed to the disk, and renamed. A
writer that is killed leaves its temporary file. The next writer of the same target removes it.
"""

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pandas as pd
from safetensors import SafetensorError, safe_open

from flatminima.errors import DamagedFile, UserError

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "pandas")
# Digests in the format of sha256sum, beside their files.
DIGESTS_FILE = "SHA256SUMS"
# A checkpoint in Hugging Face format. An index lists the shards of large weights.
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
CHECKPOINT_FILES = (WEIGHTS_FILE, CONFIG_FILE)
# Columns of tables that contain names which a user chooses.
NAME_COLUMNS = ("suite", "quantizer", "role", "schedule", "format", "counterpart")
_NO_ROWS = pd.DataFrame({"step": []})


def flush(path: Path) -> None:
    """Wait until the content of a file, or of a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Name of this process's temporary file beside ``path``.

    Removes temporary files of other processes for the same target. A target has one writer at a
    time, so those processes were killed.
    """
    for leftover in path.parent.glob(".*.tmp"):
        name, _, pid = leftover.name.removesuffix(".tmp").rpartition(".")
        if name == f".{path.name}" and pid.isdecimal() and int(pid) != os.getpid():
            remove(leftover)
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path that replaces ``path`` when the block ends without error.

    An ``OSError`` that names no file, such as that of a full disk, is raised again with ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise
        if error.errno is None:
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        remove(temporary)


@contextmanager
def refusals_named(path: str | Path) -> Iterator[None]:
    """Raise ``OSError`` instead of safetensors' own error for a full or read-only disk."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def write_table(path: str | Path, table: pd.DataFrame, **options: object) -> None:
    """Write a table as CSV, or as parquet if the name ends so. ``options`` go to pandas."""
    with atomic_path(path) as temporary:
        write = table.to_parquet if Path(path).suffix == ".parquet" else table.to_csv
        write(temporary, index=False, **options)


def file_sha256(path: str | Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def weights_digest(digests: Mapping[str, str]) -> str:
    """One sha256 over those of all tensors. Equal weights in other files have the same digest."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def read_index(path: Path) -> dict[str, str]:
    """The shard of each tensor, from the index of a checkpoint."""
    try:
        return dict(json.loads(path.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path.name}: this index of shards cannot be read") from error


def check_whole(path: Path) -> None:
    """Raise ``DamagedFile`` unless a safetensors file is as long as its header states."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise DamagedFile(f"{path.name} is incomplete ({error})") from error


def write_digests(folder: Path, names: Iterable[str]) -> None:
    """Write the digests of some files of ``folder`` beside them."""
    lines = "".join(f"{file_sha256(folder / name)}  {name}\n" for name in names)
    with atomic_path(folder / DIGESTS_FILE) as temporary:
        temporary.write_text(lines, encoding="utf-8")


def read_digests(folder: Path) -> dict[str, str]:
    """Read the digests that ``write_digests`` wrote, by file name. Empty without such a file."""
    path = folder / DIGESTS_FILE
    if not path.exists():
        return {}
    digests = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        digests[name] = digest
    return digests


def check_digest(path: str | Path, recorded: str | None = None, where: str = DIGESTS_FILE) -> None:
    """Raise ``DamagedFile`` if a file's digest is not ``recorded``, by default in SHA256SUMS."""
    path = Path(path)
    expected = read_digests(path.parent).get(path.name) if recorded is None else recorded
    if expected is not None and expected != file_sha256(path):
        raise DamagedFile(
            f"{path}: damaged or changed since it was written; its sha256 is not the one in "
            f"{where} beside it. Delete it and repeat the command to make it again"
        )


def describe_run(*, device: str = "cpu", threads: int = 1, **details: object) -> dict:
    """A record of what made a file: versions, device, numeric settings and ``details``."""
    import torch

    device_name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "device": device,
        "device_name": device_name,
        "threads": threads,
        "dtype": "float32",
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        **details,
    }


def write_json(path: str | Path, content: Mapping) -> None:
    """Write JSON with a stable layout."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> dict:
    """Read what ``write_json`` wrote."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_csv(path: str | Path) -> pd.DataFrame:
    """A table as ``write_table`` wrote it: names stay names, and only an empty cell is missing.

    A suite may be called NA, null or 007, which pandas would read as missing or as a number.
    """
    names = dict.fromkeys(NAME_COLUMNS, str)
    return pd.read_csv(path, dtype=names, keep_default_na=False, na_values=[""])


def read_content(path: str | Path) -> pd.DataFrame | dict:
    """The table in a CSV or parquet file, or the content of a JSON file."""
    readers = {".parquet": pd.read_parquet, ".json": read_json}
    return readers.get(Path(path).suffix, read_csv)(path)


def write_rows(tables: Iterable[pd.DataFrame], output: str | Path) -> None:
    """Write tables below each other. Without any table, write a header only."""
    tables = list(tables)
    write_table(output, pd.concat(tables, ignore_index=True) if tables else _NO_ROWS)


def read_rows(paths: Iterable[str | Path]) -> pd.DataFrame:
    """All rows of CSV or parquet files, in order. ``UserError`` if there are none."""
    # A table without rows has no dtypes, and pd.concat would then change those of the others.
    tables = [table for table in map(read_content, paths) if len(table)]
    if not tables:
        raise UserError("no revision of the suite is available, so there is nothing to gather")
    return pd.concat(tables, ignore_index=True)
