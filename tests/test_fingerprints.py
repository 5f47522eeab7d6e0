"""Sketches of weights: distances without the weights, to a stated accuracy."""

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flatminima.model import tensor_digests
from flatminima.revisions.fingerprints import (
    BUCKETS,
    TENSOR_BUCKETS,
    WHOLE,
    distances,
    fingerprint_checkpoint,
    sketch,
)

SHAPES = {"a.weight": (96, 64), "b.weight": (130, 7), "b.bias": (130,), "c.weight": (64, 512)}


def write(path, tensors):
    save_file({name: torch.from_numpy(value) for name, value in tensors.items()}, path)
    return path


def random_tensors(seed, scale=1.0):
    random = np.random.default_rng(seed)
    return {n: (scale * random.standard_normal(s)).astype(np.float32) for n, s in SHAPES.items()}


def exact(one, other):
    return np.sqrt(sum(np.square(one[n].astype(float) - other[n].astype(float)).sum() for n in one))


def test_distances_are_those_of_the_weights_to_a_few_percent(tmp_path):
    base = random_tensors(0)
    models = {0: base}
    for step in range(1, 40):
        # From a hair's breadth to far away.
        nudge = random_tensors(step, scale=10.0 ** (step % 5 - 4))
        models[step] = {name: base[name] + nudge[name] for name in base}
    import pandas as pd

    fingerprints = pd.concat(
        fingerprint_checkpoint(step, write(tmp_path / "m.safetensors", tensors))
        for step, tensors in models.items()
    )
    found = distances(fingerprints, list(models))
    np.testing.assert_array_equal(np.diagonal(found), 0.0)
    ratios = np.array([found[0, s] / exact(models[0], models[s]) for s in range(1, 40)])
    # The standard error is 1 / sqrt(2 BUCKETS), 1.1 %.
    assert np.abs(ratios - 1.0).max() < 4.5 / np.sqrt(2 * BUCKETS)
    assert 0.5 / np.sqrt(2 * BUCKETS) < ratios.std() < 2.0 / np.sqrt(2 * BUCKETS)
    assert abs(ratios.mean() - 1.0) < 0.01


@pytest.mark.parametrize("axis", [0, 1])
def test_a_change_of_one_row_or_one_column_is_seen_as_well(axis):
    """Each seed of the change falls on other buckets: a row never collects in one of them."""
    random, ratios = np.random.default_rng(1), []
    for _ in range(30):
        change = np.zeros((512, 512), dtype=np.float32)
        at = random.integers(512)
        change[(at, slice(None)) if axis == 0 else (slice(None), at)] = random.standard_normal(512)
        length = np.linalg.norm(change.astype(float))
        ratios.append(np.linalg.norm(sketch("layer.weight", change)) / length)
    assert np.abs(np.array(ratios) - 1.0).max() < 0.1


def test_a_sketch_is_linear_and_its_signs_belong_to_the_name():
    random = np.random.default_rng(2)
    one, other = (random.integers(-8, 8, (50, 50)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(sketch("x", one) - sketch("x", other), sketch("x", one - other))
    assert not np.array_equal(sketch("x", one), sketch("y", one))
    np.testing.assert_array_equal(sketch("x", one), sketch("x", one.ravel()))
    assert np.square(sketch("x", np.ones(BUCKETS))).sum() == BUCKETS


def test_rows_of_a_checkpoint(tmp_path):
    tensors = random_tensors(3)
    # What old checkpoints carry besides is no weight.
    masks = {"gpt_neox.layers.0.attention.masked_bias": np.array(-1e9, dtype=np.float32)}
    path = write(tmp_path / "m.safetensors", tensors | masks)
    table = fingerprint_checkpoint(7, path).set_index("tensor")
    assert list(table.index) == [*sorted(SHAPES), WHOLE] and set(table["step"]) == {7}
    assert table["sha256"].drop(WHOLE).to_dict() == tensor_digests(path)
    assert table.loc["b.bias", "sha256"] == hashlib.sha256(tensors["b.bias"].tobytes()).hexdigest()
    assert table.loc["c.weight", "shape"] == "64x512"
    assert table.loc[WHOLE, "n_weights"] == sum(t.size for t in tensors.values())
    squares = sum(np.square(t.astype(float)).sum() for t in tensors.values())
    assert table.loc[WHOLE, "sum_of_squares"] == pytest.approx(squares)
    assert len(table.loc[WHOLE, "sketch"]) == BUCKETS
    for name, tensor in tensors.items():
        found = np.linalg.norm(table.loc[name, "sketch"]) / np.linalg.norm(tensor.astype(float))
        assert len(table.loc[name, "sketch"]) == TENSOR_BUCKETS and abs(found - 1.0) < 0.35


def test_half_precision_is_widened_and_a_hash_is_that_of_the_file(tmp_path):
    weights = torch.randn(300, generator=torch.Generator().manual_seed(0)).half()
    save_file({"w": weights}, tmp_path / "h.safetensors")
    save_file({"w": weights.float()}, tmp_path / "f.safetensors")
    half, full = (
        fingerprint_checkpoint(0, tmp_path / f"{n}.safetensors").set_index("tensor") for n in "hf"
    )
    np.testing.assert_array_equal(half.loc[WHOLE, "sketch"], full.loc[WHOLE, "sketch"])
    assert half.loc["w", "sha256"] != full.loc["w", "sha256"]
