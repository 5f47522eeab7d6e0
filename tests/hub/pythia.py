"""Repositories for the suite of the paper: 154 tiny revisions, a tokenizer, and text."""

import json
from collections.abc import Sequence

import numpy as np
import torch
import zstandard

from flatminima.model import build_model
from flatminima.text.tokens import train_tokenizer
from tests.conftest import TINY
from tests.hub.repos import as_safetensors, config_bytes

REPO = "EleutherAI/pythia-160m"
PILE = "monology/pile-uncopyrighted"
VOCABULARY = 320


def documents(count: int, seed: int) -> list[str]:
    """Texts of a few words."""
    random = np.random.default_rng(seed)
    words = [f"word{n}" for n in range(50)]
    return [f"{' '.join(random.choice(words, 30))} number {seed} {n}" for n in range(count)]


def models(steps: Sequence[int], lost: Sequence[int] = ()) -> dict[str, dict]:
    """The repository of the model, without the branches of the steps ``lost``.

    Its float16 weights are a random walk from a fresh model. Steps 0 and 1 are equal.
    """
    weights = build_model(TINY, VOCABULARY, seed=0).state_dict()
    generator = torch.Generator().manual_seed(0)
    config = config_bytes(VOCABULARY)
    branches = {}
    for step in steps:
        step_size = 0.0 if step <= 1 else 0.004 * min(1.0, step / 1430)
        for tensor in weights.values():
            tensor += step_size * torch.randn(tensor.shape, generator=generator)
        content = as_safetensors({name: tensor.half() for name, tensor in weights.items()})
        branches[f"step{step}"] = {"config.json": config, "model.safetensors": content}
    # A tokenizer of 300 entries, fewer than the model has rows.
    tokenizer = train_tokenizer(documents(40, 2), 300).to_str().encode()
    branches["main"] = branches[f"step{steps[-1]}"] | {"tokenizer.json": tokenizer}
    for step in lost:
        del branches[f"step{step}"]
    return {REPO: branches}


def trained_weights(updates: int = 150) -> dict[str, torch.Tensor]:
    """Weights of a tiny model that has learned the training documents with its blocks alone.

    The embedding and the head stay random, so that rounding the blocks costs something.
    """
    model = build_model(TINY, VOCABULARY, seed=0)
    generator = torch.Generator().manual_seed(0)
    for frozen in (model.gpt_neox.embed_in.weight, model.lm_head.weight):
        frozen.data.normal_(generator=generator)
        frozen.requires_grad_(False)
    tokenizer = train_tokenizer(documents(40, 2), 300)
    ids = torch.tensor([id for text in documents(200, 1) for id in tokenizer.encode(text).ids])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    length = TINY["max_length"]
    for _ in range(updates):
        starts = torch.randint(0, len(ids) - length, (32, 1), generator=generator)
        batch = ids[starts + torch.arange(length)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return {name: weights.detach().clone() for name, weights in model.state_dict().items()}


def with_outliers(weights: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    """The same function with two large input columns in two matrices of each block.

    The columns are multiplied with ``factor``, and gain and bias of the LayerNorm before them are
    divided by it. FP32 does not change, and the steps of a coarse grid grow with the factor.
    """
    scaled = {name: tensor.clone() for name, tensor in weights.items()}
    columns = [3, 7]
    for layer in range(TINY["num_layers"]):
        block = f"gpt_neox.layers.{layer}"
        for norm, matrix in (
            ("input_layernorm", "attention.query_key_value"),
            ("post_attention_layernorm", "mlp.dense_h_to_4h"),
        ):
            scaled[f"{block}.{norm}.weight"][columns] /= factor
            scaled[f"{block}.{norm}.bias"][columns] /= factor
            scaled[f"{block}.{matrix}.weight"][:, columns] *= factor
    return scaled


def models_that_collapse(factors: dict[int, float]) -> dict[str, dict]:
    """A repository whose revisions have the same FP32 loss and INT4 gaps that grow with a factor.

    ``factors`` maps steps to the factor of ``with_outliers``. Every revision has a little noise of
    its own, so that no two are equal.
    """
    weights = trained_weights()
    generator = torch.Generator().manual_seed(1)
    config = config_bytes(VOCABULARY)
    branches = {}
    for step, factor in factors.items():
        tensors = {}
        for name, tensor in with_outliers(weights, factor).items():
            noise = 1 + 0.001 * torch.randn(tensor.shape, generator=generator)
            tensors[name] = (tensor * noise).half()
        content = as_safetensors(tensors)
        branches[f"step{step}"] = {"config.json": config, "model.safetensors": content}
    tokenizer = train_tokenizer(documents(40, 2), 300).to_str().encode()
    branches["main"] = branches[f"step{max(factors)}"] | {"tokenizer.json": tokenizer}
    return {REPO: branches}


def datasets() -> dict[str, dict]:
    """The repository of the text: a validation file and one of the training files."""
    files = {}
    for name, texts in (("val", documents(60, 0)), ("train/00", documents(200, 1))):
        lines = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts)
        files[f"{name}.jsonl.zst"] = zstandard.compress(lines.encode())
    return {PILE: {"main": files}}
