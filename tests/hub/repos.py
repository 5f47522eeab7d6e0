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
DTYPES = {"float16": torch.float16, "float32": torch.float32}


def branch_name(step: int) -> str:
    """Pythia's name for a step."""
    return f"step{step}"


@cache
def model_tensors(step: int, dtype: str = "float16", legacy: bool = True) -> dict[str, Tensor]:
    """Weights of a step in ``dtype``; steps 0 and 1 have the same, as in Pythia.

    With ``legacy`` the masks and tables are there that old checkpoints carry.
    """
    model = build_model(SHAPE, VOCABULARY, seed=max(step, 1))
    # The files have the older name of the head.
    state = {n.replace("lm_head", "embed_out"): t for n, t in model.state_dict().items()}
    tensors = {n: t.to(DTYPES[dtype]) for n, t in state.items()}
    if legacy:
        length = SHAPE["max_length"]
        for layer in range(SHAPE["num_layers"]):
            prefix = f"gpt_neox.layers.{layer}.attention"
            mask = torch.ones(1, 1, length, length, dtype=torch.uint8).tril()
            tensors[f"{prefix}.bias"] = mask
            tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9).to(DTYPES[dtype])
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


def config_bytes(dtype: str = "float16") -> bytes:
    """``config.json`` as the hub has it: it names the dtype of the file."""
    config = build_model(SHAPE, VOCABULARY, seed=0).config.to_dict()
    # The key of older transformers, which wrote Pythia's files.
    config = {k: v for k, v in config.items() if k != "dtype"} | {"torch_dtype": dtype}
    config["architectures"] = ["GPTNeoXForCausalLM"]
    return json.dumps(config, indent=2, sort_keys=True, default=str).encode()


def in_shards(tensors: Mapping[str, Tensor], stem: str, suffix: str, make, count: int = 2) -> dict:
    """Files of ``count`` shards and the index that says which tensor is where."""
    names = sorted(tensors)
    parts = [names[i::count] for i in range(count)]
    files = [f"{stem}-{i + 1:05d}-of-{count:05d}.{suffix}" for i in range(count)]
    weight_map = {n: file for file, part in zip(files, parts, strict=True) for n in part}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    made = {
        file: make({n: tensors[n] for n in part}) for file, part in zip(files, parts, strict=True)
    }
    return {**made, f"{stem}.{suffix}.index.json": json.dumps(index).encode()}


def model_files(
    step: int, form: str = "safetensors", dtype: str = "float16", legacy: bool = True
) -> dict[str, bytes]:
    """Files of a branch, with others beside that nothing needs."""
    tensors = model_tensors(step, dtype, legacy)
    files = {
        ".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n",
        "README.md": b"# a tiny model\n",
        "config.json": config_bytes(dtype),
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


def model_branches(steps=STEPS, forms=FORMS, **details) -> dict[str, Mapping]:
    """A repository of a branch per step, in turn in each of ``forms``; main is the last step."""
    branches = {
        branch_name(step): model_files(step, forms[i % len(forms)], **details)
        for i, step in enumerate(steps)
    }
    return {**branches, "main": branch_name(steps[-1])}


def lazy_branches(steps, tokenizer: bytes | None = None) -> dict[str, Mapping]:
    """Many branches that cost nothing until they are asked for: safetensors in float16."""
    branches = {}
    for step in steps:
        files = {"config.json": config_bytes(), "model.safetensors": partial(_weights, step)}
        branches[branch_name(step)] = files
    main = dict(branches[branch_name(steps[-1])])
    if tokenizer is not None:
        main["tokenizer.json"] = tokenizer
    return {**branches, "main": main}


def _weights(step: int) -> bytes:
    return as_safetensors(model_tensors(step))
