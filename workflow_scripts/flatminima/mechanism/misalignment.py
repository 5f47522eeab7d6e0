"""Do weights sit between grid points? The misalignment index of section 6's sentence.

The paper says that weights drift to positions "maximally misaligned" with the INT4 grid.
A weight whose position within its cell of the grid is uniform has a mean squared rounding
error of step²/12. The index is the measured one over that: 1 where positions are as good
as random, 3 where every weight sits at a midpoint, 0 where every weight sits on the grid.
"""

import numpy as np
import torch
from torch import Tensor

from flatminima.mechanism.grid import steps
from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import fake_quantize

NEAR_MIDPOINT = 0.4  # of a step from the grid point: the outer fifth of a cell
QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


def residuals(weight: Tensor, spec: AffineQuantizer) -> Tensor:
    """Rounding errors in units of the step, in the shape of ``weight``; NaN without a grid."""
    step = steps(weight, spec)
    error = fake_quantize(weight, spec) - weight
    return torch.where(step > 0, error / step, torch.nan)


def shifted_residuals(weight: Tensor, spec: AffineQuantizer, rng: np.random.Generator) -> Tensor:
    """The same against each group's grid moved by a random part of its step: the control.

    Weights that cluster at a distance from their own grid do so no more from a moved one.
    """
    step = steps(weight, spec)
    parts = [
        torch.from_numpy(rng.random((len(part), 1), dtype=np.float32)).expand_as(part)
        for part in torch.split(weight, _width(weight, spec), dim=1)
    ]
    position = weight / step + torch.cat(parts, dim=1).to(weight.device)
    return torch.where(step > 0, torch.round(position) - position, torch.nan)


def _width(weight: Tensor, spec: AffineQuantizer) -> int:
    return spec.group_length(weight.shape[1])


def group_index(residual: Tensor, spec: AffineQuantizer) -> np.ndarray:
    """Index of each group: mean squared residual over 1/12, one number per group."""
    parts = torch.split(residual, _width(residual, spec), dim=1)
    squares = torch.cat([(part.double() ** 2).mean(dim=1) for part in parts])
    values = (12.0 * squares).cpu().numpy()
    return values[np.isfinite(values)]


def misalignment(
    weights: dict[str, Tensor], spec: AffineQuantizer, *, seed: int
) -> dict[str, float]:
    """Index and distribution over the groups of all matrices of one checkpoint.

    Keys: ``index`` with its 95 % interval (normal, groups as units), its quantiles over
    groups, ``near_midpoint`` (share of weights at least 0.4 steps away from their grid
    point; 0.2 where positions are uniform), ``index_shifted`` (the control) and n_groups.
    """
    rng = np.random.default_rng(seed)
    own = {name: residuals(w, spec) for name, w in weights.items()}
    groups = np.concatenate([group_index(r, spec) for r in own.values()])
    moved = np.concatenate(
        [group_index(shifted_residuals(w, spec, rng), spec) for w in weights.values()]
    )
    error = 1.96 * groups.std(ddof=1) / np.sqrt(len(groups))
    far = torch.cat([r.abs().reshape(-1) for r in own.values()])
    far = far[torch.isfinite(far)] >= NEAR_MIDPOINT
    return {
        "index": float(groups.mean()),
        "index_low": float(groups.mean() - error),
        "index_high": float(groups.mean() + error),
        **{f"index_{k}": float(np.quantile(groups, q)) for k, q in QUANTILES.items()},
        "near_midpoint": float(far.double().mean()),
        "index_shifted": float(moved.mean()),
        "n_groups": len(groups),
    }
