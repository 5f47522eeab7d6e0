"""Which weights are quantized in other families of models, along which axis, and which are left.

The zoo holds what comes out to a plain script, to the oracle's groups along the inputs.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from flatminima.errors import UserError
from flatminima.kurtosis import kurtosis_of_checkpoint
from flatminima.layers import count_weights, linear_layers, not_selected
from flatminima.model import is_legacy_buffer, load_model
from flatminima.quantizers import coverage, coverage_line, quantized_weights
from flatminima.scoring import ModelForward
from tests.architectures import build, logits
from tests.conftest import affine
from tests.oracles import quantize_matrix

SPEC = affine(4, "group", False, 16)
BLOCK = 32 * (32 + 16 + 16 + 32)  # query, key, value and output of two heads that share one key
EXPERTS = 4 * 3 * 32 * 48
WANTED = {  # matrices, weights, and what is left as it is, vectors aside
    "gpt_neox": (8, 2 * 32 * (4 * 32 + 2 * 48), {"embed_in": 2048, "lm_head": 2048}),
    "llama": (14, 2 * (BLOCK + 3 * 32 * 48), {"lm_head": 2048, "embed_tokens": 2048}),
    "gpt2": (8, 2 * 12 * 32 * 32, {"wte": 2048, "wpe": 1024}),
    "gpt_oss": (
        2 * (4 + 2 * 4),
        2 * (BLOCK + EXPERTS),
        {
            "lm_head": 2048,
            "embed_tokens": 2048,
            "mlp.router": 256,
            "experts.gate_up_proj_bias": 2 * 4 * 96,
            "experts.down_proj_bias": 2 * 4 * 32,
        },
    ),
}
FAMILIES = sorted(WANTED)


@pytest.fixture(scope="module")
def models():
    return {family: build(family) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_of_the_blocks_and_nothing_else(family, models):
    matrices, weights, left = WANTED[family]
    found = coverage(models[family], SPEC)
    assert (found["matrices"], found["weights"]) == (matrices, weights)
    named = {name.removesuffix(".weight"): n for name, n in found["left"].items()}
    named.pop("vectors")
    assert {key for name in named for key in left if name.endswith(key)} == set(left)
    assert sorted(named.values()) == sorted(left.values())
    # Nothing is passed over in silence: both parts make up the model.
    assert weights + sum(found["left"].values()) == found["of"] == count_weights(models[family])
    line = coverage_line(found)
    assert f"{weights:,} of {found['of']:,}" in line and all(name in line for name in found["left"])


@pytest.mark.parametrize("family", FAMILIES)
def test_kurtosis_is_of_the_weights_that_are_quantized(family, models, tmp_path):
    models[family].save_pretrained(tmp_path)
    [table] = kurtosis_of_checkpoint(4, tmp_path / "model.safetensors", "blocks")
    each = table[table.statistic == "per_tensor"]
    assert (len(each), each.n_weights.sum()) == WANTED[family][:2]
    assert (table.n_weights[table.tensor == "all"] == WANTED[family][1]).all()


def test_each_expert_is_a_matrix_of_its_own(models):
    quantized = quantized_weights(models["gpt_oss"], affine(4, "tensor", False))
    stacks = {name: stack for name, stack in quantized.items() if stack.ndim == 3}
    assert len(stacks) == 2 * 2
    for name, stack in stacks.items():
        weight = models["gpt_oss"].get_parameter(name).detach()
        for own, made in zip(weight.numpy(), stack.numpy(), strict=True):
            values, _ = quantize_matrix(own, 4, "tensor", False, None)
            assert np.array_equal(made, values), name


def test_a_head_is_one_matrix_more_unless_it_is_tied(models):
    both = [set(linear_layers(models["llama"], layers)) for layers in ("blocks", "blocks+head")]
    assert both[1] - both[0] == {"lm_head.weight"}
    with pytest.raises(UserError, match="blocks\\+head.* tied"):
        linear_layers(models["gpt2"], "blocks+head")


def test_convolutions_over_time_are_left_and_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3))
            self.mix = nn.Parameter(torch.ones(1, 1, 4))

        def get_output_embeddings(self):
            return None

    selected = linear_layers(Model())
    assert set(selected) == {"layer.0.weight"}
    assert not_selected(Model(), selected) == {"layer.*.weight": 48, "vectors": 8, "mix": 4}
    with pytest.raises(UserError, match="output head"):
        linear_layers(Model(), "blocks+head")


def test_a_parameter_that_two_layers_share_is_one_weight():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def get_output_embeddings(self):
            return None

        def forward(self, input_ids, use_cache):
            return SimpleNamespace(logits=self.second(self.first(input_ids)))

    model = Model()
    spec = affine(2, "tensor", False)
    quantized = quantized_weights(model, spec)
    assert set(quantized) == {"first.weight"}
    inputs = torch.eye(4)[None]
    forward = ModelForward(model, quantized)
    (logits,) = forward(inputs)
    rounded = quantized["first.weight"].T
    torch.testing.assert_close(logits, (inputs @ rounded @ rounded)[0, :-1])
    assert coverage(model, spec, forward.read)["weights"] == 16


BUFFERS = {
    "gpt2": {
        "h.{n}.attn.bias": torch.ones(1, 1, 32, 32).tril(),
        "h.{n}.attn.masked_bias": torch.tensor(-1e4),
    },
    "llama": {"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(8)},
}


@pytest.mark.parametrize("family", BUFFERS)
def test_masks_and_tables_of_old_files_are_ignored(family, models, tmp_path):
    """GPT-2's file without its prefix besides, as OpenAI's own files name weights."""
    models[family].save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    stored = {n.removeprefix("transformer."): tensor for n, tensor in load_file(path).items()}
    assert not any(map(is_legacy_buffer, stored))
    for n in range(2):
        stored |= {name.format(n=n): buffer.clone() for name, buffer in BUFFERS[family].items()}
    save_file(stored, path, metadata={"format": "pt"})
    assert sum(map(is_legacy_buffer, stored)) == 2 * len(BUFFERS[family])
    assert torch.equal(logits(load_model(tmp_path)), logits(models[family]))


def test_a_checkpoint_in_shards_loads_whole(models, tmp_path):
    models["llama"].save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(load_model(tmp_path)), logits(models["llama"]))
