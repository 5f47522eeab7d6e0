"""Where the points of a quantization grid lie: the step of every weight, and its level.

Derived from the public definition in ``quantizers`` (equations 1 and 2), so that the
grids of the probes can be looked at without a change of the probes themselves.
"""

import torch
from torch import Tensor

from flatminima.quantizers import (
    SMALLEST_SCALE,
    QuantizerSpec,
    fake_quantize,
    group_length,
)


def _step_of(weights: Tensor, spec: QuantizerSpec) -> Tensor:
    """Step of the weights that share the last axis, kept as an axis of length 1."""
    low, high = weights.aminmax(dim=-1, keepdim=True)
    if spec.symmetric:
        return torch.maximum(low.abs(), high.abs()) / (2 ** (spec.bits - 1) - 1)
    return (high - low) / (2**spec.bits - 1)


def steps(weight: Tensor, spec: QuantizerSpec) -> Tensor:
    """Distance of neighbouring grid points for every weight, in the shape of ``weight``.

    Zero where a group is left as it is (a constant one).
    """
    if spec.granularity == "tensor":
        step = _step_of(weight.reshape(1, -1), spec).expand(1, weight.numel())
        step = step.reshape(weight.shape)
    else:
        parts = torch.split(weight, group_length(spec, weight.shape[1]), dim=1)
        step = torch.cat([_step_of(part, spec).expand_as(part) for part in parts], dim=1)
    return torch.where(step < SMALLEST_SCALE, 0.0, step)


def levels(weight: Tensor, step: Tensor) -> Tensor:
    """Index of the grid point nearest to each weight, zero being point 0.

    The code of equation 2 without its zero point and its clamp; zero where there is no grid.
    """
    return torch.where(step > 0, torch.round(weight / step), 0.0)


def quantization_error(weight: Tensor, spec: QuantizerSpec) -> Tensor:
    """What quantization adds to each weight: the perturbation whose cost a probe measures."""
    return fake_quantize(weight, spec) - weight


def step_variance(step: Tensor) -> float:
    """Sum over weights of step²/12, the squared error of positions that are uniform in a cell."""
    return float((step.to(torch.float64) ** 2).sum() / 12.0)
