"""Positions on the grid, flips, distances and phases of OLI, where the answer is known."""

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from flatminima.mechanism.drift import (
    DISTANCES,
    LAGS,
    code_flips,
    displacements,
    drift_tables,
    group_index,
    levels,
    misalignment,
    residuals,
)
from flatminima.mechanism.findings import exponents
from flatminima.mechanism.phase_flips import phase_ends, trace_phases
from flatminima.model import build_model, save_model
from flatminima.quantizers import fake_quantize, grid_steps, linear_weights
from flatminima.schedules import Cosine, CosineNeoxV1
from flatminima.training.loop import Recipe, build_optimizer, train
from flatminima.training.workspace import save_state
from tests.conftest import TINY, affine
from tests.synthetic import fork_schedule
from tests.test_workspace import SETTINGS

INT4 = affine(4, "group", False, 64)
SPECS = [INT4, affine(8, "channel", True), affine(3, "tensor", False), affine(2, "group", True, 48)]


def normal(shape, seed=0):
    drawn = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(drawn)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.description)
def test_level_times_step_is_the_quantized_weight_and_a_constant_group_has_no_grid(spec):
    w = normal((6, 128))
    values = fake_quantize(w, spec)
    step = grid_steps(w, spec)
    inside = (levels(w, step) * step - values).abs() < 1e-5 * w.abs().max()
    # Equal wherever the code was not clamped; clamped codes are at the ends of a range.
    assert step.shape == w.shape and (step > 0).all() and inside.double().mean() > 0.95
    assert ((values - w).abs() <= step * 1.001)[inside].all()
    w[0, :64] = 0.3
    if spec == INT4:
        assert levels(w, grid_steps(w, spec))[0, :64].abs().sum() == 0
        assert torch.isnan(residuals(w, spec)[0, :64]).all()
        assert len(group_index(residuals(w, spec), spec)) == 11


def on_grid(offset: torch.Tensor) -> torch.Tensor:
    """Weights ``offset`` steps away from points of a grid of step 1 per group of 64."""
    base = np.random.default_rng(1).integers(-6, 8, offset.shape).astype(np.float32)
    groups = (torch.from_numpy(base) + offset).reshape(-1, 64)
    groups[:, 0], groups[:, 1] = -7.0, 8.0
    return groups.reshape(offset.shape)


def test_the_index_of_weights_at_one_place_in_their_cells_and_anywhere():
    """Two of the 64 weights of each group hold the grid in place."""
    for offset, index in ((0.0, 0.0), (0.25, 0.75), (0.4999, 3.0)):
        found = misalignment({"w": on_grid(torch.full((64, 128), offset))}, INT4, seed=0)["index"]
        assert found == pytest.approx(index * 62 / 64, abs=2e-3)
    drawn = np.random.default_rng(3).uniform(-0.5, 0.5, (512, 128)).astype(np.float32)
    found = misalignment({"w": on_grid(torch.from_numpy(drawn))}, INT4, seed=0)
    assert found["index_low"] < 62 / 64 < found["index_high"] and found["n_groups"] == 1024
    assert found["near_midpoint"] == pytest.approx(0.2 * 62 / 64, abs=0.005)
    assert found["index_shifted"] == pytest.approx(1.0, abs=0.02)
    assert found["index_p05"] < found["index_p50"] < found["index_p95"]


def test_flips_of_weights_that_move_by_a_known_part_of_their_step():
    w = normal((64, 128))
    for part in (0.0, 0.3, 1.0):
        moved = code_flips({"w": w}, {"w": w + part * grid_steps(w, INT4)}, INT4)
        assert moved["flipped_expected"] == pytest.approx(part, abs=1e-5)
        tolerance = 0.02 if part == 0.3 else 0.0
        assert moved["flipped_fixed"] == pytest.approx(part, abs=tolerance)
        assert part or set(moved.values()) == {0.0}
    # Weights that grow in proportion take their own grid, anchored at zero, along.
    grown = code_flips({"w": w}, {"w": 1.5 * w}, INT4)
    assert grown["flipped_own"] < 0.002 < grown["flipped_fixed"]


def walk(moves: np.ndarray, spacing=10) -> pd.DataFrame:
    states = np.cumsum(moves, axis=0)
    at = (np.arange(len(states)) + 1) * spacing
    rows = displacements(zip(at.tolist(), states, strict=True), spacing)
    return pd.DataFrame(rows, columns=DISTANCES)


def test_a_straight_line_has_cosine_and_exponent_one_and_a_random_walk_zero_and_a_half():
    table = walk(np.ones((40, 50)))
    assert table["cosine"].dropna().to_numpy() == pytest.approx(1.0)
    assert exponents(table, 10, 10).to_numpy() == pytest.approx(1.0)
    # No past before the first step that is asked for.
    assert exponents(table, 200, 10).index.min() == 200 + 10 * max(LAGS)
    assert exponents(table, 390, 10).empty
    table = walk(np.random.default_rng(0).standard_normal((60, 20_000)))
    assert table["cosine"].abs().max() < 0.04
    assert exponents(table, 10, 10).to_numpy() == pytest.approx(0.5, abs=0.02)
    # The past is forgotten where a step is missing.
    states = [(step, np.full(3, float(step))) for step in (10, 20, 30, 50, 60)]
    found = [(row["step"], row["lag"]) for row in displacements(states, 10)]
    assert found == [(20, 1), (30, 1), (30, 2), (60, 1)]


def test_a_move_and_the_way_back_through_saved_checkpoints(tiny_model, tmp_path):
    """Each weight moves by a third of its first step, then back again."""
    spec = affine(4, "group", False, 16)
    moved = copy.deepcopy(tiny_model)
    weights = linear_weights(tiny_model, "blocks")
    thirds = {name: grid_steps(w.detach(), spec) / 3 for name, w in weights.items()}
    with torch.no_grad():
        for name, weight in linear_weights(moved, "blocks").items():
            weight += thirds[name]
    states = []
    for step, model in ((10, tiny_model), (20, moved), (30, tiny_model)):
        save_model(model, tmp_path / f"step{step}")
        states.append((step, str(tmp_path / f"step{step}" / "model.safetensors")))
    positions, distances = drift_tables(states, spec, layers="blocks", spacing=10)
    first, out, back = positions.to_dict("records")
    assert positions["previous_step"].dropna().tolist() == [10, 20]
    assert np.isnan(first["flipped_own"])
    assert out["mean_move_in_steps"] == pytest.approx(1 / 3, abs=1e-4)
    assert out["flipped_fixed"] == pytest.approx(1 / 3, abs=0.03)
    assert back["index"] == first["index"] and back["flipped_own"] == out["flipped_own"]
    by_lag = distances.set_index(["step", "lag"])
    assert by_lag.loc[(30, 1), "cosine"] == pytest.approx(-1.0)
    assert by_lag.loc[(30, 2), "distance"] == 0.0
    far = np.sqrt(sum(float(d.double().pow(2).sum()) for d in thirds.values()))
    assert by_lag.loc[(20, 1), "distance"] == pytest.approx(far, rel=1e-5)


def test_drift_is_of_the_matrices_of_a_gpt2_too(tmp_path):
    """Its Conv1D layers hold their weights turned round."""
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(**shape))
    save_model(model, tmp_path / "step10")
    states = [(10, str(tmp_path / "step10" / "model.safetensors"))]
    positions, _ = drift_tables(states, affine(8, "channel", True), layers="blocks", spacing=10)
    assert positions["n_groups"].item() == 3 * 16 + 16 + 4 * 16 + 16


OLI = {"kind": "oli", "bump_steps": 1, "cool_steps": 5, "amplitude": 4.0, "first": "cool"}


def test_phases_end_where_the_rate_changes():
    run = Cosine(lr_max=0.01, lr_min=0.001, warmup_steps=1, total_steps=200)
    for first, ends in (
        ("cool", {105: "cool", 106: "bump", 111: "cool", 112: "bump"}),
        ("bump", {101: "bump", 106: "cool", 107: "bump", 112: "cool"}),
    ):
        fork = fork_schedule(OLI | {"first": first}, baseline=run, start=100, stop=200)
        assert phase_ends(fork, 112) == ends


FORK = {"start": 50, "steps": 40, "probe_every": 10, "batch_size": 4, "optimizer_state": "fresh"}


def trace(amplitude: float, state: Path | None = None, fork=FORK, **training) -> pd.DataFrame:
    """Two cycles of OLI and the control, whose ``fork`` and ``training`` are changed alike."""
    shared = {
        "fork": fork,
        "training": SETTINGS["training"] | training,
        "total_steps": 120,
    }
    oli = OLI | {"cool_steps": 3, "amplitude": amplitude}
    settings = {
        "oli": {"oli": {"definition": oli, **shared}},
        "control": {"definition": {"kind": "cosine"}, **shared},
        "cycles": 2,
        "seeds": [0, 1],
    }
    tokens = np.random.default_rng(0).integers(0, 64, (32, 16)).astype(np.int32)
    spec = affine(4, "group", False, 8)
    return trace_phases(lambda: build_model(TINY, 64, seed=0), tokens, spec, settings, state)


def test_a_larger_bump_flips_more_codes_and_an_amplitude_of_one_is_the_baseline():
    plain = trace(1.0)
    bumped = trace(20.0)
    assert len(plain) == 2 * 2 * 4 and list(plain["updates"].unique()) == [3, 1]
    flips = plain.pivot(index=["seed", "step"], columns="schedule", values="flipped_own")
    assert flips["oli"].to_numpy() == pytest.approx(flips["baseline"].to_numpy())
    more, less = (
        table.set_index(["schedule", "phase"]).loc[("oli", "bump"), "flipped_own"].mean()
        for table in (bumped, plain)
    )
    assert more > 2 * less > 0


def test_phases_train_as_the_forks_do(tmp_path):
    """Weight decay, a rewarmed rate and restored moments, against a training loop by hand."""
    rates = dict(lr_max=0.01, lr_min=0.001, warmup_steps=2)
    run = CosineNeoxV1(**rates, total_steps=120)
    recipe = Recipe(4, weight_decay=5.0, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0, seed=0)
    tokens = np.random.default_rng(0).integers(0, 64, (32, 16)).astype(np.int32)
    model = build_model(TINY, 64, seed=0)
    optimizer = build_optimizer(model, recipe)
    list(train(model, optimizer, tokens, run, recipe, start=40, stop=50))
    state = tmp_path / "state.safetensors"
    save_state(state, model, optimizer, step=50, fingerprint="", losses=[])
    spec = affine(4, "group", False, 8)
    before = {name: w.detach().clone() for name, w in linear_weights(model).items()}
    schedule = fork_schedule(
        OLI | {"cool_steps": 3}, baseline=run, start=50, stop=90, rewarm_steps=20
    )
    list(train(model, optimizer, tokens, schedule, recipe, start=50, stop=53))
    expected = code_flips(before, linear_weights(model), spec)

    rewarmed = FORK | {"optimizer_state": "rewarmed", "rewarm_steps": 20}
    table = trace(4.0, state, rewarmed, weight_decay=5.0).query("seed == 0 and step == 53")
    assert expected["flipped_own"] > 0.0
    for arm in ("oli", "baseline"):  # the first phase is a cool one, which both train alike
        row = table[table["schedule"] == arm].iloc[0]
        assert {name: row[name] for name in expected} == pytest.approx(expected)
    plain = trace(4.0).query("seed == 0 and step == 53")["flipped_own"]
    assert abs(plain / expected["flipped_own"] - 1.0).min() > 0.01
