"""Layer sets, one matrix at a time on a model with one matrix, and the cells of the factorial."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from flatminima.mechanism.findings import additivity
from flatminima.mechanism.variants import (
    Cell,
    block_of,
    cells,
    layer_sets,
    probe_cells,
    probe_layers,
)
from flatminima.mechanism.visits import Visit
from flatminima.quantizers import linear_weights
from tests.conftest import affine


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
    settings = {"low_bit": affine(3, "group", False, 8).model_dump()}
    table = probe_layers(Visit(4, OneLayer(), tiny_tokens, 4, 20), settings)
    at = table.set_index(["probe", "tensor"])
    added = at["delta_nll_nats_per_token"]
    removed = at["removed_nats"]
    name = "body.layers.0.mlp.weight"
    assert added["in", name] == added["all", "all"] == removed["out", name] != 0
    assert added["out", name] == 0
    assert additivity(table)["ratio"].tolist() == [1.0]
    assert {"embed_in.weight", "embed_out.weight"} <= set(table["tensor"])


def test_layer_sets_of_a_gpt_neox(tiny_model):
    chosen = layer_sets(tiny_model)
    sets = {name: set(names) for name, names in chosen.items()}
    assert list(sets) == [
        "blocks",
        "attention",
        "qkv",
        "mlp",
        "block0",
        "block1",
        "head",
        "embed_in",
        "all",
    ]
    assert sets["blocks"] == set(linear_weights(tiny_model))
    for a, b in (("attention", "mlp"), ("block0", "block1")):
        assert sets[a] | sets[b] == sets["blocks"] and not sets[a] & sets[b]
    assert all("query_key_value" in name for name in sets["qkv"]) and len(sets["qkv"]) == 2
    first, *blocks, last = chosen["all"]
    assert {first} == sets["embed_in"] and {last} == sets["head"]
    assert set(blocks) == sets["blocks"] and [block_of(n) for n in blocks] == [0] * 4 + [1] * 4


def test_names_of_several_architectures():
    for name, block in (
        ("gpt_neox.layers.11.mlp.dense_h_to_4h.weight", 11),
        ("model.layers.3.self_attn.q_proj.weight", 3),
        ("transformer.h.0.attn.c_proj.weight", 0),
        ("gpt_neox.embed_in.weight", None),
    ):
        assert block_of(name) == block


def test_cells_are_the_whole_crossing_and_each_layer_set():
    low = {"symmetric": False, "granularity": "g8"}
    design_cells = cells(
        bits=[2, 4], group_sizes=[8, 16], formats=["nf4"], sets=["blocks", "mlp", "all"], low=low
    )
    names = {cell.name for cell in design_cells}
    assert len(design_cells) == len(names) == 2 * 2 * 4 + 2 * 2 + 1
    assert {
        "int4-asym-g8-blocks",
        "int2-sym-tensor-blocks",
        "int4-asym-g8-mlp",
        "nf4-blocks",
    } <= names
    assert Cell("blocks", "int", 4, False, "g8").spec == affine(4, "group", False, 8)
    assert Cell("blocks", "int", 8, True, "channel").spec == affine(8, "channel", True)
    assert Cell("blocks", "nf4").spec.label == "NF4"


def test_a_factorial_probe_says_what_each_cell_did(tiny_model, tiny_tokens):
    design = {
        "bits": [2, 8],
        "group_sizes": [8, 512],
        "formats": ["nvfp4"],
        "low": {"symmetric": False, "granularity": "g8"},
    }
    table, scores = probe_cells(Visit(7, tiny_model, tiny_tokens, 4, 20), design)
    assert len(table) == scores["quantizer"].nunique() == 1 + 2 * 2 * 3 + 8 * 2 + 1
    rows = table.set_index("quantizer")
    assert np.isnan(rows.loc["fp32", "n_weights"]) and (table["step"] == 7).all()
    int8_row = rows.loc["int8-asym-g8-blocks"]
    assert int8_row["n_weights"] == sum(w.numel() for w in linear_weights(tiny_model).values())
    # Positions are as good as uniform, so the two agree.
    assert int8_row["error_norm2"] == pytest.approx(int8_row["step_variance"], rel=0.1)
    assert rows.loc["int2-asym-g8-blocks", "kl_nats_per_token"] > int8_row["kl_nats_per_token"]
    assert np.isnan(rows.loc["nvfp4-blocks", "step_variance"])
