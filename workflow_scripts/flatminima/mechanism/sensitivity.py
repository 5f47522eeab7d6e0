"""Noise times sensitivity, and the curvature of the minimum: the loss around a checkpoint.

For a perturbation D of the weights, loss(w + D) - loss(w) = g·D + D·H·D / 2 + ... . The noise is
the squared norm of D. The sensitivity is the second-order term per unit of noise, so their
product is the predicted cost. Two controls are measured with the suite's quantizers: ``noise``
is normal noise with the norm of the rounding error in every matrix, and ``dither`` is uniform
in each weight's own cell of the grid. If dither costs as much as rounding, the positions of the
weights between grid points do not matter.

The paper's title is about flat minima, but its text measures none. Here the largest eigenvalue
and the trace of H are measured, for the validation loss in nats per token with respect to the
weights that the probes change. Intervals are 95 % over batches, unless stated otherwise.
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
    batches have one size, so that every token has the same weight. Hessian products
    differentiate twice in reverse mode, in float32, with sums over batches in float64. (Forward
    mode twice would be cheaper, but torch's layer norm gives a wrong second derivative there.)
    The graph of every batch's gradient is kept, so a product costs one backward pass, and memory
    grows with the number of sequences.
    """

    def __init__(self, visit: Visit, layers: str) -> None:
        # The fused attention kernels have no second derivative.
        if hasattr(visit.model, "set_attn_implementation"):
            visit.model.set_attn_implementation("eager")
        named_weights = linear_weights(visit.model, layers)
        self.model = visit.model.eval()
        self.shapes = {name: weight.shape for name, weight in named_weights.items()}
        self.weights = parameters_to_vector(named_weights.values()).detach().requires_grad_()
        self.step = visit.step
        self.ids = list(batches(visit.tokens, visit.batch_size, visit.device))

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """A flat vector by parameter name, each part in the shape of its parameter."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def loss(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Loss of one batch, with ``weights`` instead of the model's."""
        named_weights = self.split(weights)

        def forward(**inputs: object) -> object:
            return functional_call(self.model, named_weights, (), inputs)

        return next_token_loss(forward, ids)

    @torch.no_grad()
    def losses(self, shift: Tensor | float = 0.0) -> np.ndarray:
        """Loss of each batch with the weights moved by ``shift``, ``[batches]``."""
        return np.array([self.loss(ids, self.weights + shift).item() for ids in self.ids])

    @cached_property
    def gradients(self) -> list[Tensor]:
        """Gradient of each batch's loss, with the graph behind it."""
        losses = (self.loss(ids, self.weights) for ids in self.ids)
        # Kept with their graphs: each Hessian-vector product differentiates a gradient once more.
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
        elementwise = self.split(first.double() * second.double())
        return {name: float(part.sum()) for name, part in elementwise.items()}

    def inner(self, first: Tensor, second: Tensor) -> float:
        """Inner product of two vectors."""
        return sum(self.parts(first, second).values())

    def vector(self, numbers: np.ndarray) -> Tensor:
        """A float32 vector on the device of the weights."""
        return torch.from_numpy(np.array(numbers, dtype=np.float32)).to(self.weights.device)


def perturbations(
    weights: Mapping[str, Tensor], specs: Mapping[str, AffineQuantizer], *, draws: int, seed: int
) -> dict[str, dict[str, Tensor]]:
    """Rounding errors by role, then the controls of the first role: ``noise0``, ``dither0`` …

    Each perturbation maps parameter names to tensors in the shape of the parameter.
    """
    by_name = {
        role: {name: fake_quantize(weight, spec) - weight for name, weight in weights.items()}
        for role, spec in specs.items()
    }
    rng = np.random.default_rng(seed)
    first_role, first_spec = next(iter(specs.items()))

    def noise(error: Tensor) -> Tensor:
        draw = rng.standard_normal(tuple(error.shape), dtype=np.float32)
        # The control has the norm of the rounding error, and a random direction.
        scale = float(error.double().norm()) / float(np.linalg.norm(draw.astype(np.float64)))
        return torch.from_numpy(draw * np.float32(scale)).to(error.device)

    def dither(weight: Tensor) -> Tensor:
        # Uniform in the cell of each weight: the error of a weight at a random position.
        draw = rng.random(tuple(weight.shape), dtype=np.float32) - np.float32(0.5)
        return torch.from_numpy(draw).to(weight.device) * grid_steps(weight, first_spec)

    # The order of the draws decides the numbers.
    rounding_errors = by_name[first_role]
    for number in range(draws):
        by_name[f"noise{number}"] = {name: noise(error) for name, error in rounding_errors.items()}
        by_name[f"dither{number}"] = {name: dither(weight) for name, weight in weights.items()}
    return by_name


def expand(surface: LossSurface, shift: Tensor, base: np.ndarray, resamples: int) -> list[dict]:
    """Rows of one perturbation: tensor ``all`` with every term, then each matrix.

    ``base`` is the unmoved loss of each batch. A matrix's second-order term is its part of
    D·H·D / 2, with half of each cross term, so that the parts sum to the term of all matrices.
    """

    def row(
        tensor: str, count: int, noise_norm2: float, weight_norm2: float, **terms: np.ndarray
    ) -> dict:
        columns = {
            "tensor": tensor,
            "n_weights": count,
            "noise_norm2": noise_norm2,
            "weight_norm2": weight_norm2,
        }
        for name, batch_terms in terms.items():
            low, high = mean_interval(batch_terms, resamples, np.random.default_rng(0))
            columns[f"{name}_nats"] = batch_terms.mean()
            columns[f"{name}_low"] = low
            columns[f"{name}_high"] = high
        return columns

    # For each batch and matrix: the part of D·H·D that the rows of this matrix contribute.
    curvature_by_batch = [surface.parts(shift, product) for product in surface.products(shift)]
    first_order = np.array([surface.inner(gradient, shift) for gradient in surface.gradients])
    second_order = np.array([0.5 * sum(parts.values()) for parts in curvature_by_batch])
    noise_norm2 = surface.parts(shift, shift)
    weight_norm2 = surface.parts(surface.weights, surface.weights)
    rows = [
        row(
            "all",
            len(shift),
            sum(noise_norm2.values()),
            sum(weight_norm2.values()),
            measured=surface.losses(shift) - base,
            first_order=first_order,
            second_order=second_order,
            predicted=first_order + second_order,
        )
    ]
    for name, shape in surface.shapes.items():
        of_matrix = np.array([0.5 * parts[name] for parts in curvature_by_batch])
        count = shape.numel()
        rows.append(row(name, count, noise_norm2[name], weight_norm2[name], second_order=of_matrix))
    return rows


def sensitivity_table(surface: LossSurface, settings: Mapping) -> pd.DataFrame:
    """All perturbations of one checkpoint: the rows of ``expand``; the step seeds the noise.

    ``settings`` has low_bit, high_bit (definitions), draws and resamples.
    """
    specs = {role: read_spec(settings[role]) for role in ("low_bit", "high_bit")}
    weights = surface.split(surface.weights.detach())
    base = surface.losses()
    shifts = perturbations(weights, specs, draws=settings["draws"], seed=surface.step)
    rows = []
    for name, shift in shifts.items():
        flat_shift = parameters_to_vector(shift.values())
        for row in expand(surface, flat_shift, base, settings["resamples"]):
            rows.append({"step": surface.step, "perturbation": name, **row})
    return pd.DataFrame(rows).assign(n_batches=len(surface.ids))


Estimate = tuple[float, float, float, int]  # value, ends of its interval, draws or batches


def largest_eigenvalue(surface: LossSurface, resamples: int) -> Estimate:
    """Largest (algebraic) eigenvalue of the Hessian, by Lanczos iteration.

    The interval is that of the Rayleigh quotient over batches, with a fixed eigenvector.
    """
    rng = np.random.default_rng(surface.step)
    size = len(surface.weights)

    def product(vector: np.ndarray) -> np.ndarray:
        return surface.product(surface.vector(vector)).cpu().numpy()

    operator = LinearOperator((size, size), product)
    start = rng.standard_normal(size)
    [eigenvalue], vectors = eigsh(operator, k=1, which="LA", tol=TOLERANCE, v0=start)
    direction = surface.vector(vectors[:, 0])
    quotients = [surface.inner(direction, image) for image in surface.products(direction)]
    low, high = mean_interval(np.array(quotients), resamples, rng)
    return float(eigenvalue), low, high, len(quotients)


def trace(surface: LossSurface, draws: int) -> Estimate:
    """Hutchinson's estimate of the trace: mean of z·H·z over random signs z, t interval."""
    rng = np.random.default_rng(surface.step)
    estimates = []
    for _ in range(draws):
        signs = surface.vector(rng.choice(np.float32([-1.0, 1.0]), len(surface.weights)))
        estimates.append(surface.inner(signs, surface.product(signs)))
    mean = float(np.mean(estimates))
    low, high = t_interval(mean, stats.sem(estimates), draws - 1)
    return mean, low, high, draws


def curvature_table(surface: LossSurface, settings: Mapping) -> pd.DataFrame:
    """Largest eigenvalue and trace of one checkpoint; ``settings`` has draws and resamples.

    Multiplied by ``weight_norm2``, both do not change if the weights are rescaled.
    """
    row = {
        "step": surface.step,
        "n_weights": len(surface.weights),
        "weight_norm2": surface.inner(surface.weights, surface.weights),
    }
    estimates = {
        "top_eigenvalue": largest_eigenvalue(surface, settings["resamples"]),
        "trace": trace(surface, settings["draws"]),
    }
    for name, (estimate, low, high, count) in estimates.items():
        row[name] = estimate
        row[f"{name}_low"] = low
        row[f"{name}_high"] = high
        row[f"{name}_n"] = count
    return pd.DataFrame([row])
