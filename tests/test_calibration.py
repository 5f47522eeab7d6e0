"""The amplitude from gradient statistics, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from flatminima.files import read_json
from flatminima.forks import calibration
from flatminima.model import build_model, load_tensors, save_model
from flatminima.quantizers import linear_weights, quantized_weights
from flatminima.schedules import Cosine
from flatminima.text.tokens import write_tokens
from flatminima.training.loop import (
    Recipe,
    build_optimizer,
    save_state,
    train,
)
from tests.conftest import TINY, TINY_VOCABULARY, affine
from workflow_scripts import calibrate_amplitude

INT4 = affine(4, "group", False, group_size=8)


def test_steps_of_the_grid_by_hand():
    row = torch.arange(32.0).reshape(2, 16)
    assert calibration.grid_steps(row, INT4).tolist() == pytest.approx([7 / 15] * 4)
    per_channel = affine(4, "channel", False)
    assert calibration.grid_steps(row, per_channel).tolist() == pytest.approx([1.0, 1.0])
    tensor = affine(8, "tensor", True)
    assert calibration.grid_steps(row, tensor).tolist() == pytest.approx([31 / 127])
    remainder = affine(4, "group", False, group_size=12)
    assert len(calibration.grid_steps(row, remainder)) == 4


def test_weights_move_to_the_grid_by_a_quarter_of_its_step_on_average(tiny_model):
    """Ties the grid's step to the quantizer: errors are uniform within half a step."""
    moved = [
        (w - quantized_weights(tiny_model, INT4)[name]).abs().flatten()
        for name, w in linear_weights(tiny_model).items()
    ]
    expected = calibration.mean_grid_step(tiny_model, INT4) / 4
    assert torch.cat(moved).mean().item() == pytest.approx(expected, rel=0.05)


def test_amplitudes_by_hand():
    found = calibration.amplitudes(
        mean_step=0.02, rate=1e-3, bump_steps=5,
        updates={"gradient": 1e-4, "adam_fresh": 1.0, "adam_restored": 0.1},
    )  # fmt: skip
    assert found == pytest.approx(
        {"gradient": 1e5, "adam_fresh": 10.0, "adam_restored": 100.0, "adam_bump": 2.0}
    )


def test_gradient_statistics_agree_with_autograd(tiny_model, tiny_tokens):
    found = calibration.gradient_statistics(
        tiny_model, tiny_tokens, INT4, start=0, batches=1, batch_size=9, eps=1e-3
    )
    ids = torch.from_numpy(tiny_tokens.astype(np.int64))
    tiny_model(input_ids=ids, labels=ids).loss.backward()
    gradients = [p.grad for p in tiny_model.parameters()]
    norm = math.sqrt(sum((g.double() ** 2).sum().item() for g in gradients))
    sizes = torch.cat([w.grad.abs().flatten() for w in linear_weights(tiny_model).values()])
    assert found["global_norm"] == pytest.approx(norm, rel=1e-5)
    assert found["mean_abs"] == pytest.approx(sizes.mean().item(), rel=1e-5)
    assert found["adam_fresh"] == pytest.approx((sizes / (sizes + 1e-3)).mean().item(), rel=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint, its state and the tokens of a few updates."""
    folder = tmp_path_factory.mktemp("calibration")
    tokens = np.random.default_rng(0).integers(0, TINY_VOCABULARY, (30, 16)).astype(np.int32)
    recipe = Recipe(8, weight_decay=0.0, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0)
    model = build_model(TINY, TINY_VOCABULARY, 0)
    optimizer = build_optimizer(model, recipe)
    schedule = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=2, total_steps=40)
    list(train(model, optimizer, tokens, schedule, recipe, start=0, stop=12, seed=0))
    save_state(folder / "state.safetensors", model, optimizer, step=12, fingerprint="", losses=[])
    save_model(model, folder / "step12")
    write_tokens(folder / "train.safetensors", tokens)
    return folder, model, optimizer


def test_the_update_under_restored_moments_is_what_adam_makes(trained):
    """A step of rate 1 with the gradient that the first moment holds moves weights by it."""
    folder, model, optimizer = trained
    state, _ = load_tensors(folder / "state.safetensors")
    names = list(linear_weights(model))
    size = calibration.restored_update(state, names, beta1=0.9, beta2=0.95, eps=1e-8)
    by_hand = []
    for name, w in linear_weights(model).items():
        moments = optimizer.state[w]
        m = moments["exp_avg"].double() / (1 - 0.9**12)
        v = moments["exp_avg_sq"].double() / (1 - 0.95**12)
        by_hand.append((m.abs() / (v.sqrt() + 1e-8)).flatten())
        assert name in names
    assert size == pytest.approx(torch.cat(by_hand).mean().item(), rel=1e-6)
    assert 0 < size < 1


@pytest.mark.parametrize("restored", [True, False])
def test_the_script_says_what_was_assumed(trained, tmp_path, restored):
    folder, *_ = trained
    settings = {
        "quantizer": {"bits": 4, "granularity": "group", "group_size": 8, "symmetric": False},
        "start": 12, "batch_size": 8, "batches": 2, "rate": 5e-3, "bump": 3,
        "training": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8},
    }  # fmt: skip
    calibrate_amplitude.main(
        weights=str(folder / "step12" / "model.safetensors"),
        train=str(folder / "train.safetensors"),
        state=str(folder / "state.safetensors") if restored else None,
        output=str(tmp_path / "calibration.json"), suite="tiny", settings=settings,
        device="cpu", code="abc",
    )  # fmt: skip
    found = read_json(tmp_path / "calibration.json")
    assert found["assumed"] in found["amplitudes"] and found["step"] == 12
    assert ("adam_restored" in found["amplitudes"]) == restored
    half = found["mean_grid_step"] / 2
    for name, update in found["updates_per_unit_rate"].items():
        assert found["amplitudes"][name] == pytest.approx(half / (5e-3 * update))
    assert found["amplitudes"]["gradient"] > 10 * found["amplitudes"]["adam_fresh"]
