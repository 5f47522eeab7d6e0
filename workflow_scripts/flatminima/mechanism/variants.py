"""The model with some of its weights rounded: the factorial probe, and one matrix at a time.

*Factorial.* INT4 and INT8 of the paper differ in three ways at once. The design separates them.
It has every combination of bits, symmetry and granularity on the paper's layers. It also has
every layer set with every number of bits, at the symmetry and granularity of the suite's low-bit
quantizer, and each four-bit format with a code book.

*Layers.* Where the loss arises. ``in``: only this matrix is quantized (block matrices, input
embedding and head). ``out``: all of the paper's layers except this matrix. ``all``: all of the
paper's layers. Layers do not compound if the losses of single matrices sum to the loss of all
together. They do compound if ``out`` helps more than ``in`` hurts.
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
    match = _BLOCK.search(name)
    return int(match[1]) if match else None


def layer_sets(model: nn.Module) -> dict[str, list[str]]:
    """Parameter names by layer set: blocks, attention, qkv, mlp, block0 …, head, embed_in, all.

    Empty sets are left out. ``blocks`` are the paper's layers.
    """
    names = list(matrices(model))
    embeddings = embedding_names(model)
    in_blocks = [name for name in names if block_of(name) is not None]

    sets = {"blocks": in_blocks}
    for part, pattern in _PARTS.items():
        sets[part] = [name for name in in_blocks if pattern.search(name)]
    for number in sorted({block_of(name) for name in in_blocks}):
        sets[f"block{number}"] = [name for name in in_blocks if block_of(name) == number]
    for kind in ("head", "embed_in"):
        if kind in embeddings:
            sets[kind] = [embeddings[kind]]
    sets[ALL] = names
    return {layer_set: members for layer_set, members in sets.items() if members}


def score_variants(visit: Visit, variants: Iterable[Variant]) -> pd.DataFrame:
    """Per-sequence scores of the model and of each variant, as ``intervals.summarise`` reads them.

    ``variants`` yields a name and the weights it replaces. Only ``VARIANTS_AT_ONCE`` are in
    memory at a time. An error names the step.
    """
    scores = {}
    pending = iter(variants)
    try:
        handful = dict(islice(pending, VARIANTS_AT_ONCE))
        while handful:
            scores |= scoring.score_variants(
                visit.model,
                visit.tokens,
                handful,
                batch_size=visit.batch_size,
                device=visit.device,
            )
            handful = dict(islice(pending, VARIANTS_AT_ONCE))
    except (FloatingPointError, ValueError) as error:
        raise type(error)(f"step {visit.step}: {error}") from error
    return scoring.scores_table(scores, visit.step)


@dataclass(frozen=True)
class Cell:
    """One cell of the design. ``granularity`` is tensor, channel or g64 (groups of 64 inputs).

    ``format`` is ``int`` for evenly spaced levels. Only then the fields after it have a meaning.
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

    ``sets`` are layer sets. ``low`` has the ``symmetric`` and ``granularity`` of all sets but the
    paper's.
    """
    # From coarse to fine, as tensor and channel before them.
    largest_first = sorted(group_sizes, reverse=True)
    granularities = ["tensor", "channel", *(f"g{size}" for size in largest_first)]
    other_sets = [layers for layers in sets if layers != PAPER_LAYERS]
    return [
        *(
            Cell(PAPER_LAYERS, "int", number, symmetric, granularity)
            for number, symmetric, granularity in product(bits, (False, True), granularities)
        ),
        *(
            Cell(layers, "int", number, low["symmetric"], low["granularity"])
            for layers, number in product(other_sets, bits)
        ),
        *(Cell(PAPER_LAYERS, name) for name in formats),
    ]


def probe_cells(visit: Visit, design: Mapping) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every cell of the design on one checkpoint: a row per cell, and the per-sequence scores.

    ``design`` has the arguments of ``cells`` except ``sets``, which the model decides. Groups
    larger than its narrowest matrix are left out. Rows have the columns of the audit, those of
    ``Cell``, ``n_weights``, ``error_norm2`` (sum of squared rounding errors) and
    ``step_variance`` (sum of step²/12, the errors that uniform positions would give).
    """
    sets = layer_sets(visit.model)
    weights = matrices(visit.model)
    narrowest = min(weight.shape[1] for weight in weights.values())
    # A group wider than a row would silently be the row, and two cells the same.
    group_sizes = [size for size in design["group_sizes"] if fit_group(size, narrowest) == size]
    columns_by_cell = {}

    def variants() -> Iterator[Variant]:
        for cell in cells(sets=list(sets), **{**design, "group_sizes": group_sizes}):
            cell_weights = {name: weights[name] for name in sets[cell.layers]}
            rounded = {
                name: fake_quantize(weight, cell.spec) for name, weight in cell_weights.items()
            }
            # Filled while the scores consume this generator: only one cell is in memory.
            columns_by_cell[cell.name] = asdict(cell) | _rounding_columns(
                cell_weights, rounded, cell.spec
            )
            yield cell.name, rounded

    scores = score_variants(visit, variants())
    table = summarise(scores, ["step"], resamples=visit.resamples, seed=0)
    cell_columns = pd.DataFrame.from_dict(columns_by_cell, orient="index")
    return table.join(cell_columns, on="quantizer"), scores


def _rounding_columns(
    weights: Mapping[str, Tensor], rounded: Mapping[str, Tensor], spec: AnyQuantizer
) -> dict[str, float]:
    """Number of weights, their rounding errors, and the errors that the grid predicts."""
    step_variance = np.nan  # code books have no single step
    if isinstance(spec, AffineQuantizer):
        steps = (grid_steps(weight, spec) for weight in weights.values())
        step_variance = _sum_of_squares(steps, divisor=12.0)
    return {
        "n_weights": sum(weight.numel() for weight in weights.values()),
        "error_norm2": _sum_of_squares(rounded[name] - weight for name, weight in weights.items()),
        "step_variance": step_variance,
    }


def _sum_of_squares(tensors: Iterable[Tensor], divisor: float = 1.0) -> float:
    return sum(float(tensor.double().pow(2).sum() / divisor) for tensor in tensors)


def layer_variants(model: nn.Module, spec: AnyQuantizer) -> Iterator[Variant]:
    """The variants of one model: ``all``, then ``in <name>`` and ``out <name>``."""
    quantized = {name: fake_quantize(weight, spec) for name, weight in matrices(model).items()}
    paper_layers = {name: quantized[name] for name in layer_sets(model)[PAPER_LAYERS]}
    yield ALL, paper_layers
    for name, weight in quantized.items():
        yield f"in {name}", {name: weight}
    for left_out in paper_layers:
        others = {name: weight for name, weight in paper_layers.items() if name != left_out}
        yield f"out {left_out}", others


def probe_layers(visit: Visit, settings: Mapping) -> pd.DataFrame:
    """A row per probe of one checkpoint: step, probe (in, out, all, fp32), tensor and scores.

    ``settings`` has low_bit, a definition. ``removed_nats`` (rows ``out``) is by how much the added
    loss of all matrices falls if this matrix is left out.
    """
    scores = score_variants(visit, layer_variants(visit.model, read_spec(settings["low_bit"])))
    table = summarise(scores, ["step"], resamples=visit.resamples, seed=0)
    probe_and_tensor = table["quantizer"].str.split(" ", n=1, expand=True)
    table.insert(1, "probe", probe_and_tensor[0])
    table.insert(2, "tensor", probe_and_tensor[1].fillna(ALL))
    added_loss = table["delta_nll_nats_per_token"]
    removed = added_loss[table["probe"] == ALL].item() - added_loss
    table["removed_nats"] = removed.where(table["probe"] == "out")
    return table.drop(columns=["quantizer", "role"])
