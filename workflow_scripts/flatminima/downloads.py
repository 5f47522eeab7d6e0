"""A checkpoint of the hub, whole and checked, as one folder in Hugging Face format.

Whatever form its weights have there, they end as one safetensors file in the dtype they came
in; a pickle is read as data and never run.
"""

import json
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from flatminima.errors import UserError
from flatminima.files import atomic_path, file_sha256, flush
from flatminima.hub import CONFIG_FILE, HubError, RevisionMissing, fetch_file, find_revision

WEIGHTS_FILE = "model.safetensors"
# In order of preference. An index names the shards that its form is cut into.
FORMS = (
    WEIGHTS_FILE,
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
STAGING = ".download"  # what is on the way to its place in a folder


class WeightsRefused(UserError):
    """A file of weights that is damaged, incomplete, or holds more than tensors."""


def download_checkpoint(repo: str, revision: str, folder: str | Path) -> dict:
    """Write ``model.safetensors`` and ``config.json`` of a revision to ``folder``.

    Only what is needed is fetched: safetensors, whole or in shards, else ``.bin`` files,
    which are read as data and written as safetensors in the dtype they came in. Returns repo,
    revision and commit, ``files`` (sha256 by the hub's names) and their sum in ``bytes``.
    Raises ``RevisionMissing`` for what the hub does not have and ``HubError`` for the rest.
    """
    found, folder = find_revision(repo, revision), Path(folder)
    start = next((form for form in FORMS if form in found.files), None)
    if start is None or CONFIG_FILE not in found.files:
        lacking = CONFIG_FILE if start else "weights (model.safetensors or pytorch_model.bin)"
        raise RevisionMissing(repo, revision, f"it holds no {lacking}")
    staging = folder / STAGING
    try:
        paths = {name: fetch_file(found, name, staging) for name in (CONFIG_FILE, start)}
        weight_map = _read_index(paths[start]) if start.endswith(".index.json") else {}
        shards = sorted(set(weight_map.values())) or [start]
        paths |= {name: fetch_file(found, name, staging) for name in shards if name not in paths}
        files = {name: found.files[name].sha256 or file_sha256(p) for name, p in paths.items()}
        size = sum(path.stat().st_size for path in paths.values())
        if shards == [WEIGHTS_FILE]:
            _check_safetensors(paths[start], start)
            _place(paths[start], folder / WEIGHTS_FILE, staging)
        else:
            with atomic_path(folder / WEIGHTS_FILE) as temporary:
                join_weights([(name, paths[name]) for name in shards], weight_map, temporary)
        _place(paths[CONFIG_FILE], folder / CONFIG_FILE, staging)
    except (WeightsRefused, OSError) as error:
        raise HubError(f"{found}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    origin = {"repo": repo, "revision": revision, "commit": found.commit}
    return origin | {"files": files, "bytes": size}


def _place(source: Path, target: Path, staging: Path) -> None:
    """Move a file from ``staging``, or copy it from the user's cache."""
    if source.is_relative_to(staging):
        flush(source)
        os.replace(source, target)
        flush(target.parent)
        return
    with atomic_path(target) as temporary:
        shutil.copyfile(source, temporary)


# Weights


def _read_index(path: Path) -> dict[str, str]:
    """Shard of each tensor."""
    try:
        return dict(json.loads(path.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsRefused("the index of its shards cannot be read") from error


def _check_safetensors(path: Path, name: str) -> None:
    """Refuse a file whose header or length is not that of a safetensors file."""
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise WeightsRefused(f"{name} is no safetensors file ({error})") from error


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Tensors of one file called ``name``; a pickle is read as data and never run."""
    if name.endswith(".safetensors"):
        _check_safetensors(path, name)
        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise WeightsRefused(
            f"{name} is a pickle that holds more than tensors, which could run code; refused"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise WeightsRefused(f"{name} cannot be read as weights ({_first_line(error)})") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise WeightsRefused(f"{name} holds something other than named tensors; refused")
    return found


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def join_weights(
    parts: Sequence[tuple[str, Path]], expected: Collection[str], output: Path
) -> None:
    """Write the tensors of all ``parts`` (name and path) to one safetensors file.

    ``expected`` are the names that an index promises; empty where there is none.
    """
    tensors: dict[str, Tensor] = {}
    for name, path in parts:
        for key, tensor in read_tensors(path, name).items():
            if key in tensors:
                raise WeightsRefused(f"{key} is in {name} and in a shard before it")
            tensors[key] = tensor
    missing = sorted(set(expected) - set(tensors))
    if missing:
        raise WeightsRefused(f"its shards lack {len(missing)} weights, such as {missing[0]}")
    seen: set[int] = set()
    for name, tensor in tensors.items():  # the format wants memory of its own for each tensor
        address = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if address in seen else tensor.contiguous()
        seen.add(address)
    save_file(tensors, output, metadata={"format": "pt"})
