"""The factorial probe: bits, symmetry, granularity and layers changed one at a time.

INT4 and INT8 of the paper differ in three ways at once, which this takes apart: every
combination of bits, symmetry and granularity on the paper's layers, every layer set with
every number of bits at the symmetry and granularity of the suite's low-bit quantizer, and
each four-bit format with a code book.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
import pandas as pd
from torch import Tensor

from flatminima.intervals import summarise
from flatminima.mechanism.factors import PAPER_LAYERS
from flatminima.mechanism.visits import Variant, Visit, layer_sets, matrices, score_variants
from flatminima.quantizer_specs import AffineQuantizer, AnyQuantizer, fit_group, read_spec
from flatminima.quantizers import fake_quantize, grid_steps


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
    full = product(bits, (False, True), granularities)
    chosen = [Cell(PAPER_LAYERS, "int", b, s, g) for b, s, g in full]
    own = (low["symmetric"], low["granularity"])
    others = product([layers for layers in sets if layers != PAPER_LAYERS], bits)
    chosen += [Cell(layers, "int", b, *own) for layers, b in others]
    return chosen + [Cell(PAPER_LAYERS, name) for name in formats]


def _noise(
    spec: AnyQuantizer, weights: Mapping[str, Tensor], changed: Mapping[str, Tensor]
) -> dict:
    """What rounding does to the weights: squared error, and what uniform positions would give."""
    uniform = np.nan
    if isinstance(spec, AffineQuantizer):
        steps = (grid_steps(weights[n], spec).double() for n in changed)
        uniform = sum(float((step**2).sum() / 12.0) for step in steps)
    return {
        "n_weights": sum(weights[n].numel() for n in changed),
        "error_norm2": sum(float((changed[n] - weights[n]).double().pow(2).sum()) for n in changed),
        "step_variance": uniform,
    }


def probe_cells(visit: Visit, design: Mapping) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every cell of the design on one checkpoint: a row per cell, and the per-sequence scores.

    ``design`` has the arguments of ``cells`` but ``sets``, which the model decides; groups
    larger than its narrowest matrix are left out. Rows
    have the columns of the audit, those of ``Cell`` and what the cell did to the weights:
    ``error_norm2`` (sum of squared errors) and ``step_variance`` (sum of step²/12).
    """
    sets = layer_sets(visit.model)
    weights = {name: p.detach() for name, p in matrices(visit.model).items()}
    narrowest = min(weight.shape[1] for weight in weights.values())
    sizes = [size for size in design["group_sizes"] if fit_group(size, narrowest) == size]
    chosen = cells(sets=list(sets), **{**design, "group_sizes": sizes})
    described = []

    def variants() -> Iterator[Variant]:
        for cell in chosen:
            spec = cell.spec
            changed = {name: fake_quantize(weights[name], spec) for name in sets[cell.layers]}
            described.append(
                {"quantizer": cell.name, **asdict(cell), **_noise(spec, weights, changed)}
            )
            yield cell.name, changed

    scores = score_variants(visit, variants())
    table = summarise(scores, ["step"], resamples=visit.resamples, seed=0)
    return table.merge(pd.DataFrame(described), on="quantizer", how="left"), scores
