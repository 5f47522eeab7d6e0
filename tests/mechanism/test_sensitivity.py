"""Gradient, Hessian and what is made of them, on losses whose derivatives are known."""

import numpy as np
import pytest
import torch

from flatminima.mechanism.sensitivity import (
    LossSurface,
    curvature_row,
    inner,
    largest_eigenvalue,
    perturbations,
    sensitivity_table,
    trace,
)
from flatminima.mechanism.visits import Visit
from flatminima.quantizers import grid_steps, linear_weights
from tests.conftest import affine

INT4 = affine(4, "group", False, 8)
INT8 = affine(8, "channel", True)
SIZE = 24


class Quadratic(LossSurface):
    """½ w·A·w + b·w with A and b of each batch: every term of the expansion is known."""

    def __init__(self, matrices, slopes):
        self.matrices, self.slopes_of = matrices, slopes
        rng = np.random.default_rng(9)
        start = torch.from_numpy(rng.standard_normal((3, 8)).astype(np.float32))
        self.weights = {"w": start.requires_grad_()}
        self.ids = list(range(len(matrices)))

    def loss(self, ids, weights):
        w = weights["w"].reshape(-1)
        return 0.5 * w @ self.matrices[ids] @ w + self.slopes_of[ids] @ w


def quadratic(batches=4, diagonal=False, seed=0):
    rng = np.random.default_rng(seed)
    matrices = []
    for _ in range(batches):
        a = rng.standard_normal((SIZE, SIZE))
        a = np.diag(rng.uniform(0.1, 2.0, SIZE)) if diagonal else a @ a.T / SIZE
        matrices.append(torch.from_numpy(a.astype(np.float32)))
    slopes = torch.from_numpy(rng.standard_normal((batches, SIZE)).astype(np.float32))
    return Quadratic(matrices, slopes)


def mean_matrix(surface) -> np.ndarray:
    return np.mean([m.numpy().astype(np.float64) for m in surface.matrices], axis=0)


def test_products_and_slopes_of_a_quadratic():
    surface = quadratic()
    d = {"w": torch.from_numpy(np.random.default_rng(1).standard_normal((3, 8))).float()}
    flat = d["w"].reshape(-1).numpy()
    product = surface.product(d)["w"].reshape(-1).numpy()
    assert product == pytest.approx(mean_matrix(surface) @ flat, abs=1e-5)
    assert surface.flat_product(flat) == pytest.approx(product, abs=1e-6)
    w = surface.weights["w"].detach().reshape(-1).numpy()
    expected = [(m.numpy() @ w + b.numpy()) @ flat
                for m, b in zip(surface.matrices, surface.slopes_of, strict=True)]  # fmt: skip
    assert surface.slopes(d) == pytest.approx(expected, rel=1e-4)
    assert sum(inner(d, surface.product(d)).values()) == pytest.approx(flat @ product, rel=1e-5)


def test_the_second_order_prediction_of_a_quadratic_is_the_measured_loss():
    surface = quadratic()
    table = sensitivity_table(surface, {"low_bit": INT4, "high_bit": INT8}, step=5, draws=2,
                              resamples=50)  # fmt: skip
    whole = table[table["tensor"] == "all"]
    assert list(whole["perturbation"]) == ["low_bit", "high_bit", "noise0", "dither0", "noise1",
                                           "dither1"]  # fmt: skip
    assert whole["predicted_nats"].to_numpy() == pytest.approx(
        whole["measured_nats"].to_numpy(), abs=2e-6
    )
    total = whole["first_order_nats"] + whole["second_order_nats"]
    assert total.to_numpy() == pytest.approx(whole["predicted_nats"].to_numpy(), abs=1e-9)
    parts = table[table["tensor"] != "all"].groupby("perturbation")["second_order_nats"].sum()
    assert parts[whole["perturbation"]].to_numpy() == pytest.approx(
        whole["second_order_nats"].to_numpy(), abs=1e-9
    )
    assert (whole["measured_low"] <= whole["measured_nats"]).all()
    assert (whole["measured_nats"] <= whole["measured_high"]).all()


def test_the_largest_eigenvalue_is_that_of_the_matrix():
    surface = quadratic()
    value, low, high, n = largest_eigenvalue(surface, resamples=100, seed=0)
    assert value == pytest.approx(np.linalg.eigvalsh(mean_matrix(surface))[-1], rel=2e-3)
    assert low <= value * 1.001 and value * 0.999 <= high and n == 4


def test_the_trace_of_a_diagonal_hessian_is_exact_and_that_of_another_within_its_interval():
    exact = quadratic(diagonal=True)
    row = curvature_row(exact, step=3, draws=3, resamples=20)
    assert row["trace"] == pytest.approx(np.trace(mean_matrix(exact)), rel=1e-5)
    assert row["trace_high"] - row["trace_low"] < 1e-3 and row["trace_n"] == 3
    other = quadratic()
    _, low, high, _ = trace(other, draws=200, seed=0)
    assert low < np.trace(mean_matrix(other)) < high
    assert row["weight_norm2"] == pytest.approx(float((exact.weights["w"].detach() ** 2).sum()))


def test_products_of_a_model_are_differences_of_its_gradient(tiny_model, tiny_tokens):
    names = list(linear_weights(tiny_model))
    surface = LossSurface(Visit(1, tiny_model, tiny_tokens[:8], 4, 20), names)
    generator = torch.Generator().manual_seed(0)
    d = {n: torch.randn(w.shape, generator=generator) for n, w in surface.weights.items()}
    curvature = sum(inner(d, surface.product(d)).values())
    h = 0.02
    ends = [surface.losses({n: k * h * x for n, x in d.items()}).mean() for k in (-1, 0, 1)]
    assert curvature == pytest.approx((ends[0] - 2 * ends[1] + ends[2]) / h**2, rel=0.05)
    h = 0.002
    low, high = (surface.losses({n: k * h * x for n, x in d.items()}).mean() for k in (-1, 1))
    assert surface.slopes(d).mean() == pytest.approx((high - low) / (2 * h), rel=0.01)


def test_batches_must_be_of_one_size(tiny_model, tiny_tokens):
    with pytest.raises(ValueError, match="9 sequences"):
        LossSurface(Visit(1, tiny_model, tiny_tokens, 4, 20), [])


def test_controls_have_the_norm_or_the_cells_of_the_rounding_error():
    weights = {"a": torch.randn(32, 64), "b": 5 * torch.randn(16, 64)}
    found = perturbations(weights, {"low_bit": INT4}, draws=1, seed=0)
    for name, error in found["low_bit"].items():
        assert found["noise0"][name].norm() == pytest.approx(error.norm().item(), rel=1e-5)
        assert found["dither0"][name].norm() == pytest.approx(error.norm().item(), rel=0.1)
    again = perturbations(weights, {"low_bit": INT4}, draws=1, seed=0)
    assert torch.equal(again["noise0"]["a"], found["noise0"]["a"])
    assert (found["dither0"]["a"].abs() <= 0.5 * grid_steps(weights["a"], INT4)).all()
