"""Layer sets, and probes of one matrix at a time on a model with one matrix."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flatminima.mechanism.findings import additivity
from flatminima.mechanism.layerwise import probe_layers
from flatminima.mechanism.visits import (
    Visit,
    block_of,
    in_order,
    layer_sets,
    matrices,
)
from flatminima.quantizers import linear_weights
from tests.conftest import affine

INT3 = affine(3, "group", False, 8)


class OneLayer(nn.Module):
    """Embedding, one linear layer in block 0, head: what one matrix adds is what all add."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed_in = nn.Embedding(64, 16)
        self.body = nn.Module()
        self.body.layers = nn.ModuleList([nn.ModuleDict({"mlp": nn.Linear(16, 16, bias=False)})])
        self.embed_out = nn.Linear(16, 64, bias=False)

    def get_input_embeddings(self):
        return self.embed_in

    def get_output_embeddings(self):
        return self.embed_out

    def forward(self, input_ids, use_cache):
        states = self.embed_in(input_ids)
        states = states + self.body.layers[0]["mlp"](states)
        return SimpleNamespace(logits=self.embed_out(states))


def test_one_matrix_in_is_all_and_out_is_none(tiny_tokens):
    whole = OneLayer()
    table = probe_layers(Visit(4, whole, tiny_tokens, 4, 20), INT3)
    added = table.set_index(["probe", "tensor"])["delta_nll_nats_per_token"]
    [name] = [n for n in matrices(whole) if "mlp" in n]
    assert added[("in", name)] == added[("all", "all")] != 0
    assert added[("out", name)] == 0
    removed = table.set_index(["probe", "tensor"])["removed_nats"]
    assert removed[("out", name)] == added[("all", "all")]
    assert additivity(table)["ratio"].tolist() == [1.0]
    assert {"embed_in.weight", "embed_out.weight"} <= set(table["tensor"])


def test_layer_sets_of_a_gpt_neox(tiny_model):
    sets = layer_sets(tiny_model)
    assert set(sets) == {"blocks", "attention", "qkv", "mlp", "block0", "block1", "head",
                         "embed_in", "all"}  # fmt: skip
    assert set(sets["blocks"]) == set(linear_weights(tiny_model))
    assert set(sets["attention"]) | set(sets["mlp"]) == set(sets["blocks"])
    assert not set(sets["attention"]) & set(sets["mlp"])
    assert set(sets["block0"]) | set(sets["block1"]) == set(sets["blocks"])
    assert all("query_key_value" in name for name in sets["qkv"]) and len(sets["qkv"]) == 2
    assert set(sets["all"]) == set(sets["blocks"]) | set(sets["head"]) | set(sets["embed_in"])
    ordered = in_order(sets["all"])
    assert ordered[0] == sets["embed_in"][0] and ordered[-1] == sets["head"][0]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("gpt_neox.layers.11.mlp.dense_h_to_4h.weight", 11),
        ("model.layers.3.self_attn.q_proj.weight", 3),
        ("transformer.h.0.attn.c_proj.weight", 0),
        ("gpt_neox.embed_in.weight", None),
    ],
)
def test_names_of_several_architectures(name, block):
    assert block_of(name) == block
