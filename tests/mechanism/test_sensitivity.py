"""Gradient, Hessian and what is made of them, on losses whose derivatives are known."""

import numpy as np
import pytest
import torch

from flatminima.mechanism.sensitivity import (
    LossSurface,
    curvature_table,
    largest_eigenvalue,
    perturbations,
    sensitivity_table,
    trace,
)
from flatminima.mechanism.visits import Visit
from flatminima.quantizers import grid_steps
from tests.conftest import affine

INT4, INT8 = affine(4, "group", False, 8), affine(8, "channel", True)
SIZE = 24


class Quadratic(LossSurface):
    """½ w·A·w + b·w with A and b of each batch: every term of the expansion is known."""

    def __init__(self, batches=4, diagonal=False):
        rng = np.random.default_rng(0)
        a = rng.standard_normal((batches, SIZE, SIZE))
        a = (
            np.eye(SIZE) * rng.uniform(0.1, 2.0, (batches, 1, SIZE))
            if diagonal
            else (a @ a.transpose(0, 2, 1) / SIZE)
        )
        self.mean_matrix = a.mean(axis=0)
        self.a, self.b = (
            torch.from_numpy(x).float() for x in (a, rng.standard_normal((batches, SIZE)))
        )
        self.shapes = {"w": torch.Size([3, 8])}
        self.weights = torch.from_numpy(rng.standard_normal(SIZE)).float().requires_grad_()
        self.step = 5
        self.ids = list(range(batches))

    def loss(self, ids, weights):
        return 0.5 * weights @ self.a[ids] @ weights + self.b[ids] @ weights


def test_the_second_order_prediction_of_a_quadratic_is_the_measured_loss():
    surface = Quadratic()
    d = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    product = surface.product(d).numpy()
    assert product == pytest.approx(surface.mean_matrix @ d.numpy(), abs=1e-5)
    assert surface.inner(d, surface.product(d)) == pytest.approx(d.numpy() @ product, rel=1e-5)
    settings = {"low_bit": INT4.model_dump(), "high_bit": INT8.model_dump(), "draws": 2}
    table = sensitivity_table(surface, settings | {"resamples": 50})
    all_matrices = table[table["tensor"] == "all"].set_index("perturbation")
    assert list(all_matrices.index) == [
        "low_bit",
        "high_bit",
        "noise0",
        "dither0",
        "noise1",
        "dither1",
    ]
    measured = all_matrices["measured_nats"]
    predicted = all_matrices["predicted_nats"]
    assert predicted.to_numpy() == pytest.approx(measured.to_numpy(), abs=2e-6)
    total = all_matrices["first_order_nats"] + all_matrices["second_order_nats"]
    assert total.to_numpy() == pytest.approx(predicted.to_numpy(), abs=1e-9)
    parts = table[table["tensor"] != "all"].groupby("perturbation")["second_order_nats"].sum()
    second = all_matrices["second_order_nats"]
    assert parts[second.index].to_numpy() == pytest.approx(second.to_numpy(), abs=1e-9)
    assert (all_matrices["measured_low"] <= measured).all() and (
        measured <= all_matrices["measured_high"]
    ).all()


def test_the_largest_eigenvalue_and_the_trace_are_those_of_the_matrix():
    surface = Quadratic()
    value, low, high, n = largest_eigenvalue(surface, resamples=100)
    assert value == pytest.approx(np.linalg.eigvalsh(surface.mean_matrix)[-1], rel=2e-3)
    assert low <= value * 1.001 and value * 0.999 <= high and n == 4
    _, low, high, _ = trace(surface, draws=200)
    assert low < np.trace(surface.mean_matrix) < high
    # Random signs give the trace of a diagonal matrix without an error.
    exact = Quadratic(diagonal=True)
    row = curvature_table(exact, {"draws": 3, "resamples": 20}).iloc[0]
    assert row["trace"] == pytest.approx(np.trace(exact.mean_matrix), rel=1e-5)
    assert row["trace_high"] - row["trace_low"] < 1e-3 and row["trace_n"] == 3
    assert row["weight_norm2"] == pytest.approx(float((exact.weights.detach() ** 2).sum()))


def test_products_of_a_model_are_differences_of_its_gradient(tiny_model, tiny_tokens):
    surface = LossSurface(Visit(1, tiny_model, tiny_tokens[:8], 4, 20), "blocks")
    d = torch.randn(len(surface.weights), generator=torch.Generator().manual_seed(0))
    low, here, high = (surface.losses(k * 0.02 * d).mean() for k in (-1, 0, 1))
    curvature = surface.inner(d, surface.product(d))
    assert curvature == pytest.approx((low - 2 * here + high) / 0.02**2, rel=0.05)
    low, high = (surface.losses(k * 0.002 * d).mean() for k in (-1, 1))
    slope = np.mean([surface.inner(gradient, d) for gradient in surface.gradients])
    assert slope == pytest.approx((high - low) / 0.004, rel=0.01)


def test_controls_have_the_norm_or_the_cells_of_the_rounding_error():
    weights = {"a": torch.randn(32, 64), "b": 5 * torch.randn(16, 64)}
    found, again = (perturbations(weights, {"low_bit": INT4}, draws=1, seed=0) for _ in range(2))
    for name, error in found["low_bit"].items():
        assert found["noise0"][name].norm() == pytest.approx(error.norm().item(), rel=1e-5)
        assert found["dither0"][name].norm() == pytest.approx(error.norm().item(), rel=0.1)
    assert (found["dither0"]["a"].abs() <= 0.5 * grid_steps(weights["a"], INT4)).all()
    assert all(torch.equal(again["noise0"][name], found["noise0"][name]) for name in weights)
