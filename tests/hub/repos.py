"""Tiny GPT-NeoX repositories, with weights in every format of real repositories."""

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
# Formats of the weights, which the branches have in turn.
FORMS = ("safetensors", "bin", "both", "shards", "bin_shards", "safetensors")


@cache
def model_tensors(step: int) -> dict[str, Tensor]:
    """Weights of a step in float16. Steps 0 and 1 are equal, as in Pythia.

    As in old checkpoints, there are masks and tables, and the output head has its older name.
    """
    state = build_model(TINY, TINY_VOCABULARY, seed=max(step, 1)).state_dict()
    tensors = {
        name.replace("lm_head", "embed_out"): tensor.half() for name, tensor in state.items()
    }
    length = TINY["max_length"]
    for layer in range(TINY["num_layers"]):
        prefix = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{prefix}.bias"] = torch.ones(1, 1, length, length, dtype=torch.uint8).tril()
        tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9).half()
        tensors[f"{prefix}.rotary_emb.inv_freq"] = torch.ones(1)
    return tensors


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return save(contiguous, metadata={"format": "pt"})


def as_pickle(content: object) -> bytes:
    """The bytes of a ``.bin`` file."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def config_bytes(vocabulary: int = TINY_VOCABULARY) -> bytes:
    """``config.json`` as on the hub, with the dtype of the file."""
    config = build_model(TINY, vocabulary, seed=0).config.to_dict()
    # Older versions of transformers, which wrote Pythia's files, have another key for the dtype.
    config.pop("dtype", None)
    config["torch_dtype"] = "float16"
    config["architectures"] = ["GPTNeoXForCausalLM"]
    return json.dumps(config, indent=2, sort_keys=True, default=str).encode()


def _shards(tensors: Mapping[str, Tensor], stem: str, suffix: str, make) -> dict[str, bytes]:
    """Two shards, and the index that maps tensors to shards."""
    names = [f"{stem}-{number:05d}-of-00002.{suffix}" for number in (1, 2)]
    weight_map = {tensor: names[n % 2] for n, tensor in enumerate(sorted(tensors))}
    files = {}
    for name in names:
        shard = {tensor: tensors[tensor] for tensor, file in weight_map.items() if file == name}
        files[name] = make(shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    return files | {f"{stem}.{suffix}.index.json": json.dumps(index).encode()}


def model_files(step: int, form: str = "safetensors") -> dict[str, bytes]:
    """Files of a branch, including some that are never needed."""
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
    """A repository with one branch per step. The branch main has the last step."""
    branches = {}
    for index, step in enumerate(steps):
        branches[f"step{step}"] = model_files(step, forms[index % len(forms)])
    branches["main"] = branches[f"step{steps[-1]}"]
    return branches
