"""Steps and positions on the grid, flips, and distances, where the answer is known."""

import numpy as np
import pandas as pd
import pytest
import torch

from flatminima.mechanism.code_flips import code_flips
from flatminima.mechanism.displacement import COLUMNS, LAGS, displacements, exponents
from flatminima.mechanism.grid import levels, quantization_error, step_variance, steps
from flatminima.mechanism.misalignment import group_index, misalignment, residuals
from flatminima.quantizers import fake_quantize
from tests.conftest import affine

INT4 = affine(4, "group", False, 64)
SPECS = [
    INT4,
    affine(8, "channel", True),
    affine(3, "tensor", False),
    affine(2, "group", True, 48),
]


def normal(shape, seed=0):
    drawn = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(drawn)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_level_times_step_is_the_quantized_weight(spec):
    w = normal((6, 128))
    values, step = fake_quantize(w, spec), steps(w, spec)
    assert step.shape == w.shape and (step > 0).all()
    level = levels(w, step)
    inside = (level * step - values).abs() < 1e-5 * w.abs().max()
    # Equal wherever the code was not clamped; clamped codes are at the ends of a range.
    assert inside.double().mean() > 0.95
    assert ((values - w).abs() <= step * 1.001)[inside].all()
    assert torch.equal(quantization_error(w, spec), values - w)


def test_a_constant_group_has_no_grid():
    w = normal((2, 128))
    w[0, :64] = 0.3
    assert (steps(w, INT4)[0, :64] == 0).all() and (steps(w, INT4)[0, 64:] > 0).all()
    assert levels(w, steps(w, INT4))[0, :64].abs().sum() == 0
    assert step_variance(torch.full((3, 4), 2.0)) == pytest.approx(12 * 4 / 12)


def on_grid(offset: torch.Tensor) -> torch.Tensor:
    """Weights ``offset`` steps away from points of a grid of step 1 per group of 64."""
    generator = np.random.default_rng(1)
    base = torch.from_numpy(generator.integers(-6, 8, offset.shape).astype(np.float32))
    base.reshape(-1, 64)[:, 0], base.reshape(-1, 64)[:, 1] = -7.0, 8.0
    w = base + offset
    ends = w.reshape(-1, 64)
    ends[:, 0], ends[:, 1] = -7.0, 8.0
    return ends.reshape(offset.shape)


@pytest.mark.parametrize(("offset", "index"), [(0.0, 0.0), (0.25, 0.75), (0.4999, 3.0)])
def test_the_index_of_weights_at_one_place_in_their_cells(offset, index):
    w = on_grid(torch.full((64, 128), offset))
    # Two of the 64 weights of each group hold the grid in place.
    found = misalignment({"w": w}, INT4, seed=0)["index"]
    assert found == pytest.approx(index * 62 / 64, abs=2e-3)


def test_the_index_of_uniform_positions_is_one():
    drawn = np.random.default_rng(3).uniform(-0.5, 0.5, (512, 128)).astype(np.float32)
    w = on_grid(torch.from_numpy(drawn))
    found = misalignment({"w": w}, INT4, seed=0)
    assert found["index_low"] < 62 / 64 < found["index_high"]
    assert found["near_midpoint"] == pytest.approx(0.2 * 62 / 64, abs=0.005)
    assert found["index_shifted"] == pytest.approx(1.0, abs=0.02)
    assert found["n_groups"] == 1024
    assert found["index_p05"] < found["index_p50"] < found["index_p95"]


def test_groups_without_a_grid_are_left_out():
    w = normal((2, 128))
    w[0, :64] = 1.0
    assert torch.isnan(residuals(w, INT4)[0, :64]).all()
    assert len(group_index(residuals(w, INT4), INT4)) == 3


def test_flips_of_weights_that_move_by_a_known_part_of_their_step():
    w = normal((64, 128))
    step = steps(w, INT4)
    same = code_flips({"w": w}, {"w": w.clone()}, INT4)
    assert set(same.values()) == {0.0}
    whole = code_flips({"w": w}, {"w": w + step}, INT4)
    assert whole["flipped_fixed"] == 1.0 and whole["flipped_expected"] == pytest.approx(1.0)
    part = code_flips({"w": w}, {"w": w + 0.3 * step}, INT4)
    assert part["flipped_expected"] == pytest.approx(0.3, abs=1e-5)
    assert part["flipped_fixed"] == pytest.approx(0.3, abs=0.02)
    # The whole grid moved along with the weights: nothing flips on a grid that is anchored
    # at zero only if the weights grow in proportion.
    grown = code_flips({"w": w}, {"w": 1.5 * w}, INT4)
    assert grown["flipped_own"] < 0.002 < grown["flipped_fixed"]


def walk(moves: np.ndarray, spacing=10) -> pd.DataFrame:
    states = np.cumsum(moves, axis=0)
    steps_ = (np.arange(len(states)) + 1) * spacing
    rows = displacements(iter(zip(steps_.tolist(), states, strict=True)), spacing)
    return pd.DataFrame(rows, columns=COLUMNS)


def test_a_straight_line_has_cosine_and_exponent_one():
    table = walk(np.ones((40, 50)))
    assert table["cosine"].dropna().to_numpy() == pytest.approx(1.0)
    assert exponents(table, 10, 10).to_numpy() == pytest.approx(1.0)
    assert set(table["lag"]) == set(LAGS)


def test_a_random_walk_has_cosine_zero_and_exponent_one_half():
    table = walk(np.random.default_rng(0).standard_normal((60, 20_000)))
    assert table["cosine"].abs().max() < 0.04
    assert exponents(table, 10, 10).to_numpy() == pytest.approx(0.5, abs=0.02)


def test_the_past_is_forgotten_where_a_step_is_missing():
    states = [(step, np.full(3, float(step))) for step in (10, 20, 30, 50, 60)]
    table = pd.DataFrame(displacements(iter(states), 10), columns=COLUMNS)
    assert [(r.step, r.lag) for r in table.itertuples()] == [(20, 1), (30, 1), (30, 2), (60, 1)]


def test_exponents_look_back_no_further_than_asked():
    table = walk(np.ones((40, 5)))
    assert exponents(table, 200, 10).index.min() == 200 + 10 * max(LAGS)
    assert exponents(table, 390, 10).empty
