"""A model as torchao, bitsandbytes or a GGUF file would hold it.

Each function takes a copy of a float32 model and may change it. Packages are imported
where they are used: none but gguf is a requirement of this project.
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from flatminima.layers import linear_layers

GGUF_BLOCK = 32
NF4_BLOCK = 64
TORCHAO_GROUPS = (256, 128, 64, 32)  # what torchao's packed kernels take


class NotHere(Exception):
    """Why a format cannot be used for this model on this device, in one line."""


def gguf_model(model: nn.Module, layers: str, kind: str) -> nn.Module:
    """The model with its weights written to a GGUF file in ``kind`` and read back.

    The file holds these tensors and nothing else: it is no file for an inference engine.
    """
    import gguf

    quantization, selected = gguf.GGMLQuantizationType[kind], linear_layers(model, layers)
    for name, layer in selected.items():
        if layer.in_features % GGUF_BLOCK:
            raise NotHere(f"{name} has {layer.in_features} inputs, no multiple of {GGUF_BLOCK}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.gguf"
        writer = gguf.GGUFWriter(path, "none")
        for name, layer in selected.items():
            rows = layer.matrices().reshape(-1, layer.in_features).contiguous().cpu().numpy()
            blocks = gguf.quants.quantize(rows, quantization)
            writer.add_tensor(name, blocks, raw_dtype=quantization)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        read = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            for tensor in gguf.GGUFReader(path).tensors
        }
    with torch.no_grad():
        for name, layer in selected.items():
            rows = torch.from_numpy(read[name]).reshape(layer.matrices().shape)
            layer.weight.copy_(layer.restored(rows.to(layer.weight.device)))
    return model


def _only_linear(model: nn.Module, layers: str) -> dict[str, nn.Linear]:
    """The layers by module name; ``NotHere`` where one of them is no ``nn.Linear``."""
    modules = dict(model.named_modules())
    found = {}
    for name in linear_layers(model, layers):
        module = modules.get(name.removesuffix(".weight"))
        if not name.endswith(".weight") or not isinstance(module, nn.Linear):
            raise NotHere(f"{name} belongs to a layer that is no nn.Linear")
        found[name.removesuffix(".weight")] = module
    return found


def _torchao(model: nn.Module, layers: str, config: object) -> nn.Module:
    from torchao.quantization import quantize_

    chosen = _only_linear(model, layers)
    quantize_(model, config, filter_fn=lambda _, name: name in chosen)
    return model


def _torchao_group(model: nn.Module, layers: str, group: int) -> int:
    """The largest group that torchao takes, that every row divides into, and no larger."""
    inputs = [layer.in_features for layer in _only_linear(model, layers).values()]
    for size in TORCHAO_GROUPS:
        if size <= max(group, TORCHAO_GROUPS[-1]) and not any(n % size for n in inputs):
            return size
    raise NotHere(f"rows of {min(inputs)} inputs divide into no group of {TORCHAO_GROUPS}")


def torchao_int4(model: nn.Module, layers: str, group: int) -> nn.Module:
    """4-bit weights in torchao's packed layout, which is there on CUDA devices only."""
    from torchao.quantization import Int4WeightOnlyConfig

    if next(model.parameters()).device.type != "cuda":
        raise NotHere("its packed 4-bit kernels need a CUDA device")
    config = Int4WeightOnlyConfig(
        group_size=_torchao_group(model, layers, group), int4_packing_format="tile_packed_to_4d"
    )
    return _torchao(model.to(torch.bfloat16), layers, config)


def torchao_intx(model: nn.Module, layers: str, group: int) -> nn.Module:
    """4-bit weights in torchao's layout for any device, which does not pack them."""
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    config = IntxWeightOnlyConfig(
        weight_dtype=torch.int4,
        granularity=PerGroup(_torchao_group(model, layers, group)),
        mapping_type=MappingType.ASYMMETRIC,
    )
    return _torchao(model, layers, config)


def torchao_int8(model: nn.Module, layers: str, group: int) -> nn.Module:
    """8-bit weights, one scale per output channel."""
    from torchao.quantization import Int8WeightOnlyConfig

    return _torchao(model, layers, Int8WeightOnlyConfig())


def _replace(model: nn.Module, layers: str, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """Put ``make(layer)`` in the place of each layer, on the device that the model is on."""
    device = next(model.parameters()).device
    for name, layer in _only_linear(model, layers).items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, make(layer).to(device))
    return model


def bitsandbytes_nf4(model: nn.Module, layers: str, group: int) -> nn.Module:
    """4-bit NormalFloat weights, computed with in float32."""
    import bitsandbytes as bnb

    for name, layer in _only_linear(model, layers).items():
        if layer.in_features % NF4_BLOCK:
            raise NotHere(f"{name} has {layer.in_features} inputs, no multiple of {NF4_BLOCK}")

    def make(layer: nn.Linear) -> nn.Module:
        new = bnb.nn.Linear4bit(
            layer.in_features, layer.out_features, bias=layer.bias is not None,
            quant_type="nf4", compute_dtype=torch.float32,
        )  # fmt: skip
        new.weight = bnb.nn.Params4bit(
            layer.weight.detach().cpu(), requires_grad=False, quant_type="nf4", blocksize=NF4_BLOCK
        )
        new.bias = layer.bias
        return new

    return _replace(model, layers, make)


def bitsandbytes_int8(model: nn.Module, layers: str, group: int) -> nn.Module:
    """LLM.int8(): 8-bit weights and activations, features beyond 6 kept in 16 bits."""
    import bitsandbytes as bnb

    # It says for every product that it casts the inputs, which is what is asked for.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)

    def make(layer: nn.Linear) -> nn.Module:
        new = bnb.nn.Linear8bitLt(
            layer.in_features, layer.out_features, bias=layer.bias is not None,
            has_fp16_weights=False, threshold=6.0,
        )  # fmt: skip
        new.weight = bnb.nn.Int8Params(
            layer.weight.detach().cpu(), has_fp16_weights=False, requires_grad=False
        )
        new.bias = layer.bias
        return new

    return _replace(model, layers, make)
