"""Scores against a per-token oracle in plain loops, and what must not be scored."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flatminima.evaluation import SequenceScores, _kl_divergence, batches, score
from flatminima.numerics import assert_float32, prepare_backend
from flatminima.quantizers import QuantizerSpec, quantized_weights
from flatminima.roles import FP32
from flatminima.training.loop import build_model
from tests.oracles import log_softmax, token_scores

SPECS = {
    "rtn_int4": QuantizerSpec(4, "group", symmetric=False, group_size=8),
    "rtn_int3": QuantizerSpec(3, "tensor", symmetric=True),
    "rtn_int8": QuantizerSpec(8, "channel", symmetric=True, layers="blocks+head"),
}


@pytest.fixture(autouse=True)
def backend():
    prepare_backend()
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def variants(tiny_model):
    return {name: quantized_weights(tiny_model, spec) for name, spec in SPECS.items()}


def logits_of(model, weights, sequence):
    """Logits of one sequence from a copy of the model that really holds ``weights``."""
    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
        ids = torch.from_numpy(sequence.astype(np.int64))[None]
        return model(input_ids=ids).logits[0].numpy()


def test_scores_agree_with_the_per_token_oracle(tiny_model, tiny_tokens, variants):
    scores = score(tiny_model, tiny_tokens, variants, batch_size=4)
    assert list(scores) == [FP32, *variants]
    for name, record in scores.items():
        expected = []
        for sequence in tiny_tokens:
            reference = logits_of(tiny_model, {}, sequence)
            logits = logits_of(tiny_model, variants.get(name, {}), sequence)
            expected.append(token_scores(reference, logits, sequence))
        nll = [math.fsum(t[0] for t in tokens) for tokens in expected]
        kl = [math.fsum(t[1] for t in tokens) for tokens in expected]
        np.testing.assert_allclose(record.nll_nats, nll, rtol=1e-6)
        np.testing.assert_allclose(record.kl_nats, kl, rtol=1e-4, atol=1e-9)
        assert record.top1_changed == [sum(t[2] for t in tokens) for tokens in expected]
        assert record.scored == [15] * 9
        assert record.mean_nll() == pytest.approx(sum(nll) / (9 * 15), rel=1e-6)


def test_quantizing_changes_what_it_should(tiny_model, tiny_tokens, variants):
    """Guards the test above against variants that do nothing."""
    scores = score(tiny_model, tiny_tokens, variants, batch_size=9)
    assert sum(scores["rtn_int3"].top1_changed) > 0
    kl = {name: sum(record.kl_nats) for name, record in scores.items()}
    assert kl["rtn_int3"] > kl["rtn_int4"] > kl["rtn_int8"] > kl[FP32] == 0.0


@pytest.mark.parametrize("length", [2, 3, 16])
def test_a_sequence_of_t_tokens_scores_t_minus_one(tiny_model, tiny_tokens, length):
    record = score(tiny_model, tiny_tokens[:, :length], {}, batch_size=4)[FP32]
    assert record.scored == [length - 1] * 9


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8, 100])
def test_batch_size_and_ragged_last_batches_change_nothing(
    tiny_model, tiny_tokens, variants, batch_size
):
    """Nine sequences: all sizes but 1 and 9 leave a last batch that is not full."""
    one = score(tiny_model, tiny_tokens, variants, batch_size=9)
    other = score(tiny_model, tiny_tokens, variants, batch_size=batch_size)
    for name in one:
        np.testing.assert_allclose(other[name].nll_nats, one[name].nll_nats, rtol=1e-6)
        np.testing.assert_allclose(other[name].kl_nats, one[name].kl_nats, rtol=1e-4, atol=1e-9)
        assert other[name].top1_changed == one[name].top1_changed
        assert other[name].scored == one[name].scored
        assert other[name].mean_nll() == pytest.approx(one[name].mean_nll(), rel=1e-6)


def test_the_mean_weighs_tokens_and_not_sequences():
    scores = SequenceScores(nll_nats=[10.0, 1.0], scored=[2, 8])
    assert scores.mean_nll() == pytest.approx(11 / 10)


def test_a_sequence_scores_the_same_in_any_company(tiny_model, tiny_tokens):
    together = score(tiny_model, tiny_tokens, {}, batch_size=9)[FP32]
    reversed_order = score(tiny_model, tiny_tokens[::-1], {}, batch_size=4)[FP32]
    np.testing.assert_allclose(reversed_order.nll_nats[::-1], together.nll_nats, rtol=1e-6)


def test_tokens_after_a_position_do_not_change_its_score(tiny_model, tiny_tokens):
    changed = tiny_tokens.copy()
    changed[:, 8:] = (changed[:, 8:] + 1) % 64
    prefix = [score(tiny_model, t[:, :8], {}, batch_size=9)[FP32] for t in (tiny_tokens, changed)]
    whole = [score(tiny_model, t, {}, batch_size=9)[FP32] for t in (tiny_tokens, changed)]
    assert prefix[0].nll_nats == prefix[1].nll_nats
    assert whole[0].nll_nats != whole[1].nll_nats


# KL divergence


def test_an_identical_variant_has_no_divergence(tiny_model, tiny_tokens):
    same = {name: p.detach().clone() for name, p in tiny_model.named_parameters()}
    scores = score(tiny_model, tiny_tokens, {"same": same, "empty": {}}, batch_size=4)
    for name in ("same", "empty"):
        assert scores[name].nll_nats == scores[FP32].nll_nats
        assert scores[name].kl_nats == [0.0] * 9
        assert scores[name].top1_changed == [0.0] * 9


def test_divergence_of_a_nearly_identical_variant_is_not_negative(tiny_model, tiny_tokens):
    """The textbook's sum in float32 gives about -7e-7 for some of these sequences."""
    name = "gpt_neox.layers.0.attention.dense.weight"
    weight = dict(tiny_model.named_parameters())[name].detach() * (1 + 1e-6)
    kl = score(tiny_model, tiny_tokens, {"near": {name: weight}}, batch_size=4)["near"].kl_nats
    assert min(kl) >= 0.0
    assert max(kl) < 1e-9


@given(
    st.integers(0, 10_000),
    st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 10.0, 300.0]),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0, 300.0]),
)
def test_divergence_agrees_with_float64_at_every_distance(seed, spread, distance):
    """Distances of 300 logits make probabilities underflow on either side."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(1, 3, 50, generator=generator)
    other = logits + distance * torch.randn(1, 3, 50, generator=generator)
    p, q = (torch.log_softmax(x, dim=-1) for x in (logits, other))
    divergence = _kl_divergence(p, q, p.exp())[0]
    assert torch.isfinite(divergence).all()
    assert (divergence >= 0).all()
    for row in range(3):
        exact = [log_softmax(x[0, row]) for x in (logits, other)]
        kl = math.fsum(math.exp(a) * (a - b) for a, b in zip(*exact, strict=True))
        kl = max(kl, 0.0)  # float64 rounds as well, at 1e-17
        # Log-probabilities are known to 2^-24 of the logits' size; an error e in d moves
        # the sum of p d^2 / 2 by p d e + p e^2 / 2.
        rounding = 2.0**-24 * max(1.0, logits.abs().max().item(), other.abs().max().item())
        assert divergence[row].item() == pytest.approx(
            kl, rel=1e-4, abs=20 * rounding * (kl**0.5 + rounding)
        )


# What is refused


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_that_is_not_float32_is_refused(tiny_model, tiny_tokens, dtype):
    with pytest.raises(TypeError, match=f"embed_in.weight is {dtype}; .*float32"):
        score(tiny_model.to(dtype), tiny_tokens, {}, batch_size=4)


def test_one_half_precision_layer_is_refused_by_name(tiny_model):
    tiny_model.gpt_neox.layers[1].mlp.dense_4h_to_h.half()
    with pytest.raises(TypeError, match="layers.1.mlp.dense_4h_to_h.weight is torch.float16"):
        assert_float32(tiny_model)


def test_tf32_is_refused_and_switched_off(tiny_model):
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with pytest.raises(TypeError, match="TF32"):
            assert_float32(tiny_model)
    finally:
        prepare_backend()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert_float32(tiny_model)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_weights_of_a_variant_are_named(tiny_model, tiny_tokens, variants, bad):
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    variants["rtn_int4"][name][0, 0] = bad
    with pytest.raises(FloatingPointError, match="^rtn_int4: "):
        score(tiny_model, tiny_tokens, variants, batch_size=4)


def test_bad_weights_of_the_model_are_named(tiny_model, tiny_tokens):
    with torch.no_grad():
        tiny_model.gpt_neox.final_layer_norm.weight[2] = float("nan")
    with pytest.raises(FloatingPointError, match="^fp32: "):
        score(tiny_model, tiny_tokens, {}, batch_size=4)


def test_weights_that_no_layer_has_are_refused(tiny_model, tiny_tokens):
    """A misspelt weight would make a quantizer look perfect."""
    variants = {"x": {"gpt_neox.layers.0.attention.dence.weight": torch.zeros(16, 16)}}
    with pytest.raises((AttributeError, KeyError), match="dence"):
        score(tiny_model, tiny_tokens, variants, batch_size=4)


# What is left alone


def test_scoring_alters_neither_model_nor_variants_nor_tokens(tiny_model, tiny_tokens, variants):
    before = copy.deepcopy((tiny_model.state_dict(), variants, tiny_tokens))
    score(tiny_model, tiny_tokens, variants, batch_size=4)
    state, weights, tokens = before
    assert np.array_equal(tokens, tiny_tokens)
    for name, tensor in tiny_model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    for quantizer, parts in variants.items():
        for name, tensor in parts.items():
            assert torch.equal(tensor, weights[quantizer][name]), name
    assert all(p.requires_grad and p.grad is None for p in tiny_model.parameters())


def test_scores_are_plain_python_numbers_and_repeatable(tiny_model, tiny_tokens, variants):
    first = score(tiny_model, tiny_tokens, variants, batch_size=4)
    assert first == score(tiny_model, tiny_tokens, variants, batch_size=4)
    assert {type(x) for x in first["rtn_int4"].nll_nats} == {float}


def test_batches_are_consecutive_and_whole(tiny_tokens):
    parts = list(batches(tiny_tokens, 4, "cpu"))
    assert [len(part) for part in parts] == [4, 4, 1]
    assert {part.dtype for part in parts} == {torch.int64}
    assert np.array_equal(torch.cat(parts).numpy(), tiny_tokens)


# Perplexity of a model that has not been trained


def test_perplexity_at_step_0_in_closed_form():
    """V e^0.2 of small_init: logits have variance d * 2 / (5 d) = 0.4.

    A hidden state leaves the last layer norm with squared length d, so its logits are
    drawn from N(0, 0.4) and E[-log softmax] over a uniformly drawn target is
    log mean(e^z) + log V - mean(z), about log V + 0.4 / 2. With V logits that varies by
    sd(e^z) / E[e^z] / sqrt(V) = sqrt((e^0.4 - 1) / V); four of those are allowed.
    """
    hidden, vocabulary = 768, 50_304
    generator = np.random.default_rng(0)
    head = generator.standard_normal((vocabulary, hidden), np.float32) * math.sqrt(2 / (5 * hidden))
    states = generator.standard_normal((16, hidden), np.float32)
    states = (states - states.mean(1, keepdims=True)) / states.std(1, keepdims=True)
    logits = (states @ head.T).astype(np.float64)
    assert logits.var() == pytest.approx(0.4, abs=0.01)
    nll = np.log(np.exp(logits).sum(axis=1)) - logits.mean(axis=1)
    tolerance = 4 * math.sqrt((math.exp(0.4) - 1) / vocabulary)
    assert tolerance < 0.013
    assert abs(nll - (math.log(vocabulary) + 0.2)).max() < tolerance
    assert vocabulary * math.exp(0.2) == pytest.approx(61_441, abs=1)


def test_perplexity_of_a_fresh_model_is_v_times_e_to_the_fifth():
    """The same through ``build_model`` and ``score``, on random tokens.

    Beside the term above the N targets are drawn: sqrt(0.4 / N). The tolerance is four
    standard deviations, less than half of the 0.2 in question.
    """
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_length": 32}
    vocabulary = 2048
    model = build_model(shape, vocabulary, seed=3)
    tokens = np.random.default_rng(3).integers(0, vocabulary, (96, 32)).astype(np.int32)
    nll = score(model, tokens, {}, batch_size=32)[FP32].mean_nll()
    tolerance = 4 * math.sqrt((math.exp(0.4) - 1) / vocabulary + 0.4 / (96 * 31))
    assert tolerance < 0.08
    assert nll == pytest.approx(math.log(vocabulary) + 0.2, abs=tolerance)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(tiny_model, tiny_tokens):
    nn.init.zeros_(tiny_model.get_output_embeddings().weight)
    record = score(tiny_model, tiny_tokens, {}, batch_size=4)[FP32]
    assert math.exp(record.mean_nll()) == pytest.approx(64, rel=1e-6)
