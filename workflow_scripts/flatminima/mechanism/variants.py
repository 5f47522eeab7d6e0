"""The model with some of its weights rounded: the factorial probe, and one matrix at a time.

*Factorial.* INT4 and INT8 of the paper differ in three ways at once, which this takes apart:
every combination of bits, symmetry and granularity on the paper's layers, every layer set with
every number of bits at the symmetry and granularity of the suite's low-bit quantizer, and each
four-bit format with a code book.

*Layers.* Where it breaks: ``in``, only this matrix is quantized (block matrices, input embedding
and head); ``out``, all of the paper's layers but this matrix are; ``all``, all of the paper's
layers are. Where the losses added by the matrices one by one sum to that of all together, layers
do not compound; where ``out`` helps more than ``in`` hurts, they do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, product

import numpy as np
import pandas as pd
from torch import Tensor, nn

from flatminima import scoring
from flatminima.intervals import summarise
from flatminima.mechanism.visits import Visit, embedding_names, matrices
from flatminima.paper import PAPER_LAYERS
from flatminima.quantizer_specs import AffineQuantizer, AnyQuantizer, fit_group, read_spec
from flatminima.quantizers import fake_quantize, grid_steps

ALL = "all"
VARIANTS_AT_ONCE = 24
Variant = tuple[str, Mapping[str, Tensor]]

_BLOCK = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_PARTS = {
    "attention": re.compile(r"\.(attention|attn|self_attn|self_attention)\."),
    "qkv": re.compile(r"\.(query_key_value|c_attn|qkv_proj|q_proj|k_proj|v_proj)\.weight$"),
    "mlp": re.compile(r"\.(mlp|feed_forward|block_sparse_moe)\."),
}


def block_of(name: str) -> int | None:
    """Number of the transformer block that a parameter is in; ``None`` outside of blocks."""
    found = _BLOCK.search(name)
    return int(found[1]) if found else None


def layer_sets(model: nn.Module) -> dict[str, list[str]]:
    """Parameter names by layer set: blocks, attention, qkv, mlp, block0 …, head, embed_in, all.

    Sets that a model has nothing for are left out. ``blocks`` are the paper's layers.
    """
    names, ends = list(matrices(model)), embedding_names(model)
    blocks = [name for name in names if block_of(name) is not None]
    sets = {"blocks": blocks}
    sets |= {part: [n for n in blocks if pattern.search(n)] for part, pattern in _PARTS.items()}
    for number in sorted({block_of(name) for name in blocks}):
        sets[f"block{number}"] = [name for name in blocks if block_of(name) == number]
    sets |= {kind: [ends[kind]] for kind in ("head", "embed_in") if kind in ends}
    return {kind: chosen for kind, chosen in (sets | {ALL: names}).items() if chosen}


def score_variants(visit: Visit, variants: Iterable[Variant]) -> pd.DataFrame:
    """Per-sequence scores of the model and of each variant, as ``intervals.summarise`` reads them.

    ``variants`` yields a name and the weights it replaces; they are made one handful at a
    time. An error names the step.
    """
    found, pending = {}, iter(variants)
    options = {"batch_size": visit.batch_size, "device": visit.device}
    try:
        while handful := dict(islice(pending, VARIANTS_AT_ONCE)):
            found |= scoring.score_variants(visit.model, visit.tokens, handful, **options)
    except (FloatingPointError, ValueError) as error:
        raise type(error)(f"step {visit.step}: {error}") from error
    return scoring.scores_table(found, visit.step)


@dataclass(frozen=True)
class Cell:
    """One combination. ``granularity`` is tensor, channel or g64 (groups of 64 inputs).

    ``format`` is ``int`` for evenly spaced levels, where the other columns count.
    """

    layers: str
    format: str = "int"
    bits: int = 4
    symmetric: bool | None = None
    granularity: str = ""

    @property
    def name(self) -> str:
        """Name of the cell in tables, such as ``int4-asym-g64-blocks``."""
        if self.format != "int":
            return f"{self.format}-{self.layers}"
        symmetry = "sym" if self.symmetric else "asym"
        return f"int{self.bits}-{symmetry}-{self.granularity}-{self.layers}"

    @property
    def spec(self) -> AnyQuantizer:
        """The quantizer of the cell."""
        if self.format != "int":
            return read_spec({"kind": self.format})
        spec = {"bits": self.bits, "symmetric": self.symmetric, "granularity": self.granularity}
        if self.granularity.startswith("g"):
            spec |= {"granularity": "group", "group_size": int(self.granularity[1:])}
        return read_spec(spec)


def cells(
    *, bits: list[int], group_sizes: list[int], formats: list[str], sets: list[str], low: Mapping
) -> list[Cell]:
    """All cells of the design.

    ``sets`` are layer sets; ``low`` has the ``symmetric`` and ``granularity`` they share.
    """
    granularities = ["tensor", "channel", *(f"g{size}" for size in sorted(group_sizes)[::-1])]
    full = product([PAPER_LAYERS], ["int"], bits, (False, True), granularities)
    others = product([layers for layers in sets if layers != PAPER_LAYERS], bits)
    return [
        *(Cell(*levels) for levels in full),
        *(Cell(layers, "int", b, low["symmetric"], low["granularity"]) for layers, b in others),
        *(Cell(PAPER_LAYERS, name) for name in formats),
    ]


def probe_cells(visit: Visit, design: Mapping) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every cell of the design on one checkpoint: a row per cell, and the per-sequence scores.

    ``design`` has the arguments of ``cells`` but ``sets``, which the model decides; groups
    larger than its narrowest matrix are left out. Rows have the columns of the audit, those of
    ``Cell`` and what the cell did to the weights: ``error_norm2`` (sum of squared errors) and
    ``step_variance`` (sum of step²/12, what uniform positions would give).
    """
    sets, weights, described = layer_sets(visit.model), matrices(visit.model), {}
    narrowest = min(weight.shape[1] for weight in weights.values())
    sizes = [size for size in design["group_sizes"] if fit_group(size, narrowest) == size]

    def squares(tensors: Iterable[Tensor], over: float = 1.0) -> float:
        return sum(float(tensor.double().pow(2).sum() / over) for tensor in tensors)

    def variants() -> Iterator[Variant]:
        for cell in cells(sets=list(sets), **{**design, "group_sizes": sizes}):
            own = {name: weights[name] for name in sets[cell.layers]}
            changed = {name: fake_quantize(weight, cell.spec) for name, weight in own.items()}
            even = isinstance(cell.spec, AffineQuantizer)
            steps = (grid_steps(weight, cell.spec) for weight in own.values())
            described[cell.name] = asdict(cell) | {
                "n_weights": sum(weight.numel() for weight in own.values()),
                "error_norm2": squares(changed[name] - weight for name, weight in own.items()),
                "step_variance": squares(steps, over=12.0) if even else np.nan,
            }
            yield cell.name, changed

    scores = score_variants(visit, variants())
    table = summarise(scores, ["step"], resamples=visit.resamples, seed=0)
    about = pd.DataFrame.from_dict(described, orient="index")
    return table.join(about, on="quantizer"), scores


def layer_variants(model: nn.Module, spec: AnyQuantizer) -> Iterator[Variant]:
    """The variants of one model: ``all``, then ``in <name>`` and ``out <name>``."""
    quantized = {name: fake_quantize(w, spec) for name, w in matrices(model).items()}
    whole = {name: quantized[name] for name in layer_sets(model)["blocks"]}
    yield ALL, whole
    yield from ((f"in {name}", {name: weight}) for name, weight in quantized.items())
    for name in whole:
        yield f"out {name}", {n: w for n, w in whole.items() if n != name}


def probe_layers(visit: Visit, settings: Mapping) -> pd.DataFrame:
    """A row per probe of one checkpoint: step, probe (in, out, all, fp32), tensor and scores.

    ``settings`` has low_bit, a definition. ``removed_nats`` is what leaving the matrix out takes
    away from the loss that all together add (rows ``out``).
    """
    scores = score_variants(visit, layer_variants(visit.model, read_spec(settings["low_bit"])))
    table = summarise(scores, ["step"], resamples=visit.resamples, seed=0)
    named = table["quantizer"].str.split(" ", n=1, expand=True)
    table.insert(1, "probe", named[0])
    table.insert(2, "tensor", named[1].fillna(ALL))
    added = table["delta_nll_nats_per_token"]
    removed = added[table["probe"] == ALL].item() - added
    table["removed_nats"] = removed.where(table["probe"] == "out")
    return table.drop(columns=["quantizer", "role"])
