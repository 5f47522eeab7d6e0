"""Flatness itself: the largest eigenvalue and the trace of the Hessian of the loss.

The paper's title speaks of flat minima and its text measures none. Both numbers are of
the validation loss in nats per token with respect to the weights that the probes change.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.sparse.linalg import LinearOperator, eigsh

from flatminima.intervals import CONFIDENCE, percentile_interval
from flatminima.mechanism.surface import LossSurface, inner

TOLERANCE = 1e-3  # relative, of the largest eigenvalue


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, and how many draws or batches it rests on."""

    value: float
    low: float
    high: float
    n: int


def largest_eigenvalue(surface: LossSurface, *, resamples: int, seed: int) -> Estimate:
    """Largest (algebraic) eigenvalue of the Hessian, by Lanczos iteration.

    The interval is over batches with the eigenvector held: that of its Rayleigh quotient.
    """
    rng = np.random.default_rng(seed)
    operator = LinearOperator((surface.size, surface.size), matvec=surface.flat_product)
    [value], vectors = eigsh(
        operator, k=1, which="LA", tol=TOLERANCE, v0=rng.standard_normal(surface.size)
    )
    direction = surface.unflatten(vectors[:, 0])
    quotients = np.array(
        [sum(inner(direction, product).values()) for product in surface.products(direction)]
    )
    drawn = rng.integers(0, len(quotients), (resamples, len(quotients)))
    low, high = percentile_interval(quotients[drawn].mean(axis=1))
    return Estimate(float(value), low, high, len(quotients))


def trace(surface: LossSurface, *, draws: int, seed: int) -> Estimate:
    """Hutchinson's estimate of the trace: mean of z·H·z over random signs z, t interval."""
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        signs = surface.unflatten(rng.choice(np.float32([-1.0, 1.0]), surface.size))
        values.append(sum(inner(signs, surface.product(signs)).values()))
    mean, error = float(np.mean(values)), float(stats.sem(values))
    low, high = stats.t.interval(CONFIDENCE, draws - 1, mean, error) if error else (mean, mean)
    return Estimate(mean, float(low), float(high), draws)


def curvature_row(surface: LossSurface, *, step: int, draws: int, resamples: int) -> dict:
    """One checkpoint: step, n_weights, weight_norm2, top_eigenvalue and trace with intervals.

    ``weight_norm2`` turns both into numbers that do not change when weights are rescaled.
    """
    top = largest_eigenvalue(surface, resamples=resamples, seed=step)
    total = trace(surface, draws=draws, seed=step)
    norm2 = sum(float(w.detach().double().pow(2).sum()) for w in surface.weights.values())
    row = {"step": step, "n_weights": surface.size, "weight_norm2": norm2}
    for name, estimate in (("top_eigenvalue", top), ("trace", total)):
        row |= {
            name: estimate.value, f"{name}_low": estimate.low,
            f"{name}_high": estimate.high, f"{name}_n": estimate.n,
        }  # fmt: skip
    return row
