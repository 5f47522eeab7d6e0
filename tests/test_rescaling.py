"""The construction behind row X55 of the ledger: one function, two ways to write it, two gaps."""

import copy

import numpy as np
import torch

from flatminima.scoring import score_quantized
from tests.conftest import affine

FACTOR = 8.0  # a power of two, so that every product is exact
CHANNELS = [0, 8]  # one channel in each group of 8 inputs


def rescaled(model: torch.nn.Module) -> torch.nn.Module:
    """A copy: some outputs of each LayerNorm divided, the columns that read them multiplied."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for layer in twin.gpt_neox.layers:
            for norm, reader in (
                (layer.input_layernorm, layer.attention.query_key_value),
                (layer.post_attention_layernorm, layer.mlp.dense_h_to_4h),
            ):
                norm.weight[CHANNELS] /= FACTOR
                norm.bias[CHANNELS] /= FACTOR
                reader.weight[:, CHANNELS] *= FACTOR
    return twin


def losses(model: torch.nn.Module, tokens: np.ndarray) -> dict[str, float]:
    specs = {"int4": affine(4, "group", False, 8), "int8": affine(8, "channel", True)}
    scores, _ = score_quantized(model, tokens, specs, batch_size=4, device="cpu")
    return {name: score.mean_nll() for name, score in scores.items()}


def test_a_rescaling_that_keeps_the_function_changes_the_int4_gap(tiny_model, tiny_tokens):
    ids = torch.as_tensor(tiny_tokens, dtype=torch.long)
    exact = copy.deepcopy(tiny_model).double()
    # Biases of fresh LayerNorms are zero; without this the test would not see them.
    with torch.no_grad():
        for name, parameter in exact.named_parameters():
            if "layernorm" in name and name.endswith("bias"):
                parameter.uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(exact(ids).logits, rescaled(exact)(ids).logits)

    before = losses(tiny_model, tiny_tokens)
    after = losses(rescaled(tiny_model), tiny_tokens)
    assert after["fp32"] == before["fp32"]
    int4_before = before["int4"] - before["fp32"]
    int4_after = after["int4"] - after["fp32"]
    assert int4_after > 5 * abs(int4_before)
    assert abs(after["int8"] - after["fp32"]) < int4_after / 5
