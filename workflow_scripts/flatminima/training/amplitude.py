"""OLI's amplitude from gradient statistics at the fork point (appendix B).

The paper says that a first run derived the amplitude "from a calibration procedure",
measuring something at the fork checkpoint, that it came out as 557.9, and that this was
degenerate because Adam had made gradients small. The formula, what was measured and its
value are lost with the text's mathematics, and so is the value that was used instead.

Assumed here, from the stated purpose (a bump is to carry weights across a boundary of the
INT4 grid): the amplitude is the one at which an update of rate ``amplitude * baseline``
moves an average weight by half a step of its group's grid. What an update moves a weight by
is where readings differ, so that each is computed: ``gradient`` takes the plain gradient
(the one that the paper's words fit, since only there do small gradients give a large
amplitude), ``adam_fresh`` Adam's first update after fresh moments, ``adam_restored`` Adam's
update under the run's own moments, ``adam_bump`` a whole bump of fresh Adam updates that all
go one way.
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
    parts = [p for m in matrices_of(model, spec.layers).values() for p in split_groups(m, spec)]
    steps = [affine_scale(part, spec).squeeze(-1).T.reshape(-1) for part in parts]
    return torch.cat(steps).to(torch.float64).mean().item()


def _mean(tensors: list[Tensor]) -> float:
    total = sum(tensor.to(torch.float64).sum().item() for tensor in tensors)
    return total / sum(tensor.numel() for tensor in tensors)


def gradient_statistics(
    model: nn.Module, tokens: np.ndarray, weights: Mapping[str, Tensor], settings: Mapping
) -> dict[str, float]:
    """Means over the first batches of the fork, before any weight moves.

    ``global_norm``: norm of the whole gradient. ``mean_abs``: mean magnitude over the
    quantized weights. ``adam_fresh``: mean magnitude of Adam's first update with fresh
    moments, |g| / (|g| + eps), per unit of the rate.
    """
    rows, device, size = [], next(model.parameters()).device, settings["batch_size"]
    for step in range(settings["start"], settings["start"] + settings["batches"]):
        chosen = batch_rows(step, sequences=len(tokens), batch_size=size, seed=0)
        model.zero_grad(set_to_none=True)
        batch_gradients(model, torch.from_numpy(tokens[chosen].astype(np.int64)).to(device))
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        sizes = [weight.grad.abs() for weight in weights.values()]
        rows.append({
            "global_norm": nn.utils.get_total_norm(gradients).item(),
            "mean_abs": _mean(sizes),
            "adam_fresh": _mean([size / (size + settings["training"]["eps"]) for size in sizes]),
        })  # fmt: skip
    return pd.DataFrame(rows).mean(skipna=False).to_dict()


def restored_update(state: Mapping[str, Tensor], names: list[str], training: Mapping) -> float:
    """Mean magnitude of Adam's update under saved moments, per unit of the rate.

    ``state`` is a training state (``training.workspace``). The moments' own decay by the next
    gradient is left out.
    """
    sizes = []
    for name in names:
        done = state[f"updates.{name}"].item()
        first = state[f"exp_avg.{name}"].double() / (1.0 - training["beta1"] ** done)
        second = state[f"exp_avg_sq.{name}"].double() / (1.0 - training["beta2"] ** done)
        sizes.append((first / (second.sqrt() + training["eps"])).abs())
    return _mean(sizes)


def calibrate(
    model: nn.Module, tokens: np.ndarray, state: Mapping[str, Tensor] | None, settings: Mapping
) -> dict:
    """Gradients, updates per unit of the rate, and the amplitudes that each reading leads to.

    An amplitude is half a grid step over what an update at the run's rate moves a weight by.
    ``state`` has the run's own moments, where there are any; ``settings`` is
    ``plan_forks.calibration_settings``.
    """
    spec = read_spec(settings["quantizer"])
    chosen = linear_weights(model, spec.layers)
    found = gradient_statistics(model, tokens, chosen, settings)
    updates = {"gradient": found["mean_abs"], "adam_fresh": found["adam_fresh"]}
    if state is not None:
        updates["adam_restored"] = restored_update(state, list(chosen), settings["training"])
    step, rate, bump = mean_grid_step(model, spec), settings["rate"], settings["bump"]
    values = {name: 0.5 * step / (rate * size) for name, size in updates.items()}
    values["adam_bump"] = 0.5 * step / (rate * updates["adam_fresh"] * bump)
    return {
        "assumed": "gradient", "gradients": found, "updates_per_unit_rate": updates,
        "mean_grid_step": step, "rate": rate, "bump_steps": bump, "amplitudes": values,
    }  # fmt: skip
