"""What every measurement does around itself: its checkpoints, layer sets, scores of variants."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flatminima import scoring
from flatminima.intervals import percentile_interval
from flatminima.jobs import progress
from flatminima.layers import linear_layers
from flatminima.model import assert_float32, choose_device, load_model, prepare_backend
from flatminima.quantizer_specs import FP32
from flatminima.quantizers import linear_weights
from flatminima.text.tokens import read_tokens

VARIANTS_AT_ONCE = 24
Variant = tuple[str, Mapping[str, Tensor]]

_ATTENTION = re.compile(r"\.(attention|attn|self_attn|self_attention)\.")
_MLP = re.compile(r"\.(mlp|feed_forward|block_sparse_moe)\.")
_QKV = re.compile(r"\.(query_key_value|c_attn|qkv_proj|q_proj|k_proj|v_proj)\.weight$")
_BLOCK = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class Visit:
    """One checkpoint of a job: its step, its model on ``device``, and the tokens it is scored on.

    ``tokens`` is ``[sequences, length]``; ``resamples`` is of bootstraps over sequences.
    """

    step: int
    model: nn.Module
    tokens: np.ndarray
    batch_size: int
    resamples: int
    device: str = "cpu"

    def weights(self, layers: str) -> dict[str, Tensor]:
        """Weights that a probe of these layers quantizes, by parameter name."""
        return {n: w.detach() for n, w in linear_weights(self.model, layers).items()}


def prepare(device: str, threads: int) -> str:
    """Set torch's threads and numeric mode; the device that the configuration asks for."""
    torch.set_num_threads(threads)
    prepare_backend()
    return choose_device(device)


def visits(
    folders: Mapping[int, str], validation: str, settings: Mapping, threads: int
) -> Iterator[Visit]:
    """The checkpoints of a job one after another; one model is in memory at a time.

    ``settings`` has ``device``, ``batch_size``, ``resamples`` and ``sequences``, the number of
    validation sequences that are used. Raises ``ValueError`` where the file holds fewer, and
    for a model whose linear weights are not ``[out, in]`` matrices.
    """
    device, wanted = prepare(settings["device"], threads), settings["sequences"]
    tokens = read_tokens(validation)
    if len(tokens) < wanted:
        raise ValueError(f"{validation} holds {len(tokens)} sequences; mechanism asks for {wanted}")
    for step, folder in progress(folders.items(), "checkpoints", total=len(folders)):
        model = load_model(folder, device)
        assert_float32(model)
        for name, layer in linear_layers(model).items():
            if layer.weight.ndim != 2 or layer.input_axis % 2 != 1:
                raise ValueError(f"{name} is no [out, in] matrix; mechanism measures no other")
        yield Visit(
            step, model, tokens[:wanted], settings["batch_size"], settings["resamples"], device
        )


def mean_interval(
    values: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """95 % percentile interval of the mean of independent values, ``[units]``."""
    drawn = rng.integers(0, len(values), (resamples, len(values)))
    return percentile_interval(values[drawn].mean(axis=1))


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
    modules = {"head": model.get_output_embeddings(), "embed_in": model.get_input_embeddings()}
    kinds = {id(module.weight): kind for kind, module in modules.items() if module is not None}
    found = {kinds[id(p)]: name for name, p in matrices(model).items() if id(p) in kinds}
    return {kind: found[kind] for kind in ("embed_in", "head") if kind in found}


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


def in_order(names: Iterable[str]) -> list[str]:
    """Names by block, embeddings first and the head last, in the order of their occurrence."""

    def rank(name: str) -> tuple[bool, bool, int]:
        inside = block_of(name) is not None
        return name.startswith(("embed_out", "lm_head")), inside, block_of(name) or 0

    return sorted(names, key=rank)


def role_of(name: str) -> str:
    """The role of a model in a table of scores: fp32, or variant where it was changed."""
    return FP32 if name == FP32 else "variant"


def score_variants(visit: Visit, variants: Iterable[Variant]) -> pd.DataFrame:
    """Per-sequence scores of the model and of each variant, as ``intervals.summarise`` reads them.

    ``variants`` yields a name and the weights it replaces; they are made one handful at a
    time. An error names the step.
    """
    tables, pending = [], iter(variants)
    try:
        while handful := dict(islice(pending, VARIANTS_AT_ONCE)):
            found = scoring.score_variants(
                visit.model, visit.tokens, handful,
                batch_size=visit.batch_size, device=visit.device,
            )  # fmt: skip
            new = handful if tables else found
            tables += [found[name].table(visit.step, name, role_of(name)) for name in new]
    except (FloatingPointError, ValueError) as error:
        raise type(error)(f"step {visit.step}: {error}") from error
    return pd.concat(tables, ignore_index=True)
