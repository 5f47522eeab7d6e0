"""Noise times sensitivity, and how flat the minimum is: the loss around a checkpoint.

For a perturbation D of the weights, loss(w + D) - loss(w) = g·D + D·H·D / 2 + ... . The
noise is the squared norm of D, the sensitivity the second-order term per unit of it, so
that their product is the predicted cost. Beside the suite's quantizers stand two controls:
``noise``, normal noise with the norm of the rounding error in every matrix, and
``dither``, noise that is uniform in each weight's own cell of the grid. Where dither costs
as much as rounding, the positions of the weights between grid points do not matter.

The paper's title speaks of flat minima and its text measures none: here are the largest
eigenvalue and the trace of H, of the validation loss in nats per token with respect to the
weights that the probes change. Intervals are 95 %, over batches except where they say so.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from scipy import stats
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from flatminima.intervals import t_interval
from flatminima.mechanism.visits import Visit, mean_interval
from flatminima.quantizer_specs import AffineQuantizer, read_spec
from flatminima.quantizers import fake_quantize, grid_steps, linear_weights
from flatminima.scoring import batches
from flatminima.training.gradients import next_token_loss

TOLERANCE = 1e-3  # relative, of the largest eigenvalue


class LossSurface:
    """Mean NLL (nats per token) of a checkpoint's tokens as a function of ``layers``' weights.

    Weights, directions and products with the Hessian are flat vectors, ``[weights]``. All
    batches are of one size, so that every token weighs the same. Hessian products
    differentiate twice in reverse mode, in float32 with sums over batches in float64. (Forward
    mode twice would be cheaper, but torch's layer norm gives a wrong second derivative there.)
    The graph of every batch's gradient is kept, so that a product costs one backward pass:
    memory grows with the number of sequences.
    """

    def __init__(self, visit: Visit, layers: str) -> None:
        # The fused attention kernels have no second derivative.
        if hasattr(visit.model, "set_attn_implementation"):
            visit.model.set_attn_implementation("eager")
        chosen = linear_weights(visit.model, layers)
        self.model, self.shapes = visit.model.eval(), {n: w.shape for n, w in chosen.items()}
        self.weights = parameters_to_vector(chosen.values()).detach().requires_grad_()
        self.step = visit.step
        self.ids = list(batches(visit.tokens, visit.batch_size, visit.device))

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector by parameter name, each part in the shape of its parameter."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        shaped = zip(parts, self.shapes.values(), strict=True)
        return dict(zip(self.shapes, (part.reshape(s) for part, s in shaped), strict=True))

    def loss(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Loss of one batch, with these weights in place of the model's."""
        named = self.split(weights)
        return next_token_loss(lambda **inputs: functional_call(self.model, named, (), inputs), ids)

    @torch.no_grad()
    def losses(self, shift: Tensor | float = 0.0) -> np.ndarray:
        """Loss of each batch with the weights moved by ``shift``, ``[batches]``."""
        return np.array([self.loss(ids, self.weights + shift).item() for ids in self.ids])

    @cached_property
    def gradients(self) -> list[Tensor]:
        """Gradient of each batch's loss, with the graph behind it."""
        losses = (self.loss(ids, self.weights) for ids in self.ids)
        return [torch.autograd.grad(loss, self.weights, create_graph=True)[0] for loss in losses]

    def products(self, direction: Tensor) -> list[Tensor]:
        """Hessian times ``direction`` for each batch."""
        return [
            torch.autograd.grad(gradient, self.weights, direction, retain_graph=True)[0]
            for gradient in self.gradients
        ]

    def product(self, direction: Tensor) -> Tensor:
        """Hessian of the mean loss times ``direction``, in float64."""
        total = torch.zeros_like(self.weights, dtype=torch.float64)
        for product in self.products(direction):
            total += product
        return total / len(self.ids)

    @torch.no_grad()
    def parts(self, first: Tensor, second: Tensor) -> dict[str, float]:
        """Inner product of two vectors, parameter by parameter."""
        both = self.split(first.double() * second.double())
        return {name: float(part.sum()) for name, part in both.items()}

    def inner(self, first: Tensor, second: Tensor) -> float:
        """Inner product of two vectors."""
        return sum(self.parts(first, second).values())

    def vector(self, values: np.ndarray) -> Tensor:
        """A float32 vector where the weights are."""
        return torch.from_numpy(np.array(values, dtype=np.float32)).to(self.weights.device)


def perturbations(
    weights: Mapping[str, Tensor], specs: Mapping[str, AffineQuantizer], *, draws: int, seed: int
) -> dict[str, dict[str, Tensor]]:
    """Rounding errors by role, then the controls of the first role: ``noise0``, ``dither0`` …"""
    found = {
        role: {n: fake_quantize(w, spec) - w for n, w in weights.items()}
        for role, spec in specs.items()
    }
    rng, (first, spec) = np.random.default_rng(seed), next(iter(specs.items()))

    def noise(error: Tensor) -> Tensor:
        draw = rng.standard_normal(tuple(error.shape), dtype=np.float32)
        scale = float(error.double().norm()) / float(np.linalg.norm(draw.astype(np.float64)))
        return torch.from_numpy(draw * np.float32(scale)).to(error.device)

    def dither(weight: Tensor) -> Tensor:
        draw = rng.random(tuple(weight.shape), dtype=np.float32) - np.float32(0.5)
        return torch.from_numpy(draw).to(weight.device) * grid_steps(weight, spec)

    for i in range(draws):
        found[f"noise{i}"] = {name: noise(error) for name, error in found[first].items()}
        found[f"dither{i}"] = {name: dither(weight) for name, weight in weights.items()}
    return found


def expand(surface: LossSurface, shift: Tensor, base: np.ndarray, resamples: int) -> list[dict]:
    """Rows of one perturbation: tensor ``all`` with every term, then each matrix.

    ``base`` is the unmoved loss of each batch. A matrix's second-order term is its part of
    D·H·D / 2 (with the cross terms shared out), so that the parts sum to the whole.
    """

    def row(tensor: str, count: int, noise: float, size: float, **terms: np.ndarray) -> dict:
        found = {"tensor": tensor, "n_weights": count, "noise_norm2": noise, "weight_norm2": size}
        for name, values in terms.items():
            ends = mean_interval(values, resamples, np.random.default_rng(0))
            numbers = values.mean(), *ends
            found |= zip((f"{name}_nats", f"{name}_low", f"{name}_high"), numbers, strict=True)
        return found

    parts = [surface.parts(shift, product) for product in surface.products(shift)]
    first = np.array([surface.inner(gradient, shift) for gradient in surface.gradients])
    second = np.array([0.5 * sum(part.values()) for part in parts])
    noise, sizes = surface.parts(shift, shift), surface.parts(surface.weights, surface.weights)
    terms = {"measured": surface.losses(shift) - base, "first_order": first}
    terms |= {"second_order": second, "predicted": first + second}
    rows = [row("all", len(shift), sum(noise.values()), sum(sizes.values()), **terms)]
    for name, shape in surface.shapes.items():
        own = np.array([0.5 * part[name] for part in parts])
        rows.append(row(name, shape.numel(), noise[name], sizes[name], second_order=own))
    return rows


def sensitivity_table(surface: LossSurface, settings: Mapping) -> pd.DataFrame:
    """All perturbations of one checkpoint: the rows of ``expand``; the step seeds the noise.

    ``settings`` has low_bit, high_bit (definitions), draws and resamples.
    """
    specs = {role: read_spec(settings[role]) for role in ("low_bit", "high_bit")}
    weights, base = surface.split(surface.weights.detach()), surface.losses()
    moves = perturbations(weights, specs, draws=settings["draws"], seed=surface.step)
    rows = [
        {"step": surface.step, "perturbation": name, **row}
        for name, shift in moves.items()
        for row in expand(
            surface, parameters_to_vector(shift.values()), base, settings["resamples"]
        )
    ]
    return pd.DataFrame(rows).assign(n_batches=len(surface.ids))


Estimate = tuple[float, float, float, int]  # value, ends of its interval, draws or batches


def largest_eigenvalue(surface: LossSurface, resamples: int) -> Estimate:
    """Largest (algebraic) eigenvalue of the Hessian, by Lanczos iteration.

    The interval is over batches with the eigenvector held: that of its Rayleigh quotient.
    """
    rng, size = np.random.default_rng(surface.step), len(surface.weights)

    def product(vector: np.ndarray) -> np.ndarray:
        return surface.product(surface.vector(vector)).cpu().numpy()

    operator, start = LinearOperator((size, size), product), rng.standard_normal(size)
    [value], vectors = eigsh(operator, k=1, which="LA", tol=TOLERANCE, v0=start)
    direction = surface.vector(vectors[:, 0])
    quotients = [surface.inner(direction, product) for product in surface.products(direction)]
    return float(value), *mean_interval(np.array(quotients), resamples, rng), len(quotients)


def trace(surface: LossSurface, draws: int) -> Estimate:
    """Hutchinson's estimate of the trace: mean of z·H·z over random signs z, t interval."""
    rng, values = np.random.default_rng(surface.step), []
    for _ in range(draws):
        signs = surface.vector(rng.choice(np.float32([-1.0, 1.0]), len(surface.weights)))
        values.append(surface.inner(signs, surface.product(signs)))
    mean = float(np.mean(values))
    return mean, *t_interval(mean, stats.sem(values), draws - 1), draws


def curvature_table(surface: LossSurface, settings: Mapping) -> pd.DataFrame:
    """Largest eigenvalue and trace of one checkpoint; ``settings`` has draws and resamples.

    ``weight_norm2`` turns both into numbers that do not change when weights are rescaled.
    """
    norm2 = surface.inner(surface.weights, surface.weights)
    row = {"step": surface.step, "n_weights": len(surface.weights), "weight_norm2": norm2}
    for name, estimate in (
        ("top_eigenvalue", largest_eigenvalue(surface, settings["resamples"])),
        ("trace", trace(surface, settings["draws"])),
    ):
        row |= zip((name, f"{name}_low", f"{name}_high", f"{name}_n"), estimate, strict=True)
    return pd.DataFrame([row])
