"""Weights along training: their positions in their grids, codes that flip, and distances moved.

*Misalignment* (section 6: weights drift to positions "maximally misaligned" with the INT4
grid). If the position of a weight within its cell of the grid is uniform, the mean squared
rounding error is step²/12. The index is the measured mean squared error over step²/12. It is 1
for random positions, 3 if every weight is at a midpoint, and 0 if every weight is on the grid.

*Flips* of codes between two checkpoints are counted in three ways. ``own``: each checkpoint has
its own grid, as in its probe. ``fixed``: both are read on the grid of the earlier one, so that
only the movement of weights counts. ``expected``: on a fixed grid with uniform positions within
cells, a weight that moves by d crosses min(1, |d| / step) boundaries on average.

*Displacement*: in a random walk the cosine of successive moves is 0, and the distance grows
with the square root of the number of moves. On a straight line the cosine and the exponent of
growth are 1.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from flatminima.absent_steps import leaving_out_diverged
from flatminima.errors import NotMeasured
from flatminima.layers import matrices_of
from flatminima.model import load_model
from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import fake_quantize, grid_steps

NEAR_MIDPOINT = 0.4  # of a step from the grid point: the outer fifth of a cell
QUANTILES = {"p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
LAGS = (1, 2, 4, 8, 16)
DISTANCES = ["step", "lag", "distance", "weight_norm", "cosine"]
FLIPS = ("flipped_own", "flipped_fixed", "flipped_expected", "mean_move_in_steps")

Weights = Mapping[str, Tensor]


def residuals(weight: Tensor, spec: AffineQuantizer) -> Tensor:
    """Rounding errors in units of the step, in the shape of ``weight``; NaN without a grid."""
    step = grid_steps(weight, spec)
    return torch.where(step > 0, (fake_quantize(weight, spec) - weight) / step, torch.nan)


def shifted_residuals(weight: Tensor, spec: AffineQuantizer, rng: np.random.Generator) -> Tensor:
    """``residuals`` with the grid of each group moved by a random fraction of its step.

    This is the control: if weights cluster relative to their own grid, the clustering
    disappears relative to a randomly moved grid.
    """
    step = grid_steps(weight, spec)
    shifts = [
        torch.from_numpy(rng.random((len(group), 1), dtype=np.float32)).expand_as(group)
        for group in weight.split(spec.group_length(weight.shape[1]), dim=1)
    ]
    position = weight / step + torch.cat(shifts, dim=1).to(weight.device)
    return torch.where(step > 0, torch.round(position) - position, torch.nan)


def group_index(residual: Tensor, spec: AffineQuantizer) -> np.ndarray:
    """Index of each group: mean squared residual over 1/12, one number per group with a grid."""
    groups = residual.split(spec.group_length(residual.shape[1]), dim=1)
    mean_squares = [(group.double() ** 2).mean(dim=1) for group in groups]
    index = (12.0 * torch.cat(mean_squares)).cpu().numpy()
    return index[np.isfinite(index)]


def misalignment(weights: Weights, spec: AffineQuantizer, *, seed: int) -> dict[str, float]:
    """Index of one checkpoint with its 95 % interval (normal, groups as units) and quantiles.

    ``near_midpoint`` is the share of weights at least 0.4 steps away from their grid point (0.2
    for uniform positions). ``index_shifted`` is the index of the control.
    """
    rng = np.random.default_rng(seed)
    residuals_by_matrix = [residuals(weight, spec) for weight in weights.values()]
    index = np.concatenate([group_index(residual, spec) for residual in residuals_by_matrix])
    shifted_index = np.concatenate(
        [group_index(shifted_residuals(weight, spec, rng), spec) for weight in weights.values()]
    )
    mean = index.mean()
    half_width = 1.96 * index.std(ddof=1) / np.sqrt(len(index))

    # Groups that quantization leaves unchanged have no residual: they are NaN.
    distance = torch.cat([residual.abs().reshape(-1) for residual in residuals_by_matrix])
    is_near_midpoint = distance[torch.isfinite(distance)] >= NEAR_MIDPOINT
    return {
        "index": mean,
        "index_low": mean - half_width,
        "index_high": mean + half_width,
        **{f"index_{name}": np.quantile(index, share) for name, share in QUANTILES.items()},
        "near_midpoint": is_near_midpoint.double().mean().item(),
        "index_shifted": shifted_index.mean(),
        "n_groups": len(index),
    }


def levels(weight: Tensor, step: Tensor) -> Tensor:
    """Number of the grid point nearest to each weight; the point at zero has number 0.

    This is the code of equation 2 without its zero point and its clamp. It is zero without a grid.
    """
    return torch.where(step > 0, torch.round(weight / step), 0.0)


def code_flips(before: Weights | None, after: Weights, spec: AffineQuantizer) -> dict[str, float]:
    """Shares of weights whose level differs between two states of the same matrices.

    NaN where there is no state before.
    """
    if before is None:
        return dict.fromkeys(FLIPS, np.nan)

    parts_by_column = {column: [] for column in FLIPS}
    for name, weight in before.items():
        moved = after[name]
        step = grid_steps(weight, spec)
        level = levels(weight, step)
        level_on_own_grid = levels(moved, grid_steps(moved, spec))
        level_on_fixed_grid = levels(moved, step)
        distance = torch.where(step > 0, (moved - weight).abs() / step, 0.0)
        numbers = {
            "flipped_own": level_on_own_grid != level,
            "flipped_fixed": level_on_fixed_grid != level,
            # Under a uniform position in its cell, a move of d steps crosses a midpoint with
            # probability d, up to 1.
            "flipped_expected": distance.clamp(max=1.0),
            "mean_move_in_steps": distance,
        }
        for column, matrix in numbers.items():
            parts_by_column[column].append(matrix.reshape(-1))
    return {
        column: torch.cat(parts).double().mean().item() for column, parts in parts_by_column.items()
    }


def displacements(states: Iterable[tuple[int, np.ndarray]], spacing: int) -> Iterator[dict]:
    """Distances from each state to earlier ones, a row per lag in ``LAGS``.

    Rows have the columns ``DISTANCES``. ``states`` yields steps in order with their flat weights,
    ``spacing`` steps apart. After a missing step, earlier states are not used. ``step`` is the
    later step of a row. Rows of lag 1 have the cosine of this move and the previous one.
    """
    recent: deque[tuple[int, np.ndarray]] = deque(maxlen=max(LAGS) + 1)
    for step, state in states:
        # After a hole, earlier states are at another distance than their lag says.
        if recent and step - recent[-1][0] != spacing:
            recent.clear()
        recent.append((step, state))
        norm = float(np.linalg.norm(state))
        for lag in LAGS:
            if lag >= len(recent):
                continue
            move = state - recent[-1 - lag][1]
            distance = float(np.linalg.norm(move))
            cosine = np.nan
            if lag == 1 and len(recent) > 2:
                # The current state is the last of `recent`: the move before this one ends at the
                # second last.
                previous_move = recent[-2][1] - recent[-3][1]
                scale = distance * np.linalg.norm(previous_move)
                cosine = float(move @ previous_move / scale) if scale else np.nan
            yield {
                "step": step,
                "lag": lag,
                "distance": distance,
                "weight_norm": norm,
                "cosine": cosine,
            }


def drift_tables(
    states: Iterable[tuple[int, str]], spec: AffineQuantizer, *, layers: str, spacing: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """drift.csv (a row per step) and displacement.csv (evenly spaced steps and lags).

    ``states`` yields steps in order with their weights files. The codes of a step are compared
    with those of the measured step before it. A diverged checkpoint is named and left out. Raises
    ``NotMeasured`` if all checkpoints have diverged.
    """
    rows: list[dict] = []

    # A generator, so that only the states that displacements still needs are in memory.
    def evenly_spaced_states() -> Iterator[tuple[int, np.ndarray]]:
        previous_weights = None
        previous_step = None
        for step, path in states:
            weights = None
            with leaving_out_diverged(step):
                weights = matrices_of(load_model(Path(path).parent), layers)
            if weights is None:
                continue
            rows.append(
                {
                    "step": step,
                    "previous_step": previous_step,
                    **misalignment(weights, spec, seed=step),
                    **code_flips(previous_weights, weights, spec),
                }
            )
            previous_weights = weights
            previous_step = step
            # Powers of two and step 0 are compared by their codes, but have no lag on the grid.
            if step % spacing == 0 and step > 0:
                flat = torch.cat([weight.reshape(-1) for weight in weights.values()])
                yield step, flat.double().numpy()

    distances = pd.DataFrame(displacements(evenly_spaced_states(), spacing), columns=DISTANCES)
    if not rows:
        raise NotMeasured("every checkpoint whose weights were to be followed has diverged")
    return pd.DataFrame(rows), distances
