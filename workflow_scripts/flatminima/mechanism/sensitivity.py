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

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from scipy import stats
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.func import functional_call

from flatminima.intervals import t_interval
from flatminima.mechanism.visits import Visit, mean_interval
from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import fake_quantize, grid_steps
from flatminima.scoring import batches
from flatminima.training.gradients import next_token_loss

TOLERANCE = 1e-3  # relative, of the largest eigenvalue

Vector = Mapping[str, Tensor]


@torch.no_grad()
def inner(first: Vector, second: Vector) -> dict[str, float]:
    """Inner product of two vectors, parameter by parameter."""
    return {n: float((first[n].double() * second[n].double()).sum()) for n in first}


class LossSurface:
    """Mean NLL (nats per token) of a checkpoint's tokens as a function of its parameters ``names``.

    All batches must be of one size, so that every token weighs the same. Hessian products
    differentiate twice in reverse mode, in float32 with sums over batches in float64. (Forward
    mode twice would be cheaper, but torch's layer norm gives a wrong second derivative there.)
    The graph of every batch's gradient is kept, so that a product costs one backward pass:
    memory grows with the number of sequences.
    """

    def __init__(self, visit: Visit, names: Sequence[str]) -> None:
        if len(visit.tokens) % visit.batch_size:
            raise ValueError(
                f"{len(visit.tokens)} sequences: a multiple of the batch size {visit.batch_size}"
            )
        # The fused attention kernels have no second derivative.
        if hasattr(visit.model, "set_attn_implementation"):
            visit.model.set_attn_implementation("eager")
        parameters = dict(visit.model.named_parameters())
        self.model = visit.model.eval()
        self.weights = {n: parameters[n].detach().clone().requires_grad_() for n in names}
        self.ids = list(batches(visit.tokens, visit.batch_size, visit.device))

    def loss(self, ids: Tensor, weights: Vector) -> Tensor:
        """Loss of one batch, with these weights in place of the model's."""
        return next_token_loss(
            lambda **inputs: functional_call(self.model, dict(weights), (), inputs), ids
        )

    @torch.no_grad()
    def losses(self, shift: Vector | None = None) -> np.ndarray:
        """Loss of each batch with the weights moved by ``shift``, ``[batches]``."""
        moved = {n: w + shift[n] if shift else w for n, w in self.weights.items()}
        return np.array([self.loss(ids, moved).item() for ids in self.ids])

    def _named(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.weights, tensors, strict=True))

    @cached_property
    def gradients(self) -> list[dict[str, Tensor]]:
        """Gradient of each batch's loss, with the graph behind it."""
        weights = list(self.weights.values())
        losses = (self.loss(ids, self.weights) for ids in self.ids)
        return [self._named(torch.autograd.grad(x, weights, create_graph=True)) for x in losses]

    def slopes(self, direction: Vector) -> np.ndarray:
        """Derivative of each batch's loss along ``direction``, ``[batches]``."""
        return np.array([sum(inner(g, direction).values()) for g in self.gradients])

    def products(self, direction: Vector) -> list[dict[str, Tensor]]:
        """Hessian times ``direction`` for each batch, by parameter name."""
        weights, along = list(self.weights.values()), [direction[n] for n in self.weights]
        return [
            self._named(torch.autograd.grad(list(g.values()), weights, along, retain_graph=True))
            for g in self.gradients
        ]

    def product(self, direction: Vector) -> dict[str, Tensor]:
        """Hessian of the mean loss times ``direction``, by parameter name, in float64."""
        total = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in self.weights.items()}
        for product in self.products(direction):
            for name, value in product.items():
                total[name] += value
        return {name: value / len(self.ids) for name, value in total.items()}

    def flat_product(self, direction: np.ndarray) -> np.ndarray:
        """``product`` for all parameters as one float64 vector, as scipy's solvers take it."""
        product = self.product(self.unflatten(direction))
        return np.concatenate([value.reshape(-1).cpu().numpy() for value in product.values()])

    def unflatten(self, direction: np.ndarray) -> dict[str, Tensor]:
        """A flat vector as tensors by parameter name, in float32."""
        parts = torch.from_numpy(np.array(direction, dtype=np.float32)).split(
            [weight.numel() for weight in self.weights.values()]
        )
        shaped = zip(parts, self.weights.values(), strict=True)
        return self._named([part.reshape(w.shape).to(w.device) for part, w in shaped])

    @property
    def size(self) -> int:
        """Number of weights that may move."""
        return sum(weight.numel() for weight in self.weights.values())


def perturbations(
    weights: Vector, specs: Mapping[str, AffineQuantizer], *, draws: int, seed: int
) -> dict[str, dict[str, Tensor]]:
    """Rounding errors by role, then the controls of the first role: ``noise0``, ``dither0`` …"""
    weights = {name: w.detach() for name, w in weights.items()}
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


def _columns(name: str, values: np.ndarray, resamples: int) -> dict[str, float]:
    low, high = mean_interval(values, resamples, np.random.default_rng(0))
    return {f"{name}_nats": float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def expand(surface: LossSurface, shift: Vector, base: np.ndarray, *, resamples: int) -> list[dict]:
    """Rows of one perturbation: tensor ``all`` with every term, then each matrix.

    ``base`` is the unmoved loss of each batch. A matrix's second-order term is its part of
    D·H·D / 2 (with the cross terms shared out), so that the parts sum to the whole.
    """
    parts = [inner(shift, product) for product in surface.products(shift)]
    first, second = surface.slopes(shift), np.array([0.5 * sum(part.values()) for part in parts])
    terms = {"measured": surface.losses(shift) - base, "first_order": first,
             "second_order": second, "predicted": first + second}  # fmt: skip
    noise, sizes = inner(shift, shift), inner(surface.weights, surface.weights)
    rows = [{"tensor": "all", "n_weights": surface.size,
             "noise_norm2": sum(noise.values()), "weight_norm2": sum(sizes.values())}]  # fmt: skip
    for name, values in terms.items():
        rows[0] |= _columns(name, values, resamples)
    for name, moved in shift.items():
        values = np.array([0.5 * part[name] for part in parts])
        about = {"tensor": name, "n_weights": moved.numel(), "noise_norm2": noise[name],
                 "weight_norm2": sizes[name]}  # fmt: skip
        rows.append(about | _columns("second_order", values, resamples))
    return rows


def sensitivity_table(
    surface: LossSurface,
    specs: Mapping[str, AffineQuantizer],
    *,
    step: int,
    draws: int,
    resamples: int,
) -> pd.DataFrame:
    """All perturbations of one checkpoint: the rows of ``expand``; the step seeds the noise."""
    base = surface.losses()
    moves = perturbations(surface.weights, specs, draws=draws, seed=step)
    rows = [
        {"step": step, "perturbation": name, **row}
        for name, shift in moves.items()
        for row in expand(surface, shift, base, resamples=resamples)
    ]
    return pd.DataFrame(rows).assign(n_batches=len(surface.ids))


Estimate = tuple[float, float, float, int]  # value, ends of its interval, draws or batches


def largest_eigenvalue(surface: LossSurface, *, resamples: int, seed: int) -> Estimate:
    """Largest (algebraic) eigenvalue of the Hessian, by Lanczos iteration.

    The interval is over batches with the eigenvector held: that of its Rayleigh quotient.
    """
    rng = np.random.default_rng(seed)
    operator = LinearOperator((surface.size, surface.size), matvec=surface.flat_product)
    start = rng.standard_normal(surface.size)
    [value], vectors = eigsh(operator, k=1, which="LA", tol=TOLERANCE, v0=start)
    direction = surface.unflatten(vectors[:, 0])
    products = surface.products(direction)
    quotients = np.array([sum(inner(direction, product).values()) for product in products])
    return float(value), *mean_interval(quotients, resamples, rng), len(quotients)


def trace(surface: LossSurface, *, draws: int, seed: int) -> Estimate:
    """Hutchinson's estimate of the trace: mean of z·H·z over random signs z, t interval."""
    rng, values = np.random.default_rng(seed), []
    for _ in range(draws):
        signs = surface.unflatten(rng.choice(np.float32([-1.0, 1.0]), surface.size))
        values.append(sum(inner(signs, surface.product(signs)).values()))
    mean, error = float(np.mean(values)), float(stats.sem(values))
    return mean, *t_interval(mean, error, draws - 1), draws


def curvature_row(surface: LossSurface, *, step: int, draws: int, resamples: int) -> dict:
    """Largest eigenvalue and trace of one checkpoint.

    ``weight_norm2`` turns both into numbers that do not change when weights are rescaled.
    """
    norm2 = sum(inner(surface.weights, surface.weights).values())
    row = {"step": step, "n_weights": surface.size, "weight_norm2": norm2}
    for name, estimate in (
        ("top_eigenvalue", largest_eigenvalue(surface, resamples=resamples, seed=step)),
        ("trace", trace(surface, draws=draws, seed=step)),
    ):
        row |= zip((name, f"{name}_low", f"{name}_high", f"{name}_n"), estimate, strict=True)
    return row
