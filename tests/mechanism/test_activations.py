"""Kurtosis, rounded inputs and anisotropy of vectors whose values are known."""

import numpy as np
import pytest
import torch
from torch import nn

from flatminima.mechanism.activations import (
    hidden_kurtosis,
    rounded_inputs,
    token_kurtosis,
    weights_and_activations,
)
from flatminima.mechanism.anisotropy import anisotropy, mean_cosine, singular_entropy
from flatminima.quantizers import fake_quantize
from flatminima.scoring import score_variants
from tests.conftest import affine

INT4 = affine(4, "group", False, 8)


def test_kurtosis_of_an_outlier_and_of_signs():
    d = 64
    one = torch.zeros(d)
    one[5] = 3.0
    variance = 9 / d - (3 / d) ** 2
    assert token_kurtosis(one).item() == pytest.approx(81 / d / variance**2 - 3)
    assert token_kurtosis(torch.tensor([1.0, -1.0] * 32)).item() == 0.0  # -2 is set to 0
    assert token_kurtosis(torch.full((d,), 4.0)).item() == 0.0
    assert token_kurtosis(torch.randn(2, 3, d)).shape == (2, 3)


def test_kurtosis_is_taken_about_zero():
    uniform = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    assert token_kurtosis(uniform).item() == pytest.approx((1 / 5) / (1 / 12) ** 2 - 3, rel=1e-3)


def test_rounded_inputs_round_what_goes_into_linear_layers_and_only_while_it_lasts():
    torch.manual_seed(0)
    linear = nn.Linear(16, 5)
    model = nn.Module()
    model.layer, model.get_output_embeddings = linear, lambda: None
    x = torch.randn(2, 3, 16)
    plain = linear(x)
    spec = affine(4, "channel", True)
    wanted = linear(fake_quantize(x.reshape(6, 16), spec).reshape(x.shape))
    with rounded_inputs(model, 4):
        assert torch.equal(linear(x), wanted)
    assert torch.equal(linear(x), plain)


def test_rounding_both_costs_what_the_parts_are_made_of(tiny_model, tiny_tokens):
    rows = weights_and_activations(tiny_model, tiny_tokens, INT4, bits=8, step=3, batch_size=4,
                                   resamples=20)  # fmt: skip
    assert [row["name"] for row in rows] == ["W", "A", "W+A"]
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    before = score_variants(tiny_model, tiny_tokens, {}, batch_size=4)["fp32"].mean_nll()
    assert score_variants(tiny_model, tiny_tokens, {}, batch_size=4)["fp32"].mean_nll() == before


def test_there_is_a_kurtosis_for_each_hidden_state(tiny_model, tiny_tokens):
    rows = hidden_kurtosis(tiny_model, tiny_tokens, batch_size=4, resamples=20)
    assert [row["name"] for row in rows] == ["state0", "state1", "state2"]
    assert all(row["low"] <= row["value"] <= row["high"] and row["n"] == 9 for row in rows)


def test_cosines_and_singular_values_at_both_ends():
    assert mean_cosine(torch.ones(7, 5)) == pytest.approx(1.0)
    assert mean_cosine(torch.eye(6)) == pytest.approx(0.0)
    both = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert mean_cosine(both) == pytest.approx(-1.0)
    assert singular_entropy(torch.eye(6)) == pytest.approx(1.0)
    assert singular_entropy(torch.outer(torch.ones(4), torch.arange(1.0, 4.0))) == pytest.approx(
        0.0, abs=1e-6
    )


def test_anisotropy_names_head_embedding_and_states(tiny_model, tiny_tokens):
    rows = anisotropy(tiny_model, tiny_tokens, batch_size=4, resamples=20)
    found = {(row["measure"], row["name"]): row["value"] for row in rows}
    assert set(found) == {("mean_cosine", "embed_in"), ("singular_entropy", "embed_in"),
                          ("mean_cosine", "head"), ("singular_entropy", "head"),
                          ("mean_cosine", "last state")}  # fmt: skip
    assert all(np.isfinite(value) for value in found.values())
    # Fresh rows point everywhere.
    assert abs(found[("mean_cosine", "head")]) < 0.05
