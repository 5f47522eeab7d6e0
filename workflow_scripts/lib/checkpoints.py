"""Checkpoints in Hugging Face format: loading as float32, saving, hashing.

Files appear under their final name only when they are whole: everything is
written under a temporary name beside it, flushed, and renamed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS_FILE = "model.safetensors"
# Masks and tables that old checkpoints carry beside the weights: GPT-NeoX and GPT-Neo;
# GPT-2, GPT-J and CodeGen; every family with rotary embeddings.
LEGACY_BUFFERS = (
    "attention.bias", "attention.masked_bias",
    ".attn.bias", ".attn.masked_bias", ".attn.causal_mask",
    "rotary_emb.inv_freq",
)  # fmt: skip


def _flush(path: Path) -> None:
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends without error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _hide_progress_bars() -> None:
    """No bar of transformers for every file: a job's own bar covers all of them."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_model(folder: str | Path, device: str = "cpu") -> nn.Module:
    """Load a causal language model with its weights widened to float32, ready to evaluate.

    transformers would otherwise keep the dtype of the file, float16 for Pythia, and
    fill weights that the file lacks with random numbers. Raises ``ValueError`` where
    the file's weights are not exactly the model's; legacy buffers are ignored.
    """
    from transformers import AutoModelForCausalLM

    _hide_progress_bars()
    model, found = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    for kind in ("missing", "unexpected"):
        names = sorted(n for n in found[f"{kind}_keys"] if not is_legacy_buffer(n))
        if names:
            raise ValueError(f"{folder}: {len(names)} {kind} weights, such as {names[0]}")
    return model.to(device).eval()


def save_model(model: nn.Module, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` in Hugging Face format, whole or not."""
    _hide_progress_bars()
    folder = Path(folder)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        model.save_pretrained(staging)
        for file in staging.iterdir():
            _flush(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_legacy_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a mask or a table rather than a weight."""
    return name.endswith(LEGACY_BUFFERS)


def read_weights(path: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each weight of a safetensors file, in name order, buffers left out."""
    with safe_open(path, framework="pt") as weights:
        for name in sorted(weights.keys()):
            if not is_legacy_buffer(name):
                yield name, weights.get_tensor(name)


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
    """The dtypes in a safetensors file, such as ``float32`` or ``float16+uint8``."""
    with safe_open(path, framework="pt") as weights:
        found = {str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
    return "+".join(sorted(found))


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically."""
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file."""
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata() or {}
    return load_file(path), metadata
