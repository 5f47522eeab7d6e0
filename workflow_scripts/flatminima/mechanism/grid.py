"""Where the points of a quantization grid lie: the step of every weight, and its level.

Derived from the public definition in ``quantizers`` (equations 1 and 2), so that the
grids of the probes can be looked at without a change of the probes themselves.
"""

import torch
from torch import Tensor

from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import fake_quantize
from flatminima.quantizers import grid_steps as steps  # noqa: F401


def levels(weight: Tensor, step: Tensor) -> Tensor:
    """Index of the grid point nearest to each weight, zero being point 0.

    The code of equation 2 without its zero point and its clamp; zero where there is no grid.
    """
    return torch.where(step > 0, torch.round(weight / step), 0.0)


def quantization_error(weight: Tensor, spec: AffineQuantizer) -> Tensor:
    """What quantization adds to each weight: the perturbation whose cost a probe measures."""
    return fake_quantize(weight, spec) - weight


def step_variance(step: Tensor) -> float:
    """Sum over weights of step²/12, the squared error of positions that are uniform in a cell."""
    return float((step.to(torch.float64) ** 2).sum() / 12.0)
