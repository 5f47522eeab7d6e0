"""A checkpoint of the hub, whole and checked, as one folder in Hugging Face format.

Whatever form its weights have there, they end as one safetensors file in the dtype they came
in; a pickle is read as data and never run.
"""

import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flatminima.errors import DamagedFile, one_line
from flatminima.files import atomic_path, check_whole, file_sha256, flush, read_index
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
        weight_map = read_index(paths[start]) if start.endswith(".index.json") else {}
        shards = sorted(set(weight_map.values())) or [start]
        paths |= {name: fetch_file(found, name, staging) for name in shards if name not in paths}
        files = {name: found.files[name].sha256 or file_sha256(p) for name, p in paths.items()}
        size = sum(path.stat().st_size for path in paths.values())
        if shards == [WEIGHTS_FILE]:
            check_whole(paths[start])
            _place(paths[start], folder / WEIGHTS_FILE, staging)
        else:
            with atomic_path(folder / WEIGHTS_FILE) as temporary:
                join_weights([paths[name] for name in shards], weight_map, temporary)
        _place(paths[CONFIG_FILE], folder / CONFIG_FILE, staging)
    except (DamagedFile, OSError) as error:
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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of one file; a pickle is read as data and never run."""
    if path.suffix == ".safetensors":
        check_whole(path)
        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise DamagedFile(
            f"{path.name} is a pickle that holds more than tensors, which could run code; refused"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise DamagedFile(f"{path.name} cannot be read as weights: {one_line(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise DamagedFile(f"{path.name} holds something other than named tensors; refused")
    return found


def join_weights(parts: Sequence[Path], expected: Collection[str], output: Path) -> None:
    """Write the tensors of all ``parts`` to one safetensors file.

    ``expected`` are the names that an index promises; empty where there is none.
    """
    tensors: dict[str, Tensor] = {}
    for path in parts:
        for key, tensor in read_tensors(path).items():
            if key in tensors:
                raise DamagedFile(f"{key} is in {path.name} and in a shard before it")
            tensors[key] = tensor
    missing = sorted(set(expected) - set(tensors))
    if missing:
        raise DamagedFile(f"its shards lack {len(missing)} weights, such as {missing[0]}")
    seen: set[int] = set()
    for name, tensor in tensors.items():  # the format wants memory of its own for each tensor
        address = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if address in seen else tensor.contiguous()
        seen.add(address)
    save_file(tensors, output, metadata={"format": "pt"})
