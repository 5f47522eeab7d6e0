"""A stand-in for the hub that the paper's suite needs: 154 tiny revisions, tokenizer, text."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial

import numpy as np
import torch
import zstandard
from torch import Tensor

from flatminima.model import build_model
from flatminima.text.tokens import train_tokenizer
from tests.hub.repos import SHAPE, as_safetensors, branch_name, config_bytes

REPO, PILE = "EleutherAI/pythia-160m", "monology/pile-uncopyrighted"
VOCABULARY = 320


@cache
def path_of_weights(steps: tuple[int, ...]) -> dict[int, dict[str, Tensor]]:
    """Weights in float16 along a walk from a fresh model; steps 0 and 1 are the same."""
    weights = {n: t.clone() for n, t in build_model(SHAPE, VOCABULARY, seed=0).state_dict().items()}
    generator, found = torch.Generator().manual_seed(0), {}
    for step in steps:
        pace = 0.0 if step <= 1 else 0.004 * min(1.0, step / 1430)
        for tensor in weights.values():
            tensor += pace * torch.randn(tensor.shape, generator=generator)
        found[step] = {name: tensor.half() for name, tensor in weights.items()}
    return found


def _weights(steps: tuple[int, ...], step: int) -> bytes:
    return as_safetensors(path_of_weights(steps)[step])


def documents(count: int, seed: int) -> list[str]:
    """Texts of a few words."""
    random = np.random.default_rng(seed)
    words = [f"word{n}" for n in range(50)]
    return [f"{' '.join(random.choice(words, 30))} number {seed} {n}" for n in range(count)]


def compressed(texts: Sequence[str]) -> bytes:
    """A ``.jsonl.zst`` file."""
    lines = "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts)
    return zstandard.ZstdCompressor().compress(lines.encode())


def models(steps: Sequence[int], lost: Sequence[int] = ()) -> dict[str, Mapping]:
    """The repository of the model, without the branches that are ``lost``."""
    config, branches = config_bytes(VOCABULARY), {}
    for step in steps:
        weights = partial(_weights, tuple(steps), step)
        branches[branch_name(step)] = {"config.json": config, "model.safetensors": weights}
    # A tokenizer of 300 entries, fewer than the model has rows.
    tokenizer = train_tokenizer(documents(40, 2), 300).to_str().encode()
    main = branches[branch_name(steps[-1])] | {"tokenizer.json": tokenizer}
    kept = {name: files for name, files in branches.items() if name not in map(branch_name, lost)}
    return {REPO: kept | {"main": main}}


def datasets() -> dict[str, Mapping]:
    """The repository of the text: a validation file and one of the training files."""
    files = {
        "val.jsonl.zst": compressed(documents(60, 0)),
        "train/00.jsonl.zst": compressed(documents(200, 1)),
    }
    return {PILE: {"main": files}}
