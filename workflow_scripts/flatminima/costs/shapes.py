"""What a suite's model is made of, counted on its own classes without any weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from flatminima.layers import count_weights, linear_layers

PYTHIA_ROWS = 50304  # rows of Pythia's embedding
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Shape:
    """Counts that costs follow from.

    ``multiplied`` are the weights that each token is multiplied with, the head's among
    them; the input embedding is looked up. ``stored_bytes`` are those of one published
    checkpoint, with the masks that GPT-NeoX kept beside its weights.
    """

    parameters: int
    multiplied: int
    layers: int
    width: int
    stored_bytes: int


def read_config(architecture: Mapping, *, vocab_size: int | None = None) -> object:
    """The configuration of transformers that an ``architecture`` section describes."""
    from transformers import AutoConfig

    width = architecture["hidden_size"]
    return AutoConfig.for_model(
        architecture.get("family", "gpt_neox"),
        hidden_size=width,
        num_hidden_layers=architecture["num_layers"],
        num_attention_heads=architecture["num_heads"],
        num_key_value_heads=architecture["num_heads"],
        intermediate_size=architecture.get("intermediate_size", 4 * width),
        max_position_embeddings=architecture["max_length"],
        vocab_size=vocab_size or architecture.get("vocab_size", PYTHIA_ROWS),
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )


def read_local_config(folder: str | Path) -> object:
    """The configuration beside a checkpoint; no code that comes with it is run."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def build(config: object, device: str = "meta") -> nn.Module:
    """A model of a configuration in float32; on ``meta`` it has shapes and no memory."""
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def describe_shape(config: object, dtype: str = "float16") -> Shape:
    """Count a model; ``dtype`` is that of the published files."""
    model = build(config)
    blocks = sum(layer.weight.numel() for layer in linear_layers(model).values())
    head = model.get_output_embeddings()
    parameters = count_weights(model)
    # One byte of mask for each pair of positions in each layer.
    masks = config.model_type == "gpt_neox"
    mask_bytes = masks * config.num_hidden_layers * config.max_position_embeddings**2
    return Shape(
        parameters=parameters,
        multiplied=blocks + (head.weight.numel() if head is not None else 0),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        stored_bytes=BYTES[dtype] * parameters + mask_bytes,
    )
