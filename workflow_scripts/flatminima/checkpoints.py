"""Checkpoints in Hugging Face format: loading as float32, saving, hashing.

A checkpoint that does not load as a whole, or that is no longer what its writer wrote,
is a ``DamagedFile`` with one line that names it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flatminima.errors import DamagedFile
from flatminima.files import (
    DIGESTS_FILE,
    atomic_path,
    check_digest,
    flush,
    refusals_named,
    remove,
    temporary_name,
    write_digests,
)
from flatminima.revisions.absent import absence

WEIGHTS_FILE = "model.safetensors"
INDEX_SUFFIX = ".index.json"
# Masks and tables that old checkpoints carry beside the weights: GPT-NeoX and GPT-Neo;
# GPT-2, GPT-J and CodeGen; every family with rotary embeddings.
LEGACY_BUFFERS = (
    "attention.bias", "attention.masked_bias",
    ".attn.bias", ".attn.masked_bias", ".attn.causal_mask",
    "rotary_emb.inv_freq",
)  # fmt: skip


def hide_progress_bars() -> None:
    """No bar of transformers for every file: a job's own bar covers all of them."""
    from transformers.utils import logging

    logging.disable_progress_bar()


@contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Say which file it is that a library cannot read, in one line."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, DamagedFile | FileNotFoundError | FloatingPointError):
            raise
        reason = " ".join(str(error).split())[:300]
        if "trust_remote_code" in str(error):
            reason = "it wants code that came with it to be run, which is never done here"
        raise DamagedFile(f"{path}: cannot be read as a checkpoint: {reason}") from error


def load_model(folder: str | Path, device: str = "cpu") -> nn.Module:
    """Load a causal language model with its weights widened to float32, ready to evaluate.

    transformers would otherwise keep the dtype of the file, float16 for Pythia, and
    fill weights that the file lacks with random numbers. Only safetensors are read, and
    no code that comes with a checkpoint is run. Raises ``DamagedFile`` where a file is
    not as it was written, where its weights are not exactly the model's (legacy buffers
    are ignored), or where one is not finite.
    """
    from transformers import AutoModelForCausalLM

    reason = absence(Path(folder) / WEIGHTS_FILE)
    if reason is not None:
        raise DamagedFile(f"{folder}: there is no such checkpoint ({reason})")
    hide_progress_bars()
    folder = Path(folder)
    for name in (WEIGHTS_FILE, "config.json"):
        check_digest(folder / name)
    with damage_named(folder):
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
            output_loading_info=True,
        )
    for name, stored, expected in found["mismatched_keys"]:
        raise DamagedFile(
            f"{folder}: {name} has shape {list(stored)}; the model's is {list(expected)}"
        )
    for kind in ("missing", "unexpected"):
        names = sorted(n for n in found[f"{kind}_keys"] if not is_legacy_buffer(n))
        if names:
            raise DamagedFile(f"{folder}: {len(names)} {kind} weights, such as {names[0]}")
    for name, parameter in model.named_parameters():
        count = count_not_finite(parameter)
        if count:
            raise DamagedFile(f"{folder}: {count} of {parameter.numel()} {name} are not finite")
    return model.to(device).eval()


@torch.inference_mode()
def count_not_finite(tensor: Tensor) -> int:
    """How many numbers are infinite or none; a sum is finite only where all its terms are."""
    if torch.isfinite(tensor.sum()):
        return 0
    return int(torch.isfinite(tensor).logical_not().sum())


def save_model(model: nn.Module, folder: Path, *, digests: bool = False) -> None:
    """Write ``config.json`` and ``model.safetensors`` in Hugging Face format.

    With ``digests`` their sha256 stand beside them, and whoever loads them checks that they
    are as they were written. A folder appears whole. One that is there already is replaced
    file by file, so that it holds whole weights at every moment.
    """
    hide_progress_bars()
    folder = Path(folder)
    staging = temporary_name(folder)
    remove(staging)
    try:
        with refusals_named(folder):
            model.save_pretrained(staging)
        if digests:
            write_digests(staging, ("config.json", WEIGHTS_FILE))
        for file in staging.iterdir():
            flush(file)
        if folder.is_dir():
            _replace_files(staging, folder)
        else:
            os.replace(staging, folder)
        flush(folder.parent)
    finally:
        remove(staging)


def _replace_files(source: Path, target: Path) -> None:
    remove(target / DIGESTS_FILE)
    new = sorted(source.iterdir(), key=lambda file: file.name == DIGESTS_FILE)
    for file in new:
        os.replace(file, target / file.name)
    for file in target.iterdir():
        if file.name not in {moved.name for moved in new}:
            remove(file)
    flush(target)


def is_legacy_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a mask or a table rather than a weight."""
    return name.endswith(LEGACY_BUFFERS)


def weight_files(path: str | Path) -> list[Path]:
    """The safetensors files behind ``path``: itself, or the shards that it is the index of."""
    path = Path(path)
    if not path.name.endswith(INDEX_SUFFIX):
        return [path]
    shards = json.loads(path.read_bytes())["weight_map"].values()
    return [path.with_name(name) for name in sorted(set(shards))]


def read_weights(path: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each weight in name order, buffers left out.

    ``path`` is a safetensors file or the index of its shards. Raises ``DamagedFile`` where
    a file cannot be read or is not as it was written.
    """
    with damage_named(path), ExitStack() as stack:
        places = {}
        for file in weight_files(path):
            check_digest(file)
            stored = stack.enter_context(safe_open(file, framework="pt"))
            places |= dict.fromkeys(stored.keys(), stored)
        for name in sorted(places):
            if not is_legacy_buffer(name):
                yield name, places[name].get_tensor(name)


def tensor_digests(path: str | Path) -> dict[str, str]:
    """sha256 of each weight's bytes: finds a single stale tensor in an otherwise new file."""
    return {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in read_weights(path)
    }


def weights_digest(digests: dict[str, str]) -> str:
    """One sha256 over all tensors: equal for equal weights, however the file is laid out."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def weights_dtypes(path: str | Path) -> str:
    """The dtypes in a safetensors file or its shards, such as ``float32`` or ``float16+uint8``."""
    found = set()
    for file in weight_files(path):
        with safe_open(file, framework="pt") as weights:
            found |= {str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
    return "+".join(sorted(found))


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically. Raises ``OSError`` where there is no room for it."""
    with atomic_path(path) as temporary, refusals_named(path):
        save_file(tensors, temporary, metadata=metadata)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file.

    Raises ``DamagedFile`` where the file is not a whole one.
    """
    metadata = read_metadata(path)
    with damage_named(path):
        return load_file(path), metadata


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file and nothing else."""
    with damage_named(path), safe_open(path, framework="pt") as stored:
        return stored.metadata() or {}
