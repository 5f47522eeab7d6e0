"""Initialisation, data order, gradients, updates and resuming, each against what it must be."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flatminima.errors import Diverged, UserError
from flatminima.model import build_model
from flatminima.schedules import Cosine
from flatminima.training import gradients
from flatminima.training.gradients import PLAIN, Compute, next_token_loss, read_compute
from flatminima.training.loop import (
    Recipe,
    batch_rows,
    build_optimizer,
    train,
    train_series,
)
from flatminima.training.workspace import Workspace, load_state, save_state, state_fingerprint
from tests.conftest import TINY, TINY_VOCABULARY
from tests.oracles import BigramAdamW, excess_kurtosis_of_mixture

RECIPE = Recipe(
    batch_size=4, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0
)  # fmt: skip
WARMED = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=3, total_steps=20)
UNWARMED = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=0, total_steps=20)


def recipe_with(**changes):
    return Recipe(**{**vars(RECIPE), **changes})


def fresh(seed=0, recipe=RECIPE):
    model = build_model(TINY, TINY_VOCABULARY, seed)
    return model, build_optimizer(model, recipe)


def run(model, optimizer, tokens, *, start, stop, schedule=WARMED, recipe=RECIPE, **more):
    updates = train(
        model, optimizer, tokens, schedule, recipe, start=start, stop=stop, seed=5, **more
    )
    return list(updates)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def moments(model, optimizer):
    return {
        (name, key): value.clone()
        for name, p in model.named_parameters()
        for key, value in optimizer.state[p].items()
    }


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key


# Initialisation


@pytest.fixture(scope="module")
def twelve_layers():
    """Pythia-160m's depth at hidden size 64, with the vocabulary in the same proportion.

    Initial kurtosis depends on the depth and on vocabulary : hidden size only
    (50,304 : 768 = 4,192 : 64).
    """
    shape = {"hidden_size": 64, "num_layers": 12, "num_heads": 4, "max_length": 32}
    return weights(build_model(shape, 4_192, seed=11))


def matrices(model, *extra):
    ends = ("query_key_value.weight", "dense.weight", "h_to_4h.weight", "4h_to_h.weight", *extra)
    return {name: w.double().flatten() for name, w in model.items() if name.endswith(ends)}


def excess_kurtosis(sample):
    centred = sample - sample.mean()
    return ((centred**4).mean() / (centred**2).mean() ** 2 - 3).item()


def kurtosis_error(parts):
    """Standard deviation of the excess kurtosis of a sample of the mixture (delta method)."""
    total = sum(count for count, _ in parts)
    mean = {k: sum(count * variance**k for count, variance in parts) / total for k in (1, 2, 3, 4)}
    m2, m4, m6, m8 = mean[1], 3 * mean[2], 15 * mean[3], 105 * mean[4]
    variance = (
        (m8 - m4**2) / m2**4 - 4 * m4 * (m6 - m4 * m2) / m2**5 + 4 * m4**2 * (m4 - m2**2) / m2**6
    )
    return math.sqrt(variance / total)


def pythia_parts(hidden, layers, vocabulary, embeddings):
    """(count, variance) of the matrices with small_init and wang_init."""
    small, wang = 2 / (5 * hidden), 4 / (layers**2 * hidden)
    square = layers * hidden**2
    return [
        (3 * square, small), (1 * square, wang), (4 * square, small), (4 * square, wang),
        (embeddings * vocabulary * hidden, small),
    ]  # fmt: skip


def test_standard_deviations_of_a_fresh_model(twelve_layers):
    small, wang = math.sqrt(2 / (5 * 64)), 2 / (12 * math.sqrt(64))
    selected = matrices(twelve_layers, "embed_in.weight", "embed_out.weight", "lm_head.weight")
    assert len(selected) == 50
    for name, w in selected.items():
        writes = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
        expected = wang if writes else small
        assert w.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * len(w))), name
        assert abs(w.mean().item()) < 5 * expected / math.sqrt(len(w)), name
        if not name.startswith(("gpt_neox.embed_in", "embed_out", "lm_head")):
            assert abs(excess_kurtosis(w)) < 5 * math.sqrt(24 / len(w)), f"{name} is Gaussian"
    for name, w in twelve_layers.items():
        if w.ndim < 2:
            assert (w == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name


@pytest.mark.parametrize(("embeddings", "pooled"), [(0, 1.684), (1, 0.987), (2, 0.698)])
def test_pooled_initial_kurtosis(twelve_layers, embeddings, pooled):
    """Closed form at Pythia's shape, and a sample from ``build_model`` at the small one."""
    exact = excess_kurtosis_of_mixture(pythia_parts(768, 12, 50_304, embeddings))
    assert exact == pytest.approx(pooled, abs=0.0005)
    small = pythia_parts(64, 12, 4_192, embeddings)
    assert excess_kurtosis_of_mixture(small) == pytest.approx(exact, rel=1e-12)
    extra = [(), ("embed_out.weight", "lm_head.weight")][min(embeddings, 1)]
    extra += ("embed_in.weight",) if embeddings == 2 else ()
    sample = torch.cat(list(matrices(twelve_layers, *extra).values()))
    assert len(sample) == sum(count for count, _ in small)
    tolerance = 4 * kurtosis_error(small)
    assert tolerance < 0.08
    assert excess_kurtosis(sample) == pytest.approx(exact, abs=tolerance)


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = weights(build_model(TINY, TINY_VOCABULARY, 3))
    torch.manual_seed(2)
    assert_equal(first, weights(build_model(TINY, TINY_VOCABULARY, 3)))
    other = weights(build_model(TINY, TINY_VOCABULARY, 4))
    assert all(not torch.equal(first[n], other[n]) for n in first if first[n].ndim == 2)


def test_architecture_is_pythias():
    shape = {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "max_length": 2048}
    with torch.device("meta"):
        model = build_model(shape, 50_304, seed=0)
    config = model.config
    assert config.use_parallel_residual and not config.tie_word_embeddings
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu", 1e-5)
    assert (config.hidden_dropout, config.attention_dropout) == (0.0, 0.0)
    assert config.intermediate_size == 3_072
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


def test_the_loss_is_that_of_transformers_itself(tiny_model, ids):
    expected = tiny_model(input_ids=ids, labels=ids).loss.item()
    assert next_token_loss(tiny_model, ids).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("micro_batch", [1, 3, 7, 8, None])
def test_gradients_in_pieces_are_those_of_the_whole_batch(tiny_model, ids, micro_batch):
    tiny_model.zero_grad(set_to_none=True)
    whole_loss = next_token_loss(tiny_model, ids)
    whole_loss.backward()
    whole = torch.cat([p.grad.flatten() for p in tiny_model.parameters()])
    loss, pieces = gradient(tiny_model, ids, Compute(micro_batch=micro_batch))
    assert loss == pytest.approx(whole_loss.item(), rel=1e-6)
    assert apart(pieces, whole) < 1e-5
    if micro_batch in (8, None):
        assert torch.equal(pieces, whole)


def test_a_large_head_is_differentiated_in_pieces(tiny_model, ids, monkeypatch):
    """Logits that are too large to be made at once give the same loss and gradients."""
    from flatminima import model as model_module

    loss, whole = gradient(tiny_model, ids)
    monkeypatch.setattr(model_module.head_in_pieces, "__defaults__", (100,))
    for size in (1, 7, 10**6):
        monkeypatch.setattr(gradients, "PIECE", size * tiny_model.config.vocab_size)
        in_pieces_loss, in_pieces = gradient(tiny_model, ids, Compute(micro_batch=3))
        assert in_pieces_loss == pytest.approx(loss, rel=1e-6)
        assert apart(in_pieces, whole) < 1e-5


def test_bfloat16_changes_the_gradient_by_its_rounding(tiny_model, ids):
    """bfloat16 keeps 8 bits: the gradient is off by about 2^-8, never by nothing."""
    loss, exact = gradient(tiny_model, ids)
    rough_loss, rough = gradient(tiny_model, ids, Compute(precision="bf16"))
    assert rough_loss == pytest.approx(loss, rel=1e-3)
    assert 1e-4 < apart(rough, exact) < 3e-2
    assert {p.dtype for p in tiny_model.parameters()} == {torch.float32} == {rough.dtype}


def test_tf32_is_allowed_while_gradients_are_computed_and_no_longer(tiny_model, ids, monkeypatch):
    seen = []

    def loss_of(model, part):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return next_token_loss(model, part)

    monkeypatch.setattr(gradients, "next_token_loss", loss_of)
    torch.backends.cuda.matmul.allow_tf32 = False
    for compute in (PLAIN, Compute(tf32=True), PLAIN):
        gradient(tiny_model, ids, compute)
        assert not torch.backends.cuda.matmul.allow_tf32
    assert seen == [False, True, False]


def test_eager_attention_gives_the_same_and_one_that_is_not_taken_is_an_error(
    tiny_model, ids, monkeypatch
):
    found = []
    for attention in ("sdpa", "eager"):
        gradients.set_attention(tiny_model, attention)
        assert tiny_model.config._attn_implementation == attention
        found.append(gradient(tiny_model, ids)[1])
    assert apart(*found) < 1e-5
    monkeypatch.setattr(tiny_model, "set_attn_implementation", lambda name: None)
    with pytest.raises(ValueError, match="sdpa"):
        gradients.set_attention(tiny_model, "sdpa")


def test_settings_are_read_with_defaults():
    assert read_compute({}) == PLAIN == Compute("float32", False, None, "sdpa")
    with pytest.raises(ValueError, match="fp16"):
        read_compute({"precision": "fp16"})


class Bowl(nn.Module):
    """A loss in closed form: the mean of c x^2 / 2, whatever the tokens are."""

    def __init__(self, curvature, at):
        super().__init__()
        self.curvature = torch.tensor(curvature)
        self.x = nn.Parameter(torch.tensor(at))


def test_the_gradient_is_taken_at_the_worst_point_nearby(monkeypatch):
    """For c x^2 / 2 the point is x + r g / |g| with g = c x, and the gradient there c times it."""
    monkeypatch.setattr(
        gradients, "next_token_loss",
        lambda m, ids: (m.curvature * m.x**2).sum() / 2 + 0 * ids.sum(),
    )  # fmt: skip
    bowl = Bowl([1.0, 4.0], [3.0, 1.0])
    loss = gradients.sharpness_aware_gradients(bowl, torch.zeros(2, 2), 0.5)
    assert loss == pytest.approx((9 + 4) / 2)
    worst = torch.tensor([3.0, 1.0]) + 0.5 * torch.tensor([3.0, 4.0]) / 5
    torch.testing.assert_close(bowl.x.grad, bowl.curvature * worst)
    assert torch.equal(bowl.x.detach(), torch.tensor([3.0, 1.0])), "weights return to the bit"


def test_sharpness_aware_steps_of_a_model(tiny_model, tiny_tokens, ids):
    before = weights(tiny_model)
    loss, plain = gradient(tiny_model, ids)
    same_loss, near = gradient(tiny_model, ids, radius=1e-4)
    _, far = gradient(tiny_model, ids, radius=0.5)
    assert same_loss == loss
    assert apart(near, plain) < 1e-2 < apart(far, plain)
    assert_equal(weights(tiny_model), before)
    sharp, flat = fresh(), fresh()
    run(*flat, tiny_tokens, start=0, stop=4)
    run(*sharp, tiny_tokens, start=0, stop=4, recipe=recipe_with(sam_radius=0.05))
    assert any(
        not torch.equal(a, b)
        for a, b in zip(weights(sharp[0]).values(), weights(flat[0]).values(), strict=True)
    )


# Updates


def test_updates_say_where_they_led_and_the_loss_before_them(tiny_tokens):
    model, optimizer = fresh()
    rows = batch_rows(0, sequences=9, batch_size=4, seed=5)
    ids = torch.from_numpy(tiny_tokens[rows].astype(np.int64))
    before = next_token_loss(model, ids).item()
    updates = run(model, optimizer, tiny_tokens, start=0, stop=5)
    assert [(u.step, u.lr) for u in updates] == [(s + 1, WARMED(s)) for s in range(5)]
    assert updates[0].loss_nats == before


def test_steps_0_and_1_hold_the_same_weights_only_under_warm_up(tiny_tokens):
    model, optimizer = fresh()
    initial = weights(model)
    run(model, optimizer, tiny_tokens, start=0, stop=1)
    assert_equal(weights(model), initial)
    assert any(value.abs().max() > 0 for value in moments(model, optimizer).values())
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=1, schedule=UNWARMED)
    changed = weights(model)
    assert all(not torch.equal(changed[n], initial[n]) for n in initial if initial[n].ndim == 2)


def test_weight_decay_spares_biases_and_norms(tiny_tokens):
    """One update from the same weights: the gradients are equal, only the decay differs."""
    results = {}
    for decay in (0.0, 0.5):
        recipe = recipe_with(weight_decay=decay)
        model, optimizer = fresh(recipe=recipe)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)  # biases would decay from 0 to 0
        initial = weights(model)
        run(model, optimizer, tiny_tokens, start=0, stop=1, schedule=UNWARMED, recipe=recipe)
        results[decay] = weights(model)
    for name, w in initial.items():
        plain, decayed = results[0.0][name], results[0.5][name]
        if w.ndim == 1:
            assert torch.equal(plain, decayed), name
        else:
            torch.testing.assert_close(plain - decayed, 1e-2 * 0.5 * w, rtol=1e-3, atol=1e-7)


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
    generator = np.random.default_rng(2)
    table, bias = generator.normal(0, 0.3, (6, 6)), generator.normal(0, 0.3, 6)
    tokens = generator.integers(0, 6, (10, 8)).astype(np.int32)
    recipe = recipe_with(clip_norm=clip_norm)
    model = Bigram(table, bias)
    oracle = BigramAdamW(
        table, bias, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=clip_norm
    )
    _, slopes = oracle.loss_and_gradients(tokens[:4])
    norm = math.sqrt(sum((g**2).sum() for g in slopes.values()))
    assert 0.05 < norm < 1.0  # the two limits lie on either side
    updates = train(
        model, build_optimizer(model, recipe), tokens, WARMED, recipe, start=0, stop=8, seed=5
    )
    for update in updates:
        step = update.step - 1
        rows = batch_rows(step, sequences=10, batch_size=4, seed=5)
        loss = oracle.update(tokens[rows], WARMED(step))
        assert update.loss_nats == pytest.approx(loss, rel=1e-6)
        for name, expected in oracle.weights.items():
            actual = getattr(model, name).detach().numpy()
            np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
    assert abs(oracle.weights["table"] - table).max() > 0.01


def test_losses_fall_on_a_trivial_text():
    tokens = np.tile(np.arange(16, dtype=np.int32), (8, 1))
    schedule = Cosine(lr_max=2e-2, lr_min=2e-3, warmup_steps=2, total_steps=60)
    losses = [u.loss_nats for u in run(*fresh(), tokens, start=0, stop=60, schedule=schedule)]
    assert losses[0] == pytest.approx(math.log(64) + 0.2, abs=0.5)
    assert losses[-1] < 0.1


# Divergence


def test_a_loss_that_is_not_finite_moves_nothing(tiny_tokens):
    model, optimizer = fresh()
    with torch.no_grad():
        model.gpt_neox.final_layer_norm.bias[0] = float("nan")
    before = weights(model)
    with pytest.raises(Diverged, match="at step 7 the loss is nan"):
        run(model, optimizer, tiny_tokens, start=7, stop=20)
    after = weights(model)
    for name, w in before.items():
        assert torch.equal(after[name], w) or name.endswith("final_layer_norm.bias")


def test_a_gradient_that_is_not_finite_moves_nothing():
    class Steep(Bigram):
        def forward(self, input_ids, use_cache=False):
            return SimpleNamespace(logits=self.table[input_ids] + self.bias.sqrt())

    model = Steep(np.ones((4, 4)), np.zeros(4))
    tokens = np.array([[0, 1, 2, 2]], np.int32)
    recipe = recipe_with(batch_size=1)
    updates = train(
        model, build_optimizer(model, recipe), tokens, UNWARMED, recipe, start=4, stop=6, seed=0
    )
    with pytest.raises(Diverged, match="at step 4 .* norm of the gradient (nan|inf)"):
        next(updates)
    assert (model.table == 1).all()


@pytest.mark.parametrize("stop", [1, 5], ids=["at the last update", "on the way"])
def test_a_rate_that_is_too_high_ends_in_one_line_with_its_key(tiny_tokens, tmp_path, stop):
    schedule = Cosine(lr_max=1e308, lr_min=0.0, warmup_steps=0, total_steps=20)
    with Workspace(tmp_path / "w", "", 100) as workspace, pytest.raises(UserError) as caught:
        train_series(
            build_model(TINY, TINY_VOCABULARY, 0), tiny_tokens, schedule, RECIPE, start=0,
            stop=stop, seed=0, checkpoints={stop: str(tmp_path / "last")}, workspace=workspace,
            key="fork.schedules.oli",
        )  # fmt: skip
    line = str(caught.value)
    assert "step 1" in line and "loss" in line and "1e+308" in line and "\n" not in line
    assert line.endswith("fork.schedules.oli")
    assert not (tmp_path / "last").exists()


# Stopping and resuming


@pytest.mark.parametrize("kill", [0, 1, 2, 5, 9, 10])
def test_resumed_runs_end_bit_identical(tiny_tokens, tmp_path, kill):
    """Nine sequences in batches of four: some kills fall within an epoch, some between two."""
    model, optimizer = fresh()
    whole = run(model, optimizer, tiny_tokens, start=0, stop=10)

    killed, its_optimizer = fresh()
    first = run(killed, its_optimizer, tiny_tokens, start=0, stop=kill)
    losses = [u.loss_nats for u in first]
    path = tmp_path / "state.safetensors"
    save_state(path, killed, its_optimizer, step=kill, fingerprint="abc", losses=losses)
    assert state_fingerprint(path) == "abc"

    resumed, new_optimizer = fresh(seed=99)
    assert load_state(path, resumed, new_optimizer) == (kill, losses)
    # The loaded moments must not live in the file that the next state replaces.
    save_state(path, *fresh(seed=7), step=0, fingerprint="", losses=[])
    second = run(resumed, new_optimizer, tiny_tokens, start=kill, stop=10)
    assert first + second == whole
    assert_equal(weights(resumed), weights(model))
    assert_equal(moments(resumed, new_optimizer), moments(model, optimizer))


def test_resuming_without_the_moments_would_not_be_the_same(tiny_tokens):
    """Guards the test above: it would notice moments that are lost."""
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=10)
    other, its_optimizer = fresh()
    run(other, its_optimizer, tiny_tokens, start=0, stop=5)
    run(other, build_optimizer(other, RECIPE), tiny_tokens, start=5, stop=10)
    assert any(not torch.equal(a, b) for a, b in zip(
        weights(model).values(), weights(other).values(), strict=True))  # fmt: skip


def test_a_state_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    assert state_fingerprint(path) is None
    save_state(path, *fresh(), step=0, fingerprint="", losses=[])
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    for change in ({"hidden_size": 32}, {"num_layers": 3}):
        other = build_model({**TINY, **change}, TINY_VOCABULARY, 0)
        with pytest.raises((RuntimeError, KeyError)):
            load_state(path, other, build_optimizer(other, RECIPE))
