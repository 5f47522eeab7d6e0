"""Tiny models of many families, with fresh weights, for tests of what is not GPT-NeoX."""

import torch

WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
COMMON = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
CONFIGS = {
    "gpt_neox": {**WIDTHS, "num_attention_heads": 2, "max_position_embeddings": 32},
    "llama": {**WIDTHS, **HEADS},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "olmoe": {**WIDTHS, **HEADS, "num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {**WIDTHS, **HEADS, "head_dim": 16, "num_local_experts": 4},
    "bert": {**WIDTHS, "num_attention_heads": 2, "max_position_embeddings": 32},
    "mamba": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    "gemma3": {
        "text_config": {**COMMON, **WIDTHS, **HEADS, "vocab_size": 300, "head_dim": 16},
        "mm_tokens_per_image": 4,
        "boi_token_index": 290,
        "eoi_token_index": 291,
        "image_token_index": 292,
    },
}


def build(family: str, **changes):
    """A model of ``family`` whose weights are all drawn, biases and norms too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**COMMON, **CONFIGS[family], **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.1)
    return model


def logits(model, replaced=()):
    """Logits of fixed tokens, ``[2, 10, vocabulary]``, with some weights replaced."""
    from torch.func import functional_call

    arguments = {"input_ids": torch.arange(20).reshape(2, 10), "use_cache": False}
    with torch.no_grad():
        return functional_call(model, dict(replaced), (), arguments).logits
