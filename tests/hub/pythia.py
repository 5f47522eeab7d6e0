"""A stand-in for the hub that the paper's suite needs: 154 tiny revisions, tokenizer, text."""

import json
from collections.abc import Sequence

import numpy as np
import torch
import zstandard

from flatminima.model import build_model
from flatminima.text.tokens import train_tokenizer
from tests.conftest import TINY
from tests.hub.repos import as_safetensors, config_bytes

REPO, PILE = "EleutherAI/pythia-160m", "monology/pile-uncopyrighted"
VOCABULARY = 320


def documents(count: int, seed: int) -> list[str]:
    """Texts of a few words."""
    random = np.random.default_rng(seed)
    words = [f"word{n}" for n in range(50)]
    return [f"{' '.join(random.choice(words, 30))} number {seed} {n}" for n in range(count)]


def models(steps: Sequence[int], lost: Sequence[int] = ()) -> dict[str, dict]:
    """The repository of the model, without the branches that are ``lost``.

    Its weights in float16 walk away from a fresh model; steps 0 and 1 are the same.
    """
    weights = build_model(TINY, VOCABULARY, seed=0).state_dict()
    generator, config, branches = torch.Generator().manual_seed(0), config_bytes(VOCABULARY), {}
    for step in steps:
        pace = 0.0 if step <= 1 else 0.004 * min(1.0, step / 1430)
        for tensor in weights.values():
            tensor += pace * torch.randn(tensor.shape, generator=generator)
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
