"""Gradients in pieces, in bfloat16, at the worst point nearby, and on several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flatminima.model import build_model
from flatminima.schedules import Cosine
from flatminima.training import distributed
from flatminima.training.gradients import (
    PLAIN,
    Compute,
    batch_gradients,
    next_token_loss,
    read_compute,
    set_attention,
    sharpness_aware_gradients,
)
from flatminima.training.loop import Recipe, build_optimizer, train
from tests.conftest import TINY, TINY_VOCABULARY

RECIPE = Recipe(
    batch_size=8, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0
)  # fmt: skip
SCHEDULE = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=3, total_steps=40)
STEPS = 30


@pytest.fixture
def ids(tiny_tokens):
    return torch.from_numpy(tiny_tokens[:8].astype(np.int64))


def gradients(model, ids, compute=PLAIN, radius=None):
    model.zero_grad(set_to_none=True)
    if radius is None:
        loss = batch_gradients(model, ids, compute)
    else:
        loss = sharpness_aware_gradients(model, ids, radius, compute)
    return loss, torch.cat([p.grad.flatten() for p in model.parameters()])


def apart(a, b):
    """Relative distance of two vectors."""
    return ((a - b).norm() / b.norm()).item()


def trajectory(compute=PLAIN, recipe=RECIPE):
    tokens = np.random.default_rng(1).integers(0, TINY_VOCABULARY, (40, 16)).astype(np.int32)
    model = build_model(TINY, TINY_VOCABULARY, seed=0)
    updates = train(
        model, build_optimizer(model, recipe), tokens, SCHEDULE, recipe,
        start=0, stop=STEPS, seed=5, compute=compute,
    )  # fmt: skip
    losses = [update.loss_nats for update in updates]
    return losses, torch.cat([determined(name, p) for name, p in model.named_parameters()])


def determined(name, parameter):
    """The weights that training determines: all but the biases of the attention's keys.

    A bias that all keys share changes no attention outside the rotary dimensions: its gradient
    is zero but for rounding, and Adam makes a step of full size of it.
    """
    w = parameter.detach()
    if name.endswith("query_key_value.bias"):
        w = w.reshape(TINY["num_heads"], 3, -1)[:, [0, 2]]
    return w.flatten()


# Pieces


@pytest.mark.parametrize("micro_batch", [1, 3, 4, 7])
def test_gradients_in_pieces_are_those_of_the_whole_batch(tiny_model, ids, micro_batch):
    whole_loss, whole = gradients(tiny_model, ids)
    loss, pieces = gradients(tiny_model, ids, Compute(micro_batch=micro_batch))
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert apart(pieces, whole) < 1e-5


@pytest.mark.parametrize("micro_batch", [None, 8, 9])
def test_one_piece_is_the_whole_batch_to_the_bit(tiny_model, ids, micro_batch):
    tiny_model.zero_grad(set_to_none=True)
    next_token_loss(tiny_model, ids).backward()
    plain = torch.cat([p.grad.flatten() for p in tiny_model.parameters()])
    _, pieces = gradients(tiny_model, ids, Compute(micro_batch=micro_batch))
    assert torch.equal(plain, pieces)


# Precision


def test_bfloat16_changes_the_gradient_by_its_rounding(tiny_model, ids):
    """bfloat16 keeps 8 bits: the gradient is off by about 2^-8, never by nothing."""
    loss, exact = gradients(tiny_model, ids)
    rough_loss, rough = gradients(tiny_model, ids, Compute(precision="bf16"))
    assert rough_loss == pytest.approx(loss, rel=1e-3)
    assert 1e-4 < apart(rough, exact) < 3e-2
    assert {p.dtype for p in tiny_model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in tiny_model.parameters()} == {torch.float32}


def test_what_bfloat16_does_to_a_training_run(record_property):
    losses, weights = trajectory()
    rough_losses, rough = trajectory(Compute(precision="bf16"))
    difference = max(abs(a - b) for a, b in zip(losses, rough_losses, strict=True))
    record_property("largest difference of the loss, nats", difference)
    assert 0 < difference < 0.02
    assert 1e-4 < apart(rough, weights) < 0.1


def test_measuring_stays_float32_after_training_in_bfloat16(tiny_model, tiny_tokens, ids):
    from flatminima.scoring import score_variants

    before = score_variants(tiny_model, tiny_tokens, {}, batch_size=4)["fp32"].nll_nats
    gradients(tiny_model, ids, Compute(precision="bf16"))
    assert score_variants(tiny_model, tiny_tokens, {}, batch_size=4)["fp32"].nll_nats == before


def test_tf32_is_allowed_while_gradients_are_computed_and_no_longer(tiny_model, ids, monkeypatch):
    from flatminima.training import gradients as module

    seen = []

    def loss_of(model, part):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return next_token_loss(model, part)

    monkeypatch.setattr(module, "next_token_loss", loss_of)
    assert not torch.backends.cuda.matmul.allow_tf32
    for compute in (PLAIN, Compute(tf32=True), PLAIN):
        gradients(tiny_model, ids, compute)
        assert not torch.backends.cuda.matmul.allow_tf32
    assert seen == [False, True, False]


# Attention


def test_transformers_uses_sdpa_and_eager_gives_the_same(tiny_model, ids):
    assert tiny_model.config._attn_implementation == "sdpa", "the default of transformers"
    set_attention(tiny_model, "sdpa")
    _, fused = gradients(tiny_model, ids)
    set_attention(tiny_model, "eager")
    assert tiny_model.config._attn_implementation == "eager"
    _, plain = gradients(tiny_model, ids)
    assert apart(fused, plain) < 1e-5


def test_an_attention_that_is_not_taken_is_an_error(tiny_model, monkeypatch):
    monkeypatch.setattr(tiny_model, "set_attn_implementation", lambda name: None)
    with pytest.raises(ValueError, match="'eager' was asked for, the model uses 'sdpa'"):
        set_attention(tiny_model, "eager")


def test_settings_are_read_with_defaults():
    assert read_compute({}) == PLAIN == Compute("float32", False, None, "sdpa", 1)
    assert read_compute({"precision": "bf16", "processes": 2}).processes == 2
    with pytest.raises(ValueError, match="precision 'fp16': valid: float32, bf16"):
        read_compute({"precision": "fp16"})


# Sharpness-aware minimization


class Bowl(torch.nn.Module):
    """A loss in closed form: the mean of c x^2 / 2, whatever the tokens are."""

    def __init__(self, curvature, at):
        super().__init__()
        self.curvature = torch.tensor(curvature)
        self.x = torch.nn.Parameter(torch.tensor(at))


def test_the_gradient_is_taken_at_the_worst_point_nearby(monkeypatch):
    """For c x^2 / 2 the point is x + r g / |g| with g = c x, and the gradient there c times it."""
    from flatminima.training import gradients as module

    monkeypatch.setattr(
        module, "next_token_loss", lambda m, ids: (m.curvature * m.x**2).sum() / 2 + 0 * ids.sum()
    )
    bowl = Bowl([1.0, 4.0], [3.0, 1.0])
    loss = sharpness_aware_gradients(bowl, torch.zeros(2, 2), 0.5)
    assert loss == pytest.approx((9 + 4) / 2)
    g = torch.tensor([3.0, 4.0])
    worst = torch.tensor([3.0, 1.0]) + 0.5 * g / 5
    torch.testing.assert_close(bowl.x.grad, bowl.curvature * worst)
    assert torch.equal(bowl.x.detach(), torch.tensor([3.0, 1.0])), "weights return to the bit"


def test_sharpness_aware_steps_of_a_model(tiny_model, ids):
    before = [p.detach().clone() for p in tiny_model.parameters()]
    loss, plain = gradients(tiny_model, ids)
    same_loss, near = gradients(tiny_model, ids, radius=1e-4)
    _, far = gradients(tiny_model, ids, radius=0.5)
    assert same_loss == loss
    assert apart(near, plain) < 1e-2 < apart(far, plain)
    assert all(torch.equal(a, p) for a, p in zip(before, tiny_model.parameters(), strict=True))
    _, pieces = gradients(tiny_model, ids, Compute(micro_batch=2), radius=0.5)
    assert apart(pieces, far) < 1e-5


def test_a_recipe_with_a_radius_trains_another_way():
    losses, weights = trajectory()
    other, sharp = trajectory(recipe=Recipe(**{**vars(RECIPE), "sam_radius": 0.05}))
    assert other[0] == losses[0] and apart(sharp, weights) > 1e-3


# Several processes

PROGRAM = """
import json, sys, torch
torch.set_num_threads(1)
from tests.test_gradients import RECIPE, trajectory
from flatminima.training import distributed
from flatminima.training.gradients import Compute
from flatminima.training.loop import Recipe

where = sys.argv[1]
with distributed.process_group("cpu"):
    found = {}
    for name, radius in [("plain", 0.0), ("sam", 0.05)]:
        recipe = Recipe(**{**vars(RECIPE), "sam_radius": radius})
        losses, weights = trajectory(Compute(micro_batch=3), recipe)
        found[name] = {"losses": losses, "weights": weights.tolist()}
    found["world"] = distributed.world_size()
    with open(f"{where}/rank{distributed.rank()}.json", "w") as file:
        json.dump(found, file)
    distributed.wait_for_all()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> list[dict]:
    """What two processes under torchrun, with gloo, came to."""
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1] / "workflow_scripts"),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(program), str(folder)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(("name", "radius"), [("plain", 0.0), ("sam", 0.05)])
def test_two_processes_follow_the_trajectory_of_one(two_processes, name, radius):
    """30 updates: losses within 1e-5 nats, weights within 1e-6 of their norm."""
    assert [found["world"] for found in two_processes] == [2, 2]
    first, second = (found[name] for found in two_processes)
    assert first == second, "both hold the same weights to the bit"
    losses, weights = trajectory(recipe=Recipe(**{**vars(RECIPE), "sam_radius": radius}))
    assert first["losses"] == pytest.approx(losses, abs=1e-5)
    assert apart(torch.tensor(first["weights"]), weights) < 1e-6


def test_alone_a_process_has_all_of_a_batch(ids):
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    assert distributed.is_first()
    assert torch.equal(distributed.share(ids), ids)


def test_a_batch_that_cannot_be_shared_is_an_error(ids, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    with pytest.raises(ValueError, match="8 sequences cannot be shared by 3 processes"):
        distributed.share(ids)


def test_a_job_that_fails_in_its_processes_fails(tmp_path, capsys):
    with pytest.raises(RuntimeError, match="2 processes of no_such_module: exit status 1"):
        distributed.launch("no_such_module", {"a": 1}, tmp_path / "job.json", processes=2)
    assert "no_such_module" in capsys.readouterr().err


# Large vocabularies


def test_a_large_head_is_differentiated_in_pieces(tiny_model, ids, monkeypatch):
    """Logits that are too large to be made at once give the same loss and gradients."""
    from flatminima import model as model_module
    from flatminima.training import gradients as module

    loss, whole = gradients(tiny_model, ids)
    rows = []
    pieces = torch.nn.functional.linear_cross_entropy

    def watched(states, weight, targets, **options):
        rows.append(options["options"].batch_chunk_size)
        return pieces(states, weight, targets, **options)

    monkeypatch.setattr(torch.nn.functional, "linear_cross_entropy", watched)
    monkeypatch.setattr(model_module.head_in_pieces, "__defaults__", (100,))
    for size in (1, 7, 10**6):
        monkeypatch.setattr(module, "PIECE", size * tiny_model.config.vocab_size)
        in_pieces_loss, in_pieces = gradients(tiny_model, ids)
        assert in_pieces_loss == pytest.approx(loss, rel=1e-6)
        assert apart(in_pieces, whole) < 1e-5
    assert rows == [1, 7, 10**6]
    _, split = gradients(tiny_model, ids, Compute(micro_batch=3))
    assert apart(split, whole) < 1e-5
