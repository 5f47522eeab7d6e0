"""Weights in the forms the hub has them, to one safetensors file in the dtype they came in."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

# In order of preference. An index names the shards that its form is cut into.
FORMS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class WeightsRefused(ValueError):
    """A file of weights that is damaged, incomplete, or holds more than tensors."""


def find_weights(names: Collection[str]) -> str | None:
    """The file to start from: weights or an index of shards; nothing where there is none."""
    return next((form for form in FORMS if form in names), None)


def read_index(path: Path) -> dict[str, str]:
    """Shard of each tensor."""
    try:
        return dict(json.loads(path.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsRefused("the index of its shards cannot be read") from error


def check_safetensors(path: Path, name: str) -> None:
    """Refuse a file whose header or length is not that of a safetensors file."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise WeightsRefused(f"{name} is no safetensors file ({error})") from error


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Tensors of one file called ``name``; a pickle is read as data and never run."""
    if name.endswith(".safetensors"):
        check_safetensors(path, name)
        return load_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise WeightsRefused(
            f"{name} is a pickle that holds more than tensors, which could run code; refused"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsRefused(f"{name} cannot be read as weights ({first})") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise WeightsRefused(f"{name} holds something other than named tensors; refused")
    return found


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
    absent = sorted(set(expected) - set(tensors))
    if absent:
        raise WeightsRefused(f"its shards lack {len(absent)} weights, such as {absent[0]}")
    save_file(_unshared(tensors), output, metadata={"format": "pt"})


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor with memory of its own, as the file format wants it."""
    seen: set[int] = set()
    made = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        made[name] = tensor.clone() if address in seen else tensor.contiguous()
        seen.add(address)
    return made
