"""How many weights change their grid point between two checkpoints.

``own``    each checkpoint has its own grid, as a probe of it has
``fixed``  both are read on the grid of the earlier one: movement of weights alone
``expected``  share of flips on a fixed grid if positions within cells were uniform: a
              weight that moves by d crosses min(1, |d| / step) boundaries on average
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from flatminima.mechanism.grid import levels, steps
from flatminima.quantizer_specs import AffineQuantizer

Weights = Mapping[str, Tensor]


def _share(flags: list[Tensor]) -> float:
    return float(torch.cat([flag.reshape(-1) for flag in flags]).double().mean())


def code_flips(before: Weights, after: Weights, spec: AffineQuantizer) -> dict[str, float]:
    """Shares of weights whose level differs between two states of the same matrices."""
    own, fixed, expected, moved = [], [], [], []
    for name, weight in before.items():
        grid_before, grid_after = steps(weight, spec), steps(after[name], spec)
        level = levels(weight, grid_before)
        own.append(levels(after[name], grid_after) != level)
        fixed.append(levels(after[name], grid_before) != level)
        distance = (after[name] - weight).abs() / grid_before
        distance = torch.where(grid_before > 0, distance, 0.0)
        moved.append(distance)
        expected.append(distance.clamp(max=1.0))
    return {
        "flipped_own": _share(own),
        "flipped_fixed": _share(fixed),
        "flipped_expected": _share(expected),
        "mean_move_in_steps": _share(moved),
    }
