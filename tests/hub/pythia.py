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


def datasets() -> dict[str, dict]:
    """The repository of the text: a validation file and one of the training files."""
    files = {}
    for name, texts in (("val", documents(60, 0)), ("train/00", documents(200, 1))):
        lines = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts)
        files[f"{name}.jsonl.zst"] = zstandard.compress(lines.encode())
    return {PILE: {"main": files}}
