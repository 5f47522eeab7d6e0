"""Logits in pieces and weights made on use, against everything at once."""

import numpy as np
import pytest
import torch
from torch import nn

from flatminima import evaluation
from flatminima.evaluation import score
from flatminima.logits import LOGITS_AT_ONCE, OnUse, next_token_logits
from flatminima.quantizers import (
    QuantizerSpec,
    linear_weights,
    quantized_on_use,
    quantized_weights,
)

SPEC = QuantizerSpec(4, "group", symmetric=False, group_size=8)
HEAD = QuantizerSpec(4, "group", symmetric=False, group_size=8, layers="blocks+head")


def logits_of(model, tokens, weights, at_once):
    ids = torch.from_numpy(tokens.astype(np.int64))
    with torch.inference_mode():
        return list(next_token_logits(model, ids, weights, at_once))


@pytest.mark.parametrize("spec", [None, SPEC, HEAD])
@pytest.mark.parametrize("positions", [1, 7, 64])
def test_pieces_are_what_all_logits_are(tiny_model, tiny_tokens, spec, positions):
    weights = quantized_weights(tiny_model, spec) if spec else {}
    whole = torch.cat(logits_of(tiny_model, tiny_tokens, weights, LOGITS_AT_ONCE))
    pieces = logits_of(tiny_model, tiny_tokens, weights, positions * 64)
    assert max(map(len, pieces)) == positions
    assert whole.shape == (9 * 15, 64)
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-6)


def test_scores_do_not_depend_on_the_pieces(tiny_model, tiny_tokens, monkeypatch):
    variants = {"low": quantized_weights(tiny_model, SPEC)}
    whole = score(tiny_model, tiny_tokens, variants, batch_size=4)

    def in_pieces(model, ids, weights):
        return next_token_logits(model, ids, weights, at_once=5 * 64)

    monkeypatch.setattr(evaluation, "next_token_logits", in_pieces)
    pieces = score(tiny_model, tiny_tokens, variants, batch_size=4)
    for name, record in pieces.items():
        np.testing.assert_allclose(record.nll_nats, whole[name].nll_nats, rtol=1e-6)
        np.testing.assert_allclose(record.kl_nats, whole[name].kl_nats, rtol=1e-4, atol=1e-9)
        assert record.top1_changed == whole[name].top1_changed
        assert record.scored == whole[name].scored


@pytest.mark.parametrize("at_once", [320, LOGITS_AT_ONCE])
@pytest.mark.parametrize("spec", [SPEC, HEAD])
def test_weights_made_on_use_give_the_same_bits(tiny_model, tiny_tokens, spec, at_once):
    before = {name: weight.clone() for name, weight in tiny_model.named_parameters()}
    held = logits_of(tiny_model, tiny_tokens, quantized_weights(tiny_model, spec), at_once)
    used = logits_of(tiny_model, tiny_tokens, quantized_on_use(tiny_model, spec), at_once)
    plain = logits_of(tiny_model, tiny_tokens, {}, at_once)
    assert all(torch.equal(a, b) for a, b in zip(held, used, strict=True))
    assert not torch.equal(torch.cat(plain), torch.cat(used))
    assert all(torch.equal(before[n], w) for n, w in tiny_model.named_parameters())


def test_weights_made_on_use_are_gone_even_after_an_error(tiny_model, tiny_tokens):
    own = dict(tiny_model.named_parameters())

    def fails(name):
        raise ArithmeticError(name)

    with pytest.raises(ArithmeticError, match="dense"):
        logits_of(tiny_model, tiny_tokens, OnUse([list(linear_weights(tiny_model))[3]], fails), 64)
    now = dict(tiny_model.named_parameters())
    assert own.keys() == now.keys() and all(own[name] is now[name] for name in own)
    with pytest.raises(KeyError):
        OnUse(["a"], fails)["b"]


def test_never_more_than_one_layer_is_held(tiny_model, tiny_tokens):
    alive, most = set(), 0
    spec_of = quantized_on_use(tiny_model, SPEC)

    class Watched(nn.Parameter):
        pass

    def make(name):
        nonlocal most
        owner = tiny_model.get_submodule(name.rpartition(".")[0])
        alive.add(owner)
        replaced = [m for m in alive if m is not owner and m.weight is not own[m]]
        most = max(most, len(replaced))
        return spec_of[name]

    own = {m: m.weight for m in tiny_model.modules() if isinstance(m, nn.Linear)}
    logits_of(tiny_model, tiny_tokens, OnUse(list(spec_of), make), LOGITS_AT_ONCE)
    assert len(alive) == len(spec_of) > 1 and most == 0


def test_a_head_whose_outputs_are_changed_afterwards_is_not_taken_apart(tiny_model, tiny_tokens):
    class Scaled(type(tiny_model)):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            found.logits = found.logits * 0.5
            return found

    whole = torch.cat(logits_of(tiny_model, tiny_tokens, {}, 64))
    tiny_model.__class__ = Scaled
    tiny_model.config.model_type = "another"
    (scaled,) = logits_of(tiny_model, tiny_tokens, {}, 64)
    torch.testing.assert_close(scaled, whole * 0.5)


@pytest.mark.parametrize("at_once", [64, 5 * 64, 2**20])
def test_scores_are_the_same_bits_however_many_logits_are_scored_at_once(
    tiny_model, tiny_tokens, monkeypatch, at_once
):
    variants = {"low": quantized_weights(tiny_model, SPEC)}
    whole = score(tiny_model, tiny_tokens, variants, batch_size=4)
    monkeypatch.setattr(evaluation, "SCORED_AT_ONCE", at_once)
    assert score(tiny_model, tiny_tokens, variants, batch_size=4) == whole
