"""Models of Pythia's shapes with fresh weights, and their checkpoints on disk."""

import json
import re
from pathlib import Path

import numpy as np
from torch import nn

from flatminima.model import build_model

VOCABULARY = 50304
# Hidden size, layers, heads.
SHAPES = {
    "mini": (64, 2, 4),
    "14m": (128, 6, 4),
    "31m": (256, 6, 8),
    "70m": (512, 6, 8),
    "160m": (768, 12, 12),
    "410m": (1024, 24, 16),
    "1b": (2048, 16, 8),
    "1.4b": (2048, 24, 16),
    "2.8b": (2560, 32, 32),
    "6.9b": (4096, 32, 32),
}


def architecture(name: str, max_length: int = 2048) -> dict:
    """The ``architecture`` section of a shape."""
    hidden, layers, heads = SHAPES[name]
    return {
        "hidden_size": hidden, "num_layers": layers, "num_heads": heads, "max_length": max_length,
    }  # fmt: skip


def fresh_model(name: str, vocabulary: int = VOCABULARY, max_length: int = 2048) -> nn.Module:
    """A model of a shape in float32, ready to evaluate."""
    return build_model(architecture(name, max_length), vocabulary, seed=0).eval()


def random_tokens(sequences: int, length: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Token ids ``[sequences, length]``."""
    shape = (sequences, length)
    return np.random.default_rng(0).integers(0, vocabulary, shape).astype(np.int32)


def published_checkpoint(name: str, folder: Path, vocabulary: int = VOCABULARY) -> Path:
    """A checkpoint in float16, as Pythia's are published."""
    model = fresh_model(name, vocabulary)
    model.half().save_pretrained(folder)
    return folder


def stored_checkpoint(name: str, folder: Path, vocabulary: int = VOCABULARY) -> Path:
    """A checkpoint in float32 in shards of one layer each; the model is never in memory."""
    import torch
    from accelerate import init_empty_weights
    from safetensors.torch import save_file

    with init_empty_weights():
        model = fresh_model(name, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    shards: dict[str, dict] = {}
    for key, parameter in model.named_parameters():
        number = re.search(r"\.layers\.(\d+)\.", key)
        shard = f"model-{number[1] if number else 'rest'}.safetensors"
        shards.setdefault(shard, {})[key] = parameter.shape
    generator = torch.Generator().manual_seed(0)
    for shard, shapes in shards.items():
        tensors = {
            key: torch.empty(shape).normal_(0.0, 0.02, generator=generator)
            if len(shape) > 1
            else torch.full(shape, float(key.endswith("norm.weight")))
            for key, shape in shapes.items()
        }
        save_file(tensors, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {k: s for s, keys in shards.items() for k in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
