"""Initialisation, data order, updates and resuming, each against what it must be."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flatminima.model import build_model
from flatminima.schedules import Cosine
from flatminima.scoring import score_variants
from flatminima.training.loop import (
    Recipe,
    Update,
    batch_rows,
    build_optimizer,
    load_state,
    next_token_loss,
    save_state,
    state_fingerprint,
    train,
)
from tests.conftest import TINY, TINY_VOCABULARY
from tests.oracles import BigramAdamW, excess_kurtosis_of_mixture

RECIPE = Recipe(
    batch_size=4, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=1.0
)  # fmt: skip
WARMED = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=3, total_steps=20)
UNWARMED = Cosine(lr_max=1e-2, lr_min=1e-3, warmup_steps=0, total_steps=20)


def fresh(seed=0, recipe=RECIPE):
    model = build_model(TINY, TINY_VOCABULARY, seed)
    return model, build_optimizer(model, recipe)


def run(model, optimizer, tokens, *, start, stop, schedule=WARMED, recipe=RECIPE):
    updates = train(
        model, optimizer, tokens, schedule, recipe, start=start, stop=stop, seed=5
    )  # fmt: skip
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

SMALL, WANG = "small_init", "wang_init"


def kind(name):
    return WANG if name.endswith(("attention.dense.weight", "dense_4h_to_h.weight")) else SMALL


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


def test_standard_deviations_of_pythia_160m():
    [(_, small), (_, wang), *_] = pythia_parts(768, 12, 50_304, 0)
    assert math.sqrt(small) == pytest.approx(0.02282, abs=5e-6)
    assert math.sqrt(wang) == pytest.approx(0.006014, abs=5e-7)


def test_standard_deviations_of_a_fresh_model(twelve_layers):
    expected = {SMALL: math.sqrt(2 / (5 * 64)), WANG: 2 / (12 * math.sqrt(64))}
    selected = matrices(twelve_layers, "embed_in.weight", "embed_out.weight", "lm_head.weight")
    assert len(selected) == 50
    for name, w in selected.items():
        tolerance = 5 / math.sqrt(2 * len(w))
        assert w.std().item() == pytest.approx(expected[kind(name)], rel=tolerance), name
        assert abs(w.mean().item()) < 5 * expected[kind(name)] / math.sqrt(len(w)), name
    for name, w in twelve_layers.items():
        if w.ndim < 2:
            value = 1.0 if name.endswith("norm.weight") else 0.0
            assert (w == value).all(), name


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


def test_each_fresh_tensor_is_gaussian(twelve_layers):
    """The excess kurtosis of n Gaussian numbers is 0 with a deviation of sqrt(24 / n)."""
    found = {name: excess_kurtosis(w) for name, w in matrices(twelve_layers).items()}
    assert len(found) == 48
    deviation = {name: math.sqrt(24 / twelve_layers[name].numel()) for name in found}
    assert all(abs(found[name]) < 5 * deviation[name] for name in found)
    mean = sum(found.values()) / 48
    assert abs(mean) < 4 * math.sqrt(sum(d**2 for d in deviation.values())) / 48


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
    assert config.use_parallel_residual
    assert not config.tie_word_embeddings
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


def test_data_order_is_a_pure_function():
    arguments = {"sequences": 100, "batch_size": 16, "seed": 3}
    forwards = [batch_rows(s, **arguments).tolist() for s in range(30)]
    np.random.seed(0)
    backwards = [batch_rows(s, **arguments).tolist() for s in reversed(range(30))]
    assert forwards == backwards[::-1]


def test_epochs_and_seeds_have_orders_of_their_own():
    def epoch(number, seed):
        return batch_rows(number, sequences=50, batch_size=50, seed=seed).tolist()

    orders = {tuple(epoch(number, seed)) for number in range(5) for seed in range(5)}
    assert len(orders) == 25
    assert epoch(0, 0) != list(range(50))


# Updates


def test_loss_is_the_mean_over_t_minus_one_tokens(tiny_model, tiny_tokens):
    ids = torch.from_numpy(tiny_tokens.astype(np.int64))
    record = score_variants(tiny_model, tiny_tokens, {}, batch_size=3)["fp32"]
    assert next_token_loss(tiny_model, ids).item() == pytest.approx(record.mean_nll(), rel=1e-6)


def test_updates_say_where_they_led(tiny_tokens):
    updates = run(*fresh(), tiny_tokens, start=0, stop=5)
    assert [u.step for u in updates] == [1, 2, 3, 4, 5]
    assert [u.lr for u in updates] == [WARMED(s) for s in range(5)]
    assert all(isinstance(u, Update) and math.isfinite(u.loss_nats) for u in updates)


def test_loss_of_an_update_is_the_loss_before_it(tiny_tokens):
    model, optimizer = fresh()
    rows = batch_rows(0, sequences=9, batch_size=4, seed=5)
    ids = torch.from_numpy(tiny_tokens[rows].astype(np.int64))
    before = next_token_loss(model, ids).item()
    [update] = run(model, optimizer, tiny_tokens, start=0, stop=1, schedule=UNWARMED)
    assert update.loss_nats == before != next_token_loss(model, ids).item()


def test_steps_0_and_1_hold_the_same_weights_only_under_warm_up(tiny_tokens):
    model, optimizer = fresh()
    initial = weights(model)
    run(model, optimizer, tiny_tokens, start=0, stop=1)
    assert_equal(weights(model), initial)
    assert any(value.abs().max() > 0 for value in moments(model, optimizer).values())
    run(model, optimizer, tiny_tokens, start=1, stop=2)
    assert not torch.equal(weights(model)["gpt_neox.embed_in.weight"],
                           initial["gpt_neox.embed_in.weight"])  # fmt: skip
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=1, schedule=UNWARMED)
    changed = weights(model)
    assert all(not torch.equal(changed[n], initial[n]) for n in initial if initial[n].ndim == 2)


def test_weight_decay_spares_biases_and_norms(tiny_tokens):
    """One update from the same weights: the gradients are equal, only the decay differs."""
    results = {}
    for decay in (0.0, 0.5):
        recipe = Recipe(**{**vars(RECIPE), "weight_decay": decay})
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
    recipe = Recipe(**{**vars(RECIPE), "clip_norm": clip_norm})
    model = Bigram(table, bias)
    oracle = BigramAdamW(
        table, bias, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=clip_norm
    )
    _, gradients = oracle.loss_and_gradients(tokens[:4])
    norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
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
    updates = run(*fresh(), tokens, start=0, stop=60, schedule=schedule)
    losses = [u.loss_nats for u in updates]
    assert losses[0] == pytest.approx(math.log(64) + 0.2, abs=0.5)
    assert losses[-1] < 0.1
    assert np.mean(losses[:10]) > np.mean(losses[10:20]) > np.mean(losses[20:40])


@pytest.mark.parametrize("start", [0, 7])
def test_a_loss_that_is_not_finite_names_the_step_and_moves_nothing(tiny_tokens, start):
    model, optimizer = fresh()
    with torch.no_grad():
        model.gpt_neox.final_layer_norm.bias[0] = float("nan")
    before = weights(model)
    with pytest.raises(FloatingPointError, match=f"training loss at step {start} is nan"):
        run(model, optimizer, tiny_tokens, start=start, stop=20)
    after = weights(model)
    for name, w in before.items():
        assert torch.equal(after[name], w) or name.endswith("final_layer_norm.bias")


def test_a_gradient_that_is_not_finite_names_the_step_and_moves_nothing():
    class Steep(Bigram):
        def forward(self, input_ids, use_cache=False):
            return SimpleNamespace(logits=self.table[input_ids] + self.bias.sqrt())

    model = Steep(np.ones((4, 4)), np.zeros(4))
    tokens = np.array([[0, 1, 2, 2]], np.int32)
    recipe = Recipe(**{**vars(RECIPE), "batch_size": 1})
    updates = train(
        model, build_optimizer(model, recipe), tokens, UNWARMED, recipe, start=4, stop=6, seed=0
    )
    with pytest.raises(FloatingPointError, match="gradient norm at step 4 is (nan|inf)"):
        next(updates)
    assert (model.table == 1).all()


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
    del killed, its_optimizer

    resumed, new_optimizer = fresh(seed=99)
    torch.manual_seed(kill)
    step, losses_before = load_state(path, resumed, new_optimizer)
    assert (step, losses_before) == (kill, losses)
    second = run(resumed, new_optimizer, tiny_tokens, start=step, stop=10)
    assert first + second == whole
    assert_equal(weights(resumed), weights(model))
    assert_equal(moments(resumed, new_optimizer), moments(model, optimizer))


def test_resuming_twice_and_overwriting_the_state_in_between(tiny_tokens, tmp_path):
    """The loaded moments must not live in the file that the next state replaces."""
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=9)
    path = tmp_path / "state.safetensors"
    start = 0
    for stop in (3, 6, 9):
        part, its_optimizer = fresh(seed=stop)
        if start:
            load_state(path, part, its_optimizer)
        else:
            part, its_optimizer = fresh()
        for update in train(
            part, its_optimizer, tiny_tokens, WARMED, RECIPE, start=start, stop=stop, seed=5
        ):
            save_state(
                path, part, its_optimizer, step=update.step, fingerprint="", losses=[]
            )  # fmt: skip
        start = stop
    assert_equal(weights(part), weights(model))
    assert_equal(moments(part, its_optimizer), moments(model, optimizer))


def test_resuming_without_the_moments_would_not_be_the_same(tiny_tokens):
    """Guards the tests above: they would notice moments that are lost."""
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=10)
    other, its_optimizer = fresh()
    run(other, its_optimizer, tiny_tokens, start=0, stop=5)
    run(other, build_optimizer(other, RECIPE), tiny_tokens, start=5, stop=10)
    assert any(not torch.equal(a, b) for a, b in zip(
        weights(model).values(), weights(other).values(), strict=True))  # fmt: skip


def test_probing_between_updates_changes_nothing(tiny_tokens):
    model, optimizer = fresh()
    run(model, optimizer, tiny_tokens, start=0, stop=6)
    probed, its_optimizer = fresh()
    for _ in train(
        probed, its_optimizer, tiny_tokens, WARMED, RECIPE, start=0, stop=6, seed=5
    ):  # fmt: skip
        score_variants(probed, tiny_tokens, {}, batch_size=4)
    assert_equal(weights(probed), weights(model))


def test_fingerprint_of_a_state(tmp_path):
    model, optimizer = fresh()
    path = tmp_path / "state.safetensors"
    assert state_fingerprint(path) is None
    save_state(path, model, optimizer, step=0, fingerprint="settings 1", losses=[])
    assert state_fingerprint(path) == "settings 1"
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_state_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    save_state(path, *fresh(), step=0, fingerprint="", losses=[])
    larger = build_model({**TINY, "hidden_size": 32}, TINY_VOCABULARY, 0)
    with pytest.raises(RuntimeError):
        load_state(path, larger, build_optimizer(larger, RECIPE))
    deeper = build_model({**TINY, "num_layers": 3}, TINY_VOCABULARY, 0)
    with pytest.raises(KeyError):
        load_state(path, deeper, build_optimizer(deeper, RECIPE))
