"""Weights along training: where they sit in their grids, which codes flip, how far they move.

*Misalignment* (section 6: weights drift to positions "maximally misaligned" with the INT4
grid). A weight whose position within its cell of the grid is uniform has a mean squared
rounding error of step²/12. The index is the measured one over that: 1 where positions are as
good as random, 3 where every weight sits at a midpoint, 0 where every weight sits on the grid.

*Flips* of codes between two checkpoints: ``own``, each has its own grid, as a probe of it has;
``fixed``, both are read on the grid of the earlier one (movement of weights alone);
``expected``, on a fixed grid if positions within cells were uniform: a weight that moves by d
crosses min(1, |d| / step) boundaries on average.

*Displacement*: a random walk has a cosine of 0 between successive moves and a distance that
grows with the square root of the number of moves; a straight line has 1 and exponent 1.
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
    """The same against each group's grid moved by a random part of its step: the control.

    Weights that cluster at a distance from their own grid do so no more from a moved one.
    """
    step = grid_steps(weight, spec)
    parts = [
        torch.from_numpy(rng.random((len(part), 1), dtype=np.float32)).expand_as(part)
        for part in weight.split(spec.group_length(weight.shape[1]), dim=1)
    ]
    position = weight / step + torch.cat(parts, dim=1).to(weight.device)
    return torch.where(step > 0, torch.round(position) - position, torch.nan)


def group_index(residual: Tensor, spec: AffineQuantizer) -> np.ndarray:
    """Index of each group: mean squared residual over 1/12, one number per group with a grid."""
    parts = residual.split(spec.group_length(residual.shape[1]), dim=1)
    squares = [(part.double() ** 2).mean(dim=1) for part in parts]
    values = (12.0 * torch.cat(squares)).cpu().numpy()
    return values[np.isfinite(values)]


def misalignment(weights: Weights, spec: AffineQuantizer, *, seed: int) -> dict[str, float]:
    """Index of one checkpoint with its 95 % interval (normal, groups as units) and quantiles.

    Also ``near_midpoint`` (share of weights at least 0.4 steps away from their grid point; 0.2
    where positions are uniform) and ``index_shifted`` (the control).
    """
    rng = np.random.default_rng(seed)
    own = [residuals(w, spec) for w in weights.values()]
    groups = np.concatenate([group_index(r, spec) for r in own])
    shifted = [group_index(shifted_residuals(w, spec, rng), spec) for w in weights.values()]
    mean, error = groups.mean(), 1.96 * groups.std(ddof=1) / np.sqrt(len(groups))
    distance = torch.cat([r.abs().reshape(-1) for r in own])
    far = distance[torch.isfinite(distance)] >= NEAR_MIDPOINT
    return {
        "index": mean, "index_low": mean - error, "index_high": mean + error,
        **{f"index_{k}": np.quantile(groups, q) for k, q in QUANTILES.items()},
        "near_midpoint": far.double().mean().item(),
        "index_shifted": np.concatenate(shifted).mean(),
        "n_groups": len(groups),
    }  # fmt: skip


def levels(weight: Tensor, step: Tensor) -> Tensor:
    """Index of the grid point nearest to each weight, zero being point 0.

    The code of equation 2 without its zero point and its clamp; zero where there is no grid.
    """
    return torch.where(step > 0, torch.round(weight / step), 0.0)


def code_flips(before: Weights | None, after: Weights, spec: AffineQuantizer) -> dict[str, float]:
    """Shares of weights whose level differs between two states of the same matrices.

    NaN where there is no state before.
    """
    if before is None:
        return dict.fromkeys(FLIPS, np.nan)
    found = []
    for name, weight in before.items():
        step, moved = grid_steps(weight, spec), after[name]
        level = levels(weight, step)
        distance = torch.where(step > 0, (moved - weight).abs() / step, 0.0)
        own = levels(moved, grid_steps(moved, spec))
        each = own != level, levels(moved, step) != level, distance.clamp(max=1.0), distance
        found.append([part.reshape(-1) for part in each])
    parts = zip(*found, strict=True)
    return {key: torch.cat(p).double().mean().item() for key, p in zip(FLIPS, parts, strict=True)}


def displacements(states: Iterable[tuple[int, np.ndarray]], spacing: int) -> Iterator[dict]:
    """Distances back from each state, one row per lag in ``LAGS`` (columns ``DISTANCES``).

    ``states`` yields steps in order with their flat weights, ``spacing`` steps apart; where one
    is missing the past is forgotten. A row is named by its later step; with lag 1 it has the
    cosine of this move and the one before.
    """
    kept: deque[tuple[int, np.ndarray]] = deque(maxlen=max(LAGS) + 1)
    for step, state in states:
        if kept and step - kept[-1][0] != spacing:
            kept.clear()
        kept.append((step, state))
        norm = float(np.linalg.norm(state))
        for lag in (lag for lag in LAGS if lag < len(kept)):
            move, cosine = state - kept[-1 - lag][1], np.nan
            distance = float(np.linalg.norm(move))
            if lag == 1 and len(kept) > 2:
                before = kept[-2][1] - kept[-3][1]
                scale = distance * np.linalg.norm(before)
                cosine = float(move @ before / scale) if scale else np.nan
            yield dict(zip(DISTANCES, (step, lag, distance, norm, cosine), strict=True))


def drift_tables(
    states: Iterable[tuple[int, str]], spec: AffineQuantizer, *, layers: str, spacing: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """drift.csv (a row per step) and displacement.csv (evenly spaced steps and lags).

    ``states`` yields steps in order with their weights files; few are in memory at a time. The
    codes of a step are compared with those of the measured step before it. A checkpoint that has
    diverged is named and left out. Raises ``NotMeasured`` where all of them have.
    """
    rows: list[dict] = []

    def even() -> Iterator[tuple[int, np.ndarray]]:
        before = earlier = None
        for step, path in states:
            weights = None
            with leaving_out_diverged(step):
                weights = matrices_of(load_model(Path(path).parent), layers)
            if weights is None:
                continue
            flips = code_flips(before, weights, spec)
            place = {"step": step, "previous_step": earlier}
            rows.append(place | misalignment(weights, spec, seed=step) | flips)
            before, earlier = weights, step
            if step % spacing == 0 and step > 0:
                flat = torch.cat([weight.reshape(-1) for weight in weights.values()])
                yield step, flat.double().numpy()

    distances = pd.DataFrame(displacements(even(), spacing), columns=DISTANCES)
    if not rows:
        raise NotMeasured("every checkpoint whose weights were to be followed has diverged")
    return pd.DataFrame(rows), distances
