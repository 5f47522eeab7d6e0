"""Initialisation, data order, gradients and updates, each against what it must be."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from flatminima import model as model_module
from flatminima.errors import Diverged
from flatminima.model import build_model
from flatminima.schedules import Cosine
from flatminima.training import gradients
from flatminima.training.gradients import PLAIN, Compute, next_token_loss
from flatminima.training.loop import Recipe, batch_rows, build_optimizer, train, train_job
from tests.conftest import TINY, TINY_VOCABULARY, assert_equal, weights_of
from tests.oracles import BigramAdamW

RECIPE = Recipe(
    batch_size=4, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0, seed=5
)
WARMED = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=3, total_steps=20)
UNWARMED = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=0, total_steps=20)


def fresh(seed=0):
    model = build_model(TINY, TINY_VOCABULARY, seed)
    return model, build_optimizer(model, RECIPE)


def run(model, optimizer, tokens, *, start, stop, schedule=WARMED, recipe=RECIPE):
    return list(train(model, optimizer, tokens, schedule, recipe, start=start, stop=stop))


# Initialisation


def test_a_fresh_model_is_gaussian_with_the_standard_deviations_of_pythia():
    shape = {"hidden_size": 64, "num_layers": 12, "num_heads": 4, "max_length": 32}
    small = math.sqrt(2 / (5 * 64))
    wang = 2 / (12 * math.sqrt(64))
    model = weights_of(build_model(shape, 4_192, seed=11))
    matrices = {name: w.double().flatten() for name, w in model.items() if w.ndim == 2}
    assert len(matrices) == 50
    for name, w in matrices.items():
        writes = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
        expected = wang if writes else small
        assert w.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * len(w))), name
        assert abs(w.mean().item()) < 5 * expected / math.sqrt(len(w)), name
        fourth = (((w - w.mean()) / w.std()) ** 4).mean().item()
        assert abs(fourth - 3) < 5 * math.sqrt(24 / len(w)), name
    for name, w in model.items():
        if w.ndim < 2:
            assert (w == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name


def test_initial_weights_depend_on_the_seed_alone_and_the_architecture_is_pythias():
    torch.manual_seed(1)
    first = weights_of(build_model(TINY, TINY_VOCABULARY, 3))
    torch.manual_seed(2)
    assert_equal(first, weights_of(build_model(TINY, TINY_VOCABULARY, 3)))
    other = weights_of(build_model(TINY, TINY_VOCABULARY, 4))
    assert all(not torch.equal(first[n], other[n]) for n in first if first[n].ndim == 2)
    shape = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "max_length": 2048}
    with torch.device("meta"):
        model = build_model(shape, 50_304, seed=0)
    expected = {
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "intermediate_size": 3_072,
    }
    assert expected.items() <= model.config.to_dict().items()
    assert 2 * model.gpt_neox.rotary_emb.inv_freq.numel() == 16  # a quarter of 64
    assert model.get_output_embeddings().bias is None


# Data order


@given(st.integers(0, 400), st.integers(1, 30), st.integers(1, 70), st.integers(0, 9))
def test_every_epoch_is_a_permutation_and_batches_straddle(step, sequences, batch_size, seed):
    def rows(s):
        return batch_rows(s, sequences=sequences, batch_size=batch_size, seed=seed)

    # Every row seen from the epoch in which this batch begins to the one in which it ends.
    first, last = step * batch_size // sequences, ((step + 1) * batch_size - 1) // sequences
    begin, end = first * sequences // batch_size, -(-(last + 1) * sequences // batch_size)
    stream = np.concatenate([rows(s) for s in range(begin, end)])
    offset = first * sequences - begin * batch_size
    for epoch in range(last - first + 1):
        part = stream[offset + epoch * sequences : offset + (epoch + 1) * sequences]
        assert sorted(part) == list(range(sequences))
    assert rows(step).shape == (batch_size,)


def test_epochs_and_seeds_have_orders_of_their_own():
    def epoch(number, seed):
        return tuple(batch_rows(number, sequences=50, batch_size=50, seed=seed).tolist())

    orders = [epoch(number, seed) for number in range(5) for seed in range(5)]
    np.random.seed(0)
    assert len(set(orders)) == 25 and epoch(0, 0) == orders[0] != tuple(range(50))


# Gradients


@pytest.fixture
def ids(tiny_tokens):
    return torch.from_numpy(tiny_tokens[:8].astype(np.int64))


def gradient(model, ids, compute=PLAIN, radius=None):
    model.zero_grad(set_to_none=True)
    if radius is None:
        loss = gradients.batch_gradients(model, ids, compute)
    else:
        loss = gradients.sharpness_aware_gradients(model, ids, radius, compute)
    return loss, torch.cat([p.grad.flatten() for p in model.parameters()])


def apart(a, b):
    """Relative distance of two vectors."""
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("micro_batch", [1, 3, None])
def test_gradients_in_pieces_are_those_of_the_whole_batch(
    tiny_model, ids, monkeypatch, micro_batch
):
    """Of sequences, and of logits where those of a batch are too large to be made at once."""
    whole_loss = tiny_model(input_ids=ids, labels=ids).loss
    whole_loss.backward()
    whole = torch.cat([p.grad.flatten() for p in tiny_model.parameters()])
    for size in (None, 1, 7, 10**6):
        if size:
            monkeypatch.setattr(model_module.head_in_pieces, "__defaults__", (100,))
            monkeypatch.setattr(gradients, "PIECE", size * tiny_model.config.vocab_size)
        loss, pieces = gradient(tiny_model, ids, Compute(micro_batch=micro_batch))
        assert loss == pytest.approx(whole_loss.item(), rel=1e-6)
        assert apart(pieces, whole) < 1e-5


def test_other_arithmetic_changes_the_gradient_by_its_rounding(tiny_model, ids):
    """bfloat16 keeps 8 bits: the gradient is off by about 2^-8, never by nothing."""
    loss, exact = gradient(tiny_model, ids)
    rough_loss, rough = gradient(tiny_model, ids, Compute(precision="bf16"))
    assert rough_loss == pytest.approx(loss, rel=1e-3)
    assert 1e-4 < apart(rough, exact) < 3e-2
    assert {p.dtype for p in tiny_model.parameters()} == {torch.float32} == {rough.dtype}
    gradients.set_attention(tiny_model, "eager")
    assert apart(gradient(tiny_model, ids)[1], exact) < 1e-5
    # TF32 is allowed while gradients are computed and no longer.
    seen = []
    matmul = torch.backends.cuda.matmul
    tiny_model.register_forward_hook(lambda *_: seen.append(matmul.allow_tf32))
    for compute in (PLAIN, Compute(tf32=True), PLAIN):
        gradient(tiny_model, ids, compute)
        seen.append(matmul.allow_tf32)
    assert seen == [False, False, True, False, False, False]


def test_the_gradient_is_taken_at_the_worst_point_nearby(monkeypatch):
    """For c x^2 / 2 the point is x + r g / |g| with g = c x, and the gradient there c times it."""
    curvature = torch.tensor([1.0, 4.0])
    bowl = nn.Module()
    bowl.x = nn.Parameter(torch.tensor([3.0, 1.0]))
    monkeypatch.setattr(
        gradients, "next_token_loss", lambda m, ids: (curvature * m.x**2).sum() / 2 + 0 * ids.sum()
    )
    loss = gradients.sharpness_aware_gradients(bowl, torch.zeros(2, 2), 0.5)
    assert loss == pytest.approx((9 + 4) / 2)
    worst = torch.tensor([3.0, 1.0]) + 0.5 * torch.tensor([3.0, 4.0]) / 5
    torch.testing.assert_close(bowl.x.grad, curvature * worst)


def test_sharpness_aware_steps_of_a_model(tiny_model, tiny_tokens, ids):
    before = weights_of(tiny_model)
    loss, plain = gradient(tiny_model, ids)
    same_loss, near = gradient(tiny_model, ids, radius=1e-4)
    _, far = gradient(tiny_model, ids, radius=0.5)
    assert same_loss == loss and apart(near, plain) < 1e-2 < apart(far, plain)
    assert_equal(weights_of(tiny_model), before)  # they return to the bit
    sharp = fresh()
    flat = fresh()
    run(*flat, tiny_tokens, start=0, stop=4)
    run(*sharp, tiny_tokens, start=0, stop=4, recipe=replace(RECIPE, sam_radius=0.05))
    assert not torch.equal(sharp[0].gpt_neox.embed_in.weight, flat[0].gpt_neox.embed_in.weight)


# Updates


def test_steps_0_and_1_hold_the_same_weights_only_under_warm_up(tiny_tokens):
    model, optimizer = fresh()
    initial = weights_of(model)
    ids = tiny_tokens[batch_rows(0, sequences=9, batch_size=4, seed=5)].astype(np.int64)
    loss = next_token_loss(model, torch.from_numpy(ids)).item()
    [update] = run(model, optimizer, tiny_tokens, start=0, stop=1)
    assert (update.step, update.lr, update.loss_nats) == (1, WARMED(0), loss)
    assert_equal(weights_of(model), initial)
    assert any(moments["exp_avg"].abs().max() > 0 for moments in optimizer.state.values())
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=1, schedule=UNWARMED)
    changed = weights_of(model)
    assert all(not torch.equal(changed[n], initial[n]) for n in initial if initial[n].ndim == 2)


class Bigram(nn.Module):
    """Logits that depend on the last token alone, shaped like a language model's output."""

    def __init__(self, table, bias):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table, dtype=torch.float32))
        self.bias = nn.Parameter(torch.tensor(bias, dtype=torch.float32))

    def forward(self, input_ids, use_cache=False):
        return SimpleNamespace(logits=self.table[input_ids] + self.bias)


@pytest.mark.parametrize("clip_norm", [1.0, 0.05], ids=["loose clip", "tight clip"])
def test_training_agrees_with_a_textbook_adamw(clip_norm):
    """Weight decay spares the bias, as the oracle's does."""
    generator = np.random.default_rng(2)
    table = generator.normal(0, 0.3, (6, 6))
    bias = generator.normal(0, 0.3, 6)
    tokens = generator.integers(0, 6, (10, 8)).astype(np.int32)
    recipe = replace(RECIPE, clip_norm=clip_norm)
    model = Bigram(table, bias)
    oracle = BigramAdamW(
        table, bias, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=clip_norm
    )
    _, slopes = oracle.loss_and_gradients(tokens[:4])
    norm = math.sqrt(sum((g**2).sum() for g in slopes.values()))
    assert 0.05 < norm < 1.0  # the two limits lie on either side
    updates = train(model, build_optimizer(model, recipe), tokens, WARMED, recipe, start=0, stop=8)
    for step, update in enumerate(updates):
        rows = batch_rows(step, sequences=10, batch_size=4, seed=5)
        loss = oracle.update(tokens[rows], WARMED(step))
        assert (update.step, update.lr) == (step + 1, WARMED(step))
        assert update.loss_nats == pytest.approx(loss, rel=1e-6)
        for name, expected in oracle.weights.items():
            actual = getattr(model, name).detach().numpy()
            np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
    assert abs(oracle.weights["table"] - table).max() > 0.01


# Divergence


def test_a_loss_or_a_gradient_that_is_not_finite_moves_nothing(tiny_tokens):
    class Steep(Bigram):
        def forward(self, input_ids, use_cache=False):
            return SimpleNamespace(logits=self.table[input_ids] + self.bias.sqrt())

    model, optimizer = fresh()
    with torch.no_grad():
        model.gpt_neox.final_layer_norm.bias.fill_(float("nan"))
    before = weights_of(model)
    with pytest.raises(Diverged, match="at step 7 the loss is nan"):
        run(model, optimizer, tiny_tokens, start=7, stop=20)
    torch.testing.assert_close(weights_of(model), before, rtol=0, atol=0, equal_nan=True)
    model = Steep(np.ones((4, 4)), np.zeros(4))
    tokens = np.array([[0, 1, 2, 2]], np.int32)
    recipe = replace(RECIPE, batch_size=1)
    with pytest.raises(Diverged, match="at step 4 .* norm of the gradient (nan|inf)"):
        run(
            model,
            build_optimizer(model, recipe),
            tokens,
            start=4,
            stop=6,
            schedule=UNWARMED,
            recipe=recipe,
        )
    assert (model.table == 1).all()


@pytest.mark.parametrize("stop", [1, 5], ids=["at the last update", "on the way"])
def test_a_rate_that_is_too_high_ends_in_one_line_with_its_key(tiny_tokens, tmp_path, stop):
    schedule = Cosine(lr_max=1e308, lr_min=0.0, warmup_steps=0, total_steps=20)
    with pytest.raises(Diverged) as caught:
        train_job(
            build_model(TINY, TINY_VOCABULARY, 0),
            tiny_tokens,
            schedule,
            RECIPE,
            start=0,
            stop=stop,
            checkpoints={stop: str(tmp_path / "last")},
            losses=str(tmp_path / "l.csv"),
            workspace=str(tmp_path / "w"),
            save_every=100,
            made_by={},
            key="fork.schedules.oli",
        )
    line = str(caught.value)
    assert "step 1" in line and "loss" in line and "1e+308" in line and "\n" not in line
    assert line.endswith("fork.schedules.oli")
    assert not (tmp_path / "last").exists()


# Dropout


def gpt2(rate: float):
    """A GPT-2 with dropout, the same weights at every call."""
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    rates = {f"{kind}_pdrop": rate for kind in ("attn", "embd", "resid")}
    return GPT2LMHeadModel(GPT2Config(**shape, **rates, summary_first_dropout=0.0))


def test_dropout_changes_no_update_and_a_resumed_job_is_the_same_to_the_bit(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 64, (32, 16)).astype(np.int32)

    def job(name: str, rate: float, stop: int, *, stopped: bool = False) -> dict:
        """Weights of the end; ``stopped`` breaks off after step 6 and goes on."""
        options = {
            "start": 0,
            "stop": stop,
            "checkpoints": {stop: f"{tmp_path}/{name}"},
            "losses": f"{tmp_path}/{name}.csv",
            "workspace": f"{tmp_path}/work-{name}",
            "save_every": 3,
            "made_by": {"code": "x"},
            "provenance": f"{tmp_path}/{name}.json",
        }
        if stopped:
            with pytest.raises(RuntimeError, match="power"):
                train_job(gpt2(rate), tokens, fails_at(7), RECIPE, **options)
        model = gpt2(rate)
        torch.manual_seed(stopped)  # decides what dropout would draw
        train_job(model, tokens, WARMED, RECIPE, **options)
        return weights_of(model)

    def fails_at(step: int):
        def schedule(at: int) -> float:
            if at == step:
                raise RuntimeError("power is lost")
            return WARMED(at)

        return schedule

    plain = job("plain", 0.0, 12)
    dropping = job("dropping", 0.1, 12)
    assert_equal(dropping, plain)
    assert_equal(job("resumed", 0.1, 12, stopped=True), plain)
    dropout_rates = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
    for name, rates in (("plain", None), ("dropping", dropout_rates), ("resumed", dropout_rates)):
        record = json.loads((tmp_path / f"{name}.json").read_text())
        assert record.get("dropout_set_to_zero") == rates
