"""Scores against a per-token oracle in plain loops, and what must not be scored."""

import copy
import logging
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
)

from flatminima import scoring
from flatminima.device import prepare_backend
from flatminima.errors import NotMeasured
from flatminima.model import PLAIN, build_model, head_in_pieces
from flatminima.quantizer_specs import FP32
from flatminima.quantizers import Quantized, linear_weights, quantized_weights
from flatminima.scoring import (
    ModelForward,
    Prober,
    _kl_divergence,
    score,
    score_quantized,
    score_variants,
)
from flatminima.text.tokens import write_tokens
from tests.conftest import affine, weights_of
from tests.oracles import log_softmax, token_scores

INT4 = affine(4, "group", symmetric=False, group_size=8)
HEAD = affine(4, "group", symmetric=False, group_size=8, layers="blocks+head")
SPECS = {
    "rtn_int4": INT4,
    "rtn_int3": affine(3, "tensor", symmetric=True),
    "rtn_int8": affine(8, "channel", symmetric=True, layers="blocks+head"),
}
WHOLE = 2**20


@pytest.fixture(autouse=True)
def backend():
    prepare_backend()


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
    before = copy.deepcopy((tiny_model.state_dict(), variants, tiny_tokens))
    scores = score_variants(tiny_model, tiny_tokens, variants, batch_size=4)
    assert list(scores) == [FP32, *variants]
    for name, record in scores.items():
        expected = []
        for sequence in tiny_tokens:
            reference = logits_of(tiny_model, {}, sequence)
            logits = logits_of(tiny_model, variants.get(name, {}), sequence)
            tokens = token_scores(reference, logits, sequence)
            expected.append([math.fsum(column) for column in zip(*tokens, strict=True)])
        nll, kl, changed = map(list, zip(*expected, strict=True))
        np.testing.assert_allclose(record.nll_nats, nll, rtol=1e-6)
        np.testing.assert_allclose(record.kl_nats, kl, rtol=1e-4, atol=1e-9)
        assert record.top1_changed == changed and record.scored == [15] * 9
        assert record.mean_nll() == pytest.approx(sum(nll) / (9 * 15), rel=1e-6)
    # The variants do something, and neither they nor the model nor the tokens are altered.
    assert sum(scores["rtn_int3"].top1_changed) > 0
    kl = {name: sum(record.kl_nats) for name, record in scores.items()}
    assert kl["rtn_int3"] > kl["rtn_int4"] > kl["rtn_int8"] > kl[FP32] == 0.0
    now = tiny_model.state_dict(), variants, tiny_tokens
    torch.testing.assert_close(now, before, rtol=0, atol=0)
    assert all(p.requires_grad and p.grad is None for p in tiny_model.parameters())


@pytest.mark.parametrize(("batch_size", "at_once"), [(1, None), (4, 64), (100, 5 * 64)])
def test_batch_size_and_company_change_nothing(
    tiny_model, tiny_tokens, variants, monkeypatch, batch_size, at_once
):
    """Nine sequences, in one batch and in others, which may end with one that is not full."""
    one = score_variants(tiny_model, tiny_tokens, variants, batch_size=9)
    if at_once:  # of the logits that are scored: the same bits
        monkeypatch.setattr(scoring, "SCORED_AT_ONCE", at_once)
        assert score_variants(tiny_model, tiny_tokens, variants, batch_size=9) == one
    turned = score_variants(tiny_model, tiny_tokens[::-1], variants, batch_size=batch_size)
    for name, record in turned.items():
        table, other = (r.table(0, name, "")[::-1] for r in (one[name], record))
        for column, tolerance in (("nll_nats", 1e-6), ("kl_nats", 1e-4), ("top1_changed", 0)):
            np.testing.assert_allclose(
                other[column][::-1], table[column], rtol=tolerance, atol=tolerance / 1e5
            )


def test_divergence_of_the_same_and_nearly_the_same_weights(tiny_model, tiny_tokens):
    """The textbook's sum in float32 gives about -7e-7 for some of these sequences."""
    same = weights_of(tiny_model)
    name = "gpt_neox.layers.0.attention.dense.weight"
    variants = {"same": same, "near": {name: same[name] * (1 + 1e-6)}}
    scores = score_variants(tiny_model, tiny_tokens, variants, batch_size=4)
    assert scores["same"] == scores[FP32]
    assert scores["same"].kl_nats == scores["same"].top1_changed == [0.0] * 9
    assert min(scores["near"].kl_nats) >= 0.0 and max(scores["near"].kl_nats) < 1e-9


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


def test_large_terms_of_a_divergence_have_the_bits_of_a_masked_assignment():
    """The masked assignment is the plainest form of the same arithmetic, and slower."""
    generator = torch.Generator().manual_seed(0)
    logits = [4.0 * torch.randn(7, 50, generator=generator) for _ in range(2)]
    p, q = (torch.log_softmax(each, dim=-1) for each in logits)
    d = q - p
    terms = torch.expm1(d).sub_(d).mul_(p.exp())
    large = d >= 1.0
    assert 0 < large.sum() < large.numel()
    terms[large] = q[large].exp() - p.exp()[large] * (1.0 + d[large])
    expected = terms.clamp_(min=0.0).sum(dim=-1)
    assert torch.equal(_kl_divergence(p, q, p.exp()), expected)


@pytest.mark.parametrize("free", ["room for all", "room for one", "no room"])
def test_quantized_copies_are_kept_where_memory_allows_with_the_same_scores(
    tiny_model, tiny_tokens, monkeypatch, free
):
    specs = {"four": INT4, "head": HEAD}
    options = {"batch_size": 4}
    scores, coverages = score_quantized(tiny_model, tiny_tokens, specs, **options)

    kept = []

    class Watched(Quantized):
        def __init__(self, model, spec, *, keep):
            super().__init__(model, spec, keep=keep)
            kept.append(keep)

    sizes = {
        name: sum(weight.nbytes for weight in linear_weights(tiny_model, spec.layers).values())
        for name, spec in specs.items()
    }
    free_bytes = {"room for all": 10**9, "room for one": 2 * max(sizes.values()), "no room": 0}
    forwards = []
    own_score = scoring.score
    monkeypatch.setattr(scoring, "ALWAYS_KEPT", 0)
    monkeypatch.setattr(scoring, "available_bytes", lambda device: free_bytes[free])
    monkeypatch.setattr(scoring, "Quantized", Watched)
    monkeypatch.setattr(
        scoring, "score", lambda t, f, **o: forwards.append(list(f)) or own_score(t, f, **o)
    )
    assert score_quantized(tiny_model, tiny_tokens, specs, **options) == (scores, coverages)
    one_by_one = [[FP32, "four"], [FP32, "head"]]
    assert forwards == (one_by_one if free == "room for one" else [[FP32, "four", "head"]])
    assert kept == [free != "no room"] * 2


# What is refused


def test_a_model_that_is_not_float32_and_tf32_are_refused(tiny_model, tiny_tokens):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        with pytest.raises(TypeError, match="TF32"):
            score_variants(tiny_model, tiny_tokens, {}, batch_size=4)
    finally:
        prepare_backend()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(TypeError, match=f"embed_in.weight is {dtype}; .*float32"):
            score_variants(tiny_model.to(dtype), tiny_tokens, {}, batch_size=4)


def test_bad_weights_are_named_and_misspelt_ones_refused(tiny_model, tiny_tokens, variants):
    """A misspelt weight would make a quantizer look perfect."""
    variants["rtn_int4"]["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"][0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="^rtn_int4: "):
        score_variants(tiny_model, tiny_tokens, variants, batch_size=4)
    misspelt = {"x": {"gpt_neox.layers.0.attention.dence.weight": torch.zeros(16, 16)}}
    with pytest.raises(KeyError, match="dence"):
        score_variants(tiny_model, tiny_tokens, misspelt, batch_size=4)
    with torch.no_grad():
        tiny_model.gpt_neox.final_layer_norm.weight[2] = float("nan")
    with pytest.raises(FloatingPointError, match="^fp32: "):
        score_variants(tiny_model, tiny_tokens, {}, batch_size=4)


def test_perplexity_of_a_fresh_model_is_v_times_e_to_the_fifth():
    """small_init gives logits the variance d * 2 / (5 d) = 0.4.

    E[-log softmax] over a uniformly drawn target is then about log V + 0.4 / 2, which varies
    by sqrt((e^0.4 - 1) / V), and over N drawn targets by sqrt(0.4 / N). The tolerance is four
    standard deviations, less than half of the 0.2 in question.
    """
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_length": 32}
    model = build_model(shape, 2048, seed=3)
    tokens = np.random.default_rng(3).integers(0, 2048, (96, 32)).astype(np.int32)
    nll = score_variants(model, tokens, {}, batch_size=32)[FP32].mean_nll()
    tolerance = 4 * math.sqrt((math.exp(0.4) - 1) / 2048 + 0.4 / (96 * 31))
    assert tolerance < 0.08 and nll == pytest.approx(math.log(2048) + 0.2, abs=tolerance)


# Weights in place of others, and logits in pieces


def pieces_of(model, tokens, weights, at_once=WHOLE):
    ids = torch.from_numpy(tokens.astype(np.int64))
    with torch.inference_mode():
        return list(ModelForward(model, weights, at_once)(ids))


@pytest.mark.parametrize(("spec", "positions"), [(None, 1), (INT4, 7), (HEAD, 64)])
def test_pieces_are_what_all_logits_are(tiny_model, tiny_tokens, spec, positions):
    weights = quantized_weights(tiny_model, spec) if spec else {}
    whole = torch.cat(pieces_of(tiny_model, tiny_tokens, weights))
    pieces = pieces_of(tiny_model, tiny_tokens, weights, positions * 64)
    assert max(map(len, pieces)) == positions and whole.shape == (9 * 15, 64)
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-6)


def test_a_head_whose_outputs_are_changed_afterwards_is_not_taken_apart(tiny_model, tiny_tokens):
    class Scaled(type(tiny_model)):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            found.logits = found.logits * 0.5
            return found

    whole = torch.cat(pieces_of(tiny_model, tiny_tokens, {}))
    tiny_model.__class__ = Scaled
    tiny_model.config.model_type = "another"
    scaled = pieces_of(tiny_model, tiny_tokens, {}, 5 * 64)
    assert max(map(len, scaled)) == 5, "pieces are as long as those of a model that is plain"
    torch.testing.assert_close(torch.cat(scaled), whole * 0.5)


@pytest.mark.parametrize(("spec", "at_once"), [(INT4, WHOLE), (HEAD, 320)])
def test_weights_made_when_they_are_read_give_the_same_bits_one_at_a_time(
    tiny_model, tiny_tokens, spec, at_once
):
    kept_weights = Quantized(tiny_model, spec, keep=True)
    lazy_weights = Quantized(tiny_model, spec, keep=False)
    alive = []

    class Watched(dict):
        def __getitem__(self, name):
            assert all(weight() is None for weight in alive), "the last one is still there"
            weight = lazy_weights[name]
            alive.append(weakref.ref(weight))
            return weight

    name = next(iter(kept_weights))
    assert kept_weights[name] is kept_weights[name] and lazy_weights[name] is not lazy_weights[name]
    weights = kept_weights, Watched.fromkeys(lazy_weights), {}
    logits, same, plain = (pieces_of(tiny_model, tiny_tokens, w, at_once) for w in weights)
    assert all(torch.equal(a, b) for a, b in zip(logits, same, strict=True))
    assert len(alive) >= len(lazy_weights) and not torch.equal(torch.cat(plain), torch.cat(logits))


def test_the_model_is_whole_again_even_after_an_error(tiny_model, tiny_tokens):
    own = dict(tiny_model.named_parameters())

    class Fails(dict):
        def __getitem__(self, name):
            raise ArithmeticError(name)

    name = list(own)[3]
    with pytest.raises(ArithmeticError, match=name):
        pieces_of(tiny_model, tiny_tokens, Fails({name: None}))
    now = dict(tiny_model.named_parameters())
    assert own.keys() == now.keys() and all(own[name] is now[name] for name in own)
    assert tiny_model.gpt_neox.embed_in.weight is own["gpt_neox.embed_in.weight"]


def test_weights_that_are_read_without_a_call_and_shared_ones_are_replaced():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.other = nn.Linear(3, 3, bias=False)
            self.shared = nn.Linear(3, 3, bias=False)
            self.unread = nn.Linear(3, 3, bias=False)
            self.shared.weight = self.other.weight

        def forward(self, input_ids, use_cache):
            return SimpleNamespace(logits=self.shared(input_ids @ self.first.weight.T))

    new = {f"{name}.weight": torch.randn(3, 3) for name in ("first", "other", "unread")}
    forward = ModelForward(Model(), new)
    (logits,) = forward(torch.eye(4, 3)[None])
    torch.testing.assert_close(logits, new["first.weight"].T @ new["other.weight"].T)
    assert forward.read == {"first.weight", "other.weight"}


def test_any_callable_is_a_forward(tiny_model, tiny_tokens):
    """Another library's model is scored as ours is, beside the same reference."""
    uniform = [torch.zeros(4 * 15, 64), torch.zeros(4 * 15, 64), torch.zeros(15, 64)]
    forwards = {FP32: ModelForward(tiny_model), "none": lambda ids: iter([uniform.pop(0)])}
    found = score(tiny_tokens, forwards, batch_size=4)
    assert found["none"].mean_nll() == pytest.approx(math.log(64), rel=1e-6)
    assert found[FP32] == score_variants(tiny_model, tiny_tokens, {}, batch_size=4)[FP32]
    table = found["none"].table(7, "none", "low_bit")
    assert table["sequence"].tolist() == list(range(9)) and set(table["step"]) == {7}


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("gemma2", {"final_logit_softcapping": 0.5}),
        ("granite", {"logits_scaling": 4.0}),
        ("cohere", {"logit_scale": 0.3}),
    ],
)
def test_scaled_and_capped_logits_come_in_pieces_as_well(family, keys):
    """A vocabulary of 256,000 would otherwise take 14 GiB."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "pad_token_id": 0,
    }
    config = AutoConfig.for_model(family, **sizes, **keys)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = np.random.default_rng(0).integers(0, 64, (3, 16)).astype(np.int32)
    weights = quantized_weights(model, affine(4, "group", symmetric=False, group_size=8))
    all_logits = torch.cat(pieces_of(model, tokens, weights))
    pieces = pieces_of(model, tokens, weights, 5 * 64)
    torch.testing.assert_close(torch.cat(pieces), all_logits, rtol=1e-5, atol=1e-6)
    _, _, finish = head_in_pieces(model, torch.from_numpy(tokens).long(), 5 * 64)
    assert finish != PLAIN


# The probe


@pytest.fixture
def prober(tiny_tokens, tmp_path):
    """A prober of the tiny tokens with NF4, and MXFP4 as its high-bit quantizer."""
    path = str(tmp_path / "validation.safetensors")
    write_tokens(path, tiny_tokens)
    definitions = {"low": {"kind": "nf4"}, "high": {"kind": "mxfp4", "layers": "blocks+head"}}
    probe = {
        "quantizers": definitions,
        "roles": {"low": "low_bit", "high": "high_bit"},
        "batch_size": 4,
        "device": "cpu",
    }
    return Prober(path, probe, threads=1)


def test_any_kind_of_quantizer_can_be_probed(tiny_model, tiny_tokens, prober, caplog):
    """An entry of the configuration is all that NF4 takes; the scores are those of its weights."""
    caplog.set_level(logging.INFO, "flatminima")
    table = prober(tiny_model, 7).set_index("role")
    assert list(table.loc["low_bit", "quantizer"].unique()) == ["low"]
    for name, spec in prober.specs.items():
        weights = quantized_weights(tiny_model, spec)
        alone = score_variants(tiny_model, tiny_tokens, {"x": weights}, batch_size=4)["x"]
        assert table.loc[prober.roles[name], "nll_nats"].tolist() == alone.nll_nats
    assert prober.made_by["coverage"]["high"]["matrices"] == 9
    assert "groups narrowed to the rows of gpt_neox.layers.*.attention" in caplog.text


def test_a_failing_model_is_not_measured_and_a_mistake_of_ours_is_raised(
    tiny_model, prober, monkeypatch
):
    """Only the code of the model is somebody else's."""

    def fail(**inputs):
        raise KeyError("rope")

    forward = tiny_model.forward
    del prober.specs["high"]
    tiny_model.forward = fail
    with pytest.raises(NotMeasured, match="step 7: KeyError: 'rope'"):
        prober(tiny_model, 7)
    tiny_model.forward = forward
    for broken in ("coverage", "check_ids"):
        with monkeypatch.context() as patch:
            patch.setattr(scoring, broken, lambda *args, **kwargs: {}["typo"])
            with pytest.raises(KeyError, match="typo"):
                prober(tiny_model, 7)


def test_a_model_that_reads_none_of_the_weights_or_looks_ahead_is_refused(
    tiny_model, tiny_tokens, prober
):
    """The gap of the first would be exactly 0 whatever the quantizer is."""
    del prober.specs["high"]  # the heads below are tied
    logits = torch.zeros(4, 16, 64)
    tiny_model.forward = lambda input_ids, use_cache: SimpleNamespace(
        logits=logits[: len(input_ids)]
    )
    with pytest.raises(NotMeasured, match="step 7: low: no weight that the model reads"):
        prober(tiny_model, 7)
    widths = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    torch.manual_seed(0)
    with pytest.raises(NotMeasured, match="step 7: BertForMaskedLM looks ahead"):
        prober(BertForMaskedLM(BertConfig(**widths)), 7)
    causal = BertLMHeadModel(BertConfig(is_decoder=True, **widths))
    assert len(prober(causal, 7)) == 2 * len(tiny_tokens)
