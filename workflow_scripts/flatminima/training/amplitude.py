"""OLI's amplitude from gradient statistics at the fork point (appendix B).

According to the paper, a first run derived the amplitude "from a calibration procedure" at the
fork checkpoint. The amplitude came out as 557.9, which was degenerate because Adam had made
gradients small. The text lacks the formula, the measured value, and the amplitude that was used
instead.

The stated purpose of a bump is to carry weights across a boundary of the INT4 grid. This module
therefore assumes: an update at the rate ``amplitude * baseline`` moves an average weight by half a
step of its group's grid. The size of an update can be read in four ways, and each is computed:

- ``gradient``: the plain gradient. It fits the paper's words best, because only here do small
  gradients give a large amplitude.
- ``adam_fresh``: Adam's first update with fresh moments.
- ``adam_restored``: Adam's update with the run's own moments.
- ``adam_bump``: all updates of a bump with fresh moments, in the same direction.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flatminima.layers import matrices_of
from flatminima.quantizer_specs import AffineQuantizer, read_spec
from flatminima.quantizers import affine_scale, linear_weights, split_groups
from flatminima.training.gradients import batch_gradients
from flatminima.training.loop import batch_rows


def mean_grid_step(model: nn.Module, spec: AffineQuantizer) -> float:
    """Mean distance between neighbouring codes over all groups that ``spec`` quantizes."""
    steps = []
    for matrix in matrices_of(model, spec.layers).values():
        for groups in split_groups(matrix, spec):
            steps.append(affine_scale(groups, spec).squeeze(-1).T.reshape(-1))
    return torch.cat(steps).to(torch.float64).mean().item()


def _mean(tensors: list[Tensor]) -> float:
    """Mean of all numbers in ``tensors``, summed in float64."""
    total = sum(tensor.to(torch.float64).sum().item() for tensor in tensors)
    return total / sum(tensor.numel() for tensor in tensors)


def gradient_statistics(
    model: nn.Module, tokens: np.ndarray, weights: Mapping[str, Tensor], settings: Mapping
) -> dict[str, float]:
    """Means over the first batches of the fork, before any weight moves.

    ``settings["start"]`` is the step of the fork point. The batches are those of seed 0.

    ``weights`` are the quantized weights by name. Returned keys:

    - ``global_norm``: norm of the gradient of all parameters
    - ``mean_abs``: mean magnitude of the gradient g of the quantized weights
    - ``adam_fresh``: mean magnitude of Adam's first update with fresh moments, |g| / (|g| + eps),
      per unit of the rate
    """
    device = next(model.parameters()).device
    eps = settings["training"]["eps"]
    rows = []
    for step in range(settings["start"], settings["start"] + settings["batches"]):
        # The very batches that a fork of seed 0 sees first.
        indices = batch_rows(step, sequences=len(tokens), batch_size=settings["batch_size"], seed=0)
        ids = torch.from_numpy(tokens[indices].astype(np.int64)).to(device)
        model.zero_grad(set_to_none=True)
        batch_gradients(model, ids)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        magnitudes = [weight.grad.abs() for weight in weights.values()]
        fresh_updates = [magnitude / (magnitude + eps) for magnitude in magnitudes]
        rows.append(
            {
                "global_norm": nn.utils.get_total_norm(gradients).item(),
                "mean_abs": _mean(magnitudes),
                "adam_fresh": _mean(fresh_updates),
            }
        )
    return pd.DataFrame(rows).mean(skipna=False).to_dict()


def restored_update(state: Mapping[str, Tensor], names: list[str], training: Mapping) -> float:
    """Mean magnitude of Adam's update with saved moments, per unit of the rate.

    ``state`` is a training state (``training.workspace``). The change of the moments by the next
    gradient is left out.
    """
    magnitudes = []
    for name in names:
        # Adam's bias correction, after so many updates.
        updates = state[f"updates.{name}"].item()
        first = state[f"exp_avg.{name}"].double() / (1.0 - training["beta1"] ** updates)
        second = state[f"exp_avg_sq.{name}"].double() / (1.0 - training["beta2"] ** updates)
        magnitudes.append((first / (second.sqrt() + training["eps"])).abs())
    return _mean(magnitudes)


def calibrate(
    model: nn.Module, tokens: np.ndarray, state: Mapping[str, Tensor] | None, settings: Mapping
) -> dict:
    """The content of calibration.json: gradients, sizes of updates, and amplitudes by reading.

    An amplitude is half a grid step divided by the size of an update at the run's rate. ``state``
    has the run's own moments, if they were saved. ``settings`` is
    ``plan_forks.calibration_settings``.
    """
    spec = read_spec(settings["quantizer"])
    weights = linear_weights(model, spec.layers)
    gradients = gradient_statistics(model, tokens, weights, settings)
    updates = {"gradient": gradients["mean_abs"], "adam_fresh": gradients["adam_fresh"]}
    if state is not None:
        updates["adam_restored"] = restored_update(state, list(weights), settings["training"])

    grid_step = mean_grid_step(model, spec)
    rate = settings["rate"]
    bump_steps = settings["bump"]
    amplitudes = {name: 0.5 * grid_step / (rate * update) for name, update in updates.items()}
    # Read as the way of an entire bump: its steps share half a grid step.
    amplitudes["adam_bump"] = 0.5 * grid_step / (rate * updates["adam_fresh"] * bump_steps)
    return {
        "assumed": "gradient",
        "gradients": gradients,
        "updates_per_unit_rate": updates,
        "mean_grid_step": grid_step,
        "rate": rate,
        "bump_steps": bump_steps,
        "amplitudes": amplitudes,
    }
