"""Tiny GPT-NeoX repositories in every form that the real ones have."""

import io
import json
from collections.abc import Mapping
from functools import cache, partial

import torch
from safetensors.torch import save
from torch import Tensor

from flatminima.model import build_model

SHAPE = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_length": 16}
VOCABULARY = 64
STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 100, 200, 300, 400)
# What the branch of a step holds, in turn.
FORMS = ("safetensors", "bin", "both", "shards", "bin_shards", "safetensors")


def branch_name(step: int) -> str:
    """Pythia's name for a step."""
    return f"step{step}"


@cache
def model_tensors(step: int) -> dict[str, Tensor]:
    """Weights of a step in float16; steps 0 and 1 have the same, as in Pythia.

    The masks and tables are there that old checkpoints carry, and the older name of the head.
    """
    state = build_model(SHAPE, VOCABULARY, seed=max(step, 1)).state_dict()
    tensors = {n.replace("lm_head", "embed_out"): t.half() for n, t in state.items()}
    length = SHAPE["max_length"]
    for layer in range(SHAPE["num_layers"]):
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


def config_bytes(vocabulary: int = VOCABULARY) -> bytes:
    """``config.json`` as the hub has it: it names the dtype of the file."""
    config = build_model(SHAPE, vocabulary, seed=0).config.to_dict()
    # The key of older transformers, which wrote Pythia's files.
    config = {k: v for k, v in config.items() if k != "dtype"} | {"torch_dtype": "float16"}
    config["architectures"] = ["GPTNeoXForCausalLM"]
    return json.dumps(config, indent=2, sort_keys=True, default=str).encode()


def in_shards(tensors: Mapping[str, Tensor], stem: str, suffix: str, make) -> dict[str, bytes]:
    """Two shards and the index that says which tensor is where."""
    files, weight_map = {}, {}
    for number in (0, 1):
        name = f"{stem}-{number + 1:05d}-of-00002.{suffix}"
        part = sorted(tensors)[number::2]
        files[name] = make({n: tensors[n] for n in part})
        weight_map |= dict.fromkeys(part, name)
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
        files |= in_shards(tensors, "model", "safetensors", as_safetensors)
    if form == "bin_shards":
        files |= in_shards(tensors, "pytorch_model", "bin", as_pickle)
    return files


def model_branches(steps=STEPS, forms=FORMS) -> dict[str, Mapping]:
    """A repository of a branch per step, in turn in each of ``forms``; main is the last step."""
    files = [model_files(step, forms[i % len(forms)]) for i, step in enumerate(steps)]
    return dict(zip([*map(branch_name, steps), "main"], [*files, files[-1]], strict=True))


def lazy_branches(steps, tokenizer: bytes) -> dict[str, Mapping]:
    """Many branches that cost nothing until they are asked for: safetensors in float16."""
    config, branches = config_bytes(), {}
    for step in steps:
        files = {"config.json": config, "model.safetensors": partial(_weights, step)}
        branches[branch_name(step)] = files
    return branches | {"main": files | {"tokenizer.json": tokenizer}}


def _weights(step: int) -> bytes:
    return as_safetensors(model_tensors(step))
