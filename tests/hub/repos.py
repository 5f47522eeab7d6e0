"""Tiny GPT-NeoX repositories in every form that the real ones have."""

import io
import json
from collections.abc import Mapping
from functools import cache

import torch
from safetensors.torch import save
from torch import Tensor

from flatminima.model import build_model
from tests.conftest import TINY, TINY_VOCABULARY

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 100, 200, 300, 400)
# What the branch of a step holds, in turn.
FORMS = ("safetensors", "bin", "both", "shards", "bin_shards", "safetensors")


@cache
def model_tensors(step: int) -> dict[str, Tensor]:
    """Weights of a step in float16; steps 0 and 1 have the same, as in Pythia.

    The masks and tables are there that old checkpoints carry, and the older name of the head.
    """
    state = build_model(TINY, TINY_VOCABULARY, seed=max(step, 1)).state_dict()
    tensors = {n.replace("lm_head", "embed_out"): t.half() for n, t in state.items()}
    length = TINY["max_length"]
    for layer in range(TINY["num_layers"]):
        prefix = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{prefix}.bias"] = torch.ones(1, 1, length, length, dtype=torch.uint8).tril()
        tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9).half()
        tensors[f"{prefix}.rotary_emb.inv_freq"] = torch.ones(1)
    return tensors


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file."""
    return save({n: t.contiguous() for n, t in tensors.items()}, metadata={"format": "pt"})


def as_pickle(content: object) -> bytes:
    """The bytes of a ``.bin`` file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def config_bytes(vocabulary: int = TINY_VOCABULARY) -> bytes:
    """``config.json`` as the hub has it: it names the dtype of the file."""
    config = build_model(TINY, vocabulary, seed=0).config.to_dict()
    # The key of older transformers, which wrote Pythia's files.
    config = {k: v for k, v in config.items() if k != "dtype"} | {"torch_dtype": "float16"}
    config["architectures"] = ["GPTNeoXForCausalLM"]
    return json.dumps(config, indent=2, sort_keys=True, default=str).encode()


def _shards(tensors: Mapping[str, Tensor], stem: str, suffix: str, make) -> dict[str, bytes]:
    """Two shards and the index that says which tensor is where."""
    names = [f"{stem}-{number:05d}-of-00002.{suffix}" for number in (1, 2)]
    weight_map = {tensor: names[n % 2] for n, tensor in enumerate(sorted(tensors))}
    files = {
        name: make({n: tensors[n] for n, of in weight_map.items() if of == name}) for name in names
    }
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    return files | {f"{stem}.{suffix}.index.json": json.dumps(index).encode()}


def model_files(step: int, form: str = "safetensors") -> dict[str, bytes]:
    """Files of a branch, with others beside that nothing needs."""
    tensors = model_tensors(step)
    files = {
        ".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n",
        "README.md": b"# a tiny model\n",
        "config.json": config_bytes(),
        "flax_model.msgpack": b"not needed",
    }
    if form in ("safetensors", "both"):
        files["model.safetensors"] = as_safetensors(tensors)
    if form in ("bin", "both"):
        files["pytorch_model.bin"] = as_pickle(tensors)
    if form == "shards":
        files |= _shards(tensors, "model", "safetensors", as_safetensors)
    if form == "bin_shards":
        files |= _shards(tensors, "pytorch_model", "bin", as_pickle)
    return files


def model_branches(steps=STEPS, forms=FORMS) -> dict[str, dict[str, bytes]]:
    """A repository of a branch per step, in turn in each of ``forms``; main is the last step."""
    made = {f"step{s}": model_files(s, forms[i % len(forms)]) for i, s in enumerate(steps)}
    return made | {"main": made[f"step{steps[-1]}"]}
