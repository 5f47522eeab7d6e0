"""Weights followed through saved checkpoints whose moves are known."""

import copy

import numpy as np
import pytest
import torch

from flatminima.mechanism.drift import block_weights, drift_rows
from flatminima.mechanism.grid import steps
from flatminima.model import save_model
from flatminima.quantizers import linear_weights
from tests.conftest import affine

INT4 = affine(4, "group", False, 16)
SPACING, STEPS = 10, (10, 20, 30)


@pytest.fixture
def states(tiny_model, tmp_path):
    """Three checkpoints: each weight moves by a third of its first step, then back again."""
    moved = copy.deepcopy(tiny_model)
    with torch.no_grad():
        for weight in linear_weights(moved, "blocks").values():
            weight += steps(weight.detach(), INT4) / 3
    found = []
    for step, model in zip(STEPS, (tiny_model, moved, tiny_model), strict=True):
        folder = tmp_path / f"step{step}"
        save_model(model, folder)
        found.append((step, str(folder / "model.safetensors")))
    return found


def test_the_matrices_of_a_file_are_those_a_probe_takes(states, tiny_model):
    found = block_weights(states[0][1], "blocks")
    expected = linear_weights(tiny_model, "blocks")
    assert sorted(found) == sorted(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_move_and_the_way_back(states):
    positions, distances = drift_rows(iter(states), INT4, layers="blocks", spacing=SPACING)
    first, out, back = positions
    assert [row["previous_step"] for row in positions] == [None, 10, 20]
    assert np.isnan(first["flipped_own"])
    assert out["mean_move_in_steps"] == pytest.approx(1 / 3, abs=1e-4)
    assert out["flipped_fixed"] == pytest.approx(1 / 3, abs=0.03)
    assert back["index"] == first["index"] and back["flipped_own"] == out["flipped_own"]
    by_lag = {(row["step"], row["lag"]): row for row in distances}
    assert by_lag[30, 1]["cosine"] == pytest.approx(-1.0)
    assert by_lag[30, 2]["distance"] == 0.0
    weights = block_weights(states[0][1], "blocks").values()
    moved = np.sqrt(sum(float((steps(w, INT4) / 3).double().pow(2).sum()) for w in weights))
    assert by_lag[20, 1]["distance"] == pytest.approx(moved, rel=1e-5)
