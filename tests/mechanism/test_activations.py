"""Kurtosis, rounded inputs and anisotropy of vectors whose values are known."""

import pytest
import torch
from torch import nn

from flatminima.mechanism.activations import (
    activation_table,
    mean_cosine,
    rounded_inputs,
    singular_entropy,
    token_kurtosis,
)
from flatminima.mechanism.visits import Visit
from flatminima.quantizers import fake_quantize
from tests.conftest import affine


def test_kurtosis_is_uncentred_excess_and_never_below_zero():
    d = 64
    one = torch.zeros(d)
    uniform = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    one[5] = 3.0
    for vector, expected in (
        (one, 81 / d / (9 / d - (3 / d) ** 2) ** 2 - 3),
        (torch.tensor([1.0, -1.0] * 32), 0.0),  # -2 is set to 0
        (torch.full((d,), 4.0), 0.0),
        (uniform, (1 / 5) / (1 / 12) ** 2 - 3),
    ):
        tolerance = 1e-3 if vector is uniform else 1e-6
        assert token_kurtosis(vector).item() == pytest.approx(expected, rel=tolerance)
    assert token_kurtosis(torch.randn(2, 3, d)).shape == (2, 3)


def test_cosines_and_singular_values_at_both_ends():
    assert mean_cosine(torch.ones(7, 5)) == pytest.approx(1.0)
    assert mean_cosine(torch.eye(6)) == pytest.approx(0.0)
    assert mean_cosine(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-1.0)
    assert singular_entropy(torch.eye(6)) == pytest.approx(1.0)
    rank_one = torch.outer(torch.ones(4), torch.arange(1.0, 4.0))
    assert singular_entropy(rank_one) == pytest.approx(0.0, abs=1e-6)


def test_rounded_inputs_round_what_goes_into_linear_layers_and_only_while_it_lasts():
    torch.manual_seed(0)
    model = nn.Module()
    x = torch.randn(2, 3, 16)
    model.layer = nn.Linear(16, 5)
    model.get_output_embeddings = lambda: None
    plain = model.layer(x)
    rounded = fake_quantize(x.reshape(6, 16), affine(4, "channel", True)).reshape(x.shape)
    wanted = model.layer(rounded)
    with rounded_inputs(model, 4):
        assert torch.equal(model.layer(x), wanted)
    assert torch.equal(model.layer(x), plain)


def test_a_checkpoint_has_kurtosis_losses_and_anisotropy(tiny_model, tiny_tokens):
    visit = Visit(3, tiny_model, tiny_tokens, 4, 20)
    low_bit = affine(4, "group", False, 8).model_dump()
    table = activation_table(visit, {"low_bit": low_bit, "bits": 8})
    assert list(table.columns) == ["step", "measure", "name", "value", "low", "high", "n"]
    names = table.groupby("measure")["name"].apply(list).to_dict()
    assert names == {
        "kurtosis": ["state0", "state1", "state2"],
        "added_loss": ["W", "A", "W+A"],
        "mean_cosine": ["embed_in", "head", "last state"],
        "singular_entropy": ["embed_in", "head"],
    }
    assert (table["step"] == 3).all() and table["value"].notna().all()
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    assert (table.loc[table["measure"] == "kurtosis", "n"] == 9).all()
    # Fresh rows point everywhere.
    assert abs(table.set_index(["measure", "name"]).loc[("mean_cosine", "head"), "value"]) < 0.05
