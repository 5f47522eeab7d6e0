"""The factorial probe: bits, symmetry, granularity and layers changed one at a time.

INT4 and INT8 of the paper differ in three ways at once, which ``factorial_design`` takes
apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import numpy as np
import pandas as pd
from torch import Tensor, nn

from flatminima.intervals import summarise
from flatminima.mechanism.factorial_design import Cell, cells
from flatminima.mechanism.grid import step_variance, steps
from flatminima.mechanism.layers import layer_sets, matrices
from flatminima.mechanism.scoring import Variant, score_variants
from flatminima.quantizer_specs import AffineQuantizer, AnyQuantizer, fit_group, read_spec
from flatminima.quantizers import fake_quantize


def cell_spec(cell: Cell) -> AnyQuantizer:
    """The quantizer of a cell."""
    if cell.format != "int":
        return read_spec({"kind": cell.format})
    spec = {"bits": cell.bits, "symmetric": cell.symmetric, "granularity": cell.granularity}
    if cell.granularity.startswith("g"):
        spec |= {"granularity": "group", "group_size": int(cell.granularity[1:])}
    return read_spec(spec)


def quantize(weight: Tensor, cell: Cell) -> Tensor:
    """A float32 ``[out, in]`` weight as the cell rounds it."""
    return fake_quantize(weight, cell_spec(cell))


def _noise(cell: Cell, weights: Mapping[str, Tensor], changed: Mapping[str, Tensor]) -> dict:
    """What the cell does to the weights: squared error, and what uniform positions would give."""
    error = sum(float((changed[n] - weights[n]).double().pow(2).sum()) for n in changed)
    spec = cell_spec(cell)
    even = isinstance(spec, AffineQuantizer)
    uniform = sum(step_variance(steps(weights[n], spec)) for n in changed) if even else np.nan
    count = sum(weights[n].numel() for n in changed)
    return {"n_weights": count, "error_norm2": error, "step_variance": uniform}


def probe_cells(
    model: nn.Module,
    tokens: np.ndarray,
    design: Mapping,
    *,
    step: int,
    batch_size: int,
    resamples: int,
    device: str = "cpu",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every cell of the design on one model: a row per cell, and the per-sequence scores.

    ``design`` has the arguments of ``cells`` but ``sets``, which the model decides; groups
    larger than its narrowest matrix are left out. Rows
    have the columns of the audit, those of ``Cell`` and what the cell did to the weights:
    ``error_norm2`` (sum of squared errors) and ``step_variance`` (sum of step²/12).
    """
    sets = layer_sets(model)
    weights = {name: p.detach() for name, p in matrices(model).items()}
    narrowest = min(weight.shape[1] for weight in weights.values())
    sizes = [size for size in design["group_sizes"] if fit_group(size, narrowest) == size]
    chosen = cells(sets=list(sets), **{**design, "group_sizes": sizes})
    described = []

    def variants() -> Iterator[Variant]:
        for cell in chosen:
            changed = {name: quantize(weights[name], cell) for name in sets[cell.layers]}
            described.append(
                {"quantizer": cell.name, **asdict(cell), **_noise(cell, weights, changed)}
            )
            yield cell.name, changed

    scores = score_variants(
        model, tokens, variants(), step=step, batch_size=batch_size, device=device
    )
    table = summarise(scores, ["step"], resamples=resamples, seed=0)
    return table.merge(pd.DataFrame(described), on="quantizer", how="left"), scores
