"""Noise times sensitivity: is the cost of quantization its second-order prediction?

For a perturbation D of the weights, loss(w + D) - loss(w) = g·D + D·H·D / 2 + ... . The
noise is the squared norm of D, the sensitivity the second-order term per unit of it, so
that their product is the predicted cost. Beside the suite's quantizers stand two controls:
``noise``, normal noise with the norm of the rounding error in every matrix, and
``dither``, noise that is uniform in each weight's own cell of the grid. Where dither costs
as much as rounding, the positions of the weights between grid points do not matter.

The unit of the intervals is the batch: terms and measured losses are taken batch by
batch and resampled together (95 % percentile intervals).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from flatminima.intervals import percentile_interval
from flatminima.mechanism.grid import quantization_error, steps
from flatminima.mechanism.surface import LossSurface, Vector, inner
from flatminima.quantizer_specs import AffineQuantizer

NOISE, DITHER = "noise", "dither"


def random_like(error: Vector, rng: np.random.Generator) -> dict[str, Tensor]:
    """Normal noise whose norm in every matrix is that of ``error``."""
    noise = {}
    for name, tensor in error.items():
        draw = rng.standard_normal(tuple(tensor.shape), dtype=np.float32)
        scale = float(tensor.double().norm()) / float(np.linalg.norm(draw.astype(np.float64)))
        noise[name] = torch.from_numpy(draw * np.float32(scale)).to(tensor.device)
    return noise


def uniform_in_cell(
    weights: Vector, spec: AffineQuantizer, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Noise that is uniform within half a step of the grid around every weight."""
    noise = {}
    for name, weight in weights.items():
        draw = rng.random(tuple(weight.shape), dtype=np.float32) - np.float32(0.5)
        noise[name] = torch.from_numpy(draw).to(weight.device) * steps(weight.detach(), spec)
    return noise


def perturbations(
    weights: Vector, specs: Mapping[str, AffineQuantizer], *, draws: int, seed: int
) -> dict[str, dict[str, Tensor]]:
    """Rounding errors by role, then the controls of the first role: ``noise0``, ``dither0`` …"""
    found = {
        role: {n: quantization_error(w.detach(), spec) for n, w in weights.items()}
        for role, spec in specs.items()
    }
    rng = np.random.default_rng(seed)
    first = next(iter(specs))
    for i in range(draws):
        found[f"{NOISE}{i}"] = random_like(found[first], rng)
        found[f"{DITHER}{i}"] = uniform_in_cell(weights, specs[first], rng)
    return found


def _bootstrap(values: np.ndarray, resamples: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(values), (resamples, len(values)))
    return percentile_interval(values[drawn].mean(axis=1))


def _row(name: str, values: np.ndarray, resamples: int) -> dict[str, float]:
    low, high = _bootstrap(values, resamples)
    return {f"{name}_nats": float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def expand(surface: LossSurface, shift: Vector, base: np.ndarray, *, resamples: int) -> list[dict]:
    """Rows of one perturbation: tensor ``all`` with every term, then each matrix.

    ``base`` is the unmoved loss of each batch. A matrix's second-order term is its part of
    D·H·D / 2 (with the cross terms shared out), so that the parts sum to the whole.
    """
    measured = surface.losses(shift) - base
    first = surface.slopes(shift)
    parts = [inner(shift, product) for product in surface.products(shift)]
    second = np.array([0.5 * sum(part.values()) for part in parts])
    norms = {name: float(d.double().pow(2).sum()) for name, d in shift.items()}
    sizes = {name: float(surface.weights[name].detach().double().pow(2).sum()) for name in shift}
    whole = {
        "tensor": "all", "n_weights": surface.size,
        "noise_norm2": sum(norms.values()), "weight_norm2": sum(sizes.values()),
    }  # fmt: skip
    for name, values in (
        ("measured", measured), ("first_order", first), ("second_order", second),
        ("predicted", first + second),
    ):  # fmt: skip
        whole |= _row(name, values, resamples)
    rows = [whole]
    for name in shift:
        values = np.array([0.5 * part[name] for part in parts])
        rows.append({
            "tensor": name, "n_weights": shift[name].numel(), "noise_norm2": norms[name],
            "weight_norm2": sizes[name], **_row("second_order", values, resamples),
        })  # fmt: skip
    return rows


def sensitivity_table(
    surface: LossSurface,
    specs: Mapping[str, AffineQuantizer],
    *,
    step: int,
    draws: int,
    resamples: int,
) -> pd.DataFrame:
    """All perturbations of one checkpoint; the noise of a step is drawn from that step.

    Columns: step, perturbation, tensor, n_weights, noise_norm2 and weight_norm2 (squared
    norms), then measured, first_order, second_order and predicted, each as ``_nats`` per
    token with ``_low`` and ``_high``, and n_batches.
    """
    base, rows = surface.losses(), []
    for name, shift in perturbations(surface.weights, specs, draws=draws, seed=step).items():
        rows += [
            {"step": step, "perturbation": name, **row}
            for row in expand(surface, shift, base, resamples=resamples)
        ]
    return pd.DataFrame(rows).assign(n_batches=len(surface))
