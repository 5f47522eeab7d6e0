"""Which matrices a probe changes: layer sets by the names of parameters.

``quantizers.linear_weights`` knows the paper's two choices. The factorial needs finer
ones, so a set here is a selection of parameter names and works on any architecture
whose names are listed below.
"""

import re
from collections.abc import Iterable

from torch import nn

_ATTENTION = re.compile(r"\.(attention|attn|self_attn|self_attention)\.")
_MLP = re.compile(r"\.(mlp|feed_forward|block_sparse_moe)\.")
_QKV = re.compile(r"\.(query_key_value|c_attn|qkv_proj|q_proj|k_proj|v_proj)\.weight$")
_BLOCK = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")


def matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every weight matrix of a model by parameter name: blocks, input embedding, output head.

    A head that shares its weight with the input embedding appears once, as the embedding.
    """
    return {name: p for name, p in model.named_parameters() if p.ndim == 2}


def block_of(name: str) -> int | None:
    """Number of the transformer block that a parameter is in; ``None`` outside of blocks."""
    found = _BLOCK.search(name)
    return int(found[1]) if found else None


def embedding_names(model: nn.Module) -> dict[str, str]:
    """Parameter names of ``embed_in`` and, where it has a weight of its own, of ``head``."""
    known = matrices(model)
    modules = {"embed_in": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    return {
        kind: name
        for kind, module in modules.items()
        for name, parameter in known.items()
        if module is not None and parameter is module.weight
        and not (kind == "head" and module.weight is modules["embed_in"].weight)
    }  # fmt: skip


def layer_sets(model: nn.Module) -> dict[str, list[str]]:
    """Parameter names by layer set: blocks, attention, qkv, mlp, block0 …, head, embed_in, all.

    Sets that a model has nothing for are left out. ``blocks`` are the paper's layers.
    """
    names = list(matrices(model))
    blocks = [name for name in names if block_of(name) is not None]
    ends = embedding_names(model)
    sets = {
        "blocks": blocks,
        "attention": [name for name in blocks if _ATTENTION.search(name)],
        "qkv": [name for name in blocks if _QKV.search(name)],
        "mlp": [name for name in blocks if _MLP.search(name)],
    }
    for number in sorted({block_of(name) for name in blocks}):
        sets[f"block{number}"] = [name for name in blocks if block_of(name) == number]
    sets |= {kind: [ends[kind]] for kind in ("head", "embed_in") if kind in ends}
    sets["all"] = names
    return {kind: chosen for kind, chosen in sets.items() if chosen}


def short_name(name: str) -> str:
    """A parameter's name as printed: ``0 attention.dense`` for block 0; the module elsewhere."""
    stem = name.removesuffix(".weight")
    found = _BLOCK.search(stem + ".")
    return f"{found[1]} {stem[found.end() :]}" if found else stem.rsplit(".", 1)[-1]


def in_order(names: Iterable[str]) -> list[str]:
    """Names by block, embeddings first and the head last, in the order of their occurrence."""
    rank = {name: (block_of(name) is not None, block_of(name) or 0) for name in names}
    heads = [name for name in rank if name.startswith(("embed_out", "lm_head"))]
    return sorted((n for n in rank if n not in heads), key=lambda name: rank[name]) + heads
