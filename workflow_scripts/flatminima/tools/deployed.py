"""Measure real quantized inference, to compare it with the simulated gap.

torchao, bitsandbytes and GGUF quantize the same weights, in the same layers as the simulated
probe, so that the format is the only difference. A format is skipped, with its name and the
reason, if its package is not installed or if it does not support the device or a layer.
"""

import copy
import logging
from collections.abc import Callable
from functools import partial
from importlib import metadata, util
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn

from flatminima.errors import one_line
from flatminima.intervals import summarise
from flatminima.layers import linear_layers
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT
from flatminima.scoring import ModelForward, Prober, SequenceScores, model_logits, score

logger = logging.getLogger(__name__)

DEPLOYED = "deployed"  # role of the rows of real formats
GGUF_BLOCK = 32
NF4_BLOCK = 64
TORCHAO_GROUPS = (256, 128, 64, 32)  # group sizes that torchao's packed kernels support


class NotHere(Exception):
    """A format cannot be used for this model on this device; the message says why."""


# Each of these functions gets a copy of the model, the selected layers (``quantizer_specs.Layers``)
# and the group size of the low-bit quantizer. Each returns the model to run.


def gguf_model(model: nn.Module, layers: str, group: int, *, kind: str) -> nn.Module:
    """The model with weights rounded to GGUF's blocks of ``kind``."""
    import gguf

    quantization = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for name, layer in linear_layers(model, layers).items():
            _check_row(name, layer.in_features, GGUF_BLOCK)
            matrices = layer.matrices()
            rows = matrices.reshape(-1, layer.in_features).contiguous().cpu().numpy()
            blocks = gguf.quants.quantize(rows, quantization)
            rounded = torch.from_numpy(gguf.quants.dequantize(blocks, quantization))
            rounded = rounded.reshape(matrices.shape).to(matrices.device)
            layer.weight.copy_(layer.restored(rounded))
    return model


def torchao_model(model: nn.Module, layers: str, group: int, *, kind: str) -> nn.Module:
    """The model quantized by torchao.

    ``int4`` has packed kernels for CUDA. ``intx`` is not packed and runs on any device. ``int8``
    has no groups. The group size is the largest of ``TORCHAO_GROUPS`` that divides every row and
    is at most ``group``, or the smallest if ``group`` is smaller.
    """
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    if kind == "int4" and next(model.parameters()).device.type != "cuda":
        raise NotHere("its packed 4-bit kernels need a CUDA device")
    linear_modules = _linear_modules(model, layers)
    row_lengths = {layer.in_features for layer in linear_modules.values()}
    largest = max(group, TORCHAO_GROUPS[-1])
    sizes = [
        size
        for size in TORCHAO_GROUPS
        if size <= largest and all(length % size == 0 for length in row_lengths)
    ]
    # INT8 has a scale per channel and needs no group.
    if not sizes and kind != "int8":
        smallest = TORCHAO_GROUPS[-1]
        length = next((length for length in row_lengths if length % smallest), min(row_lengths))
        raise NotHere(f"rows of {length} inputs cannot be divided into groups of {TORCHAO_GROUPS}")
    if kind == "int4":
        model = model.to(torch.bfloat16)
        config = quantization.Int4WeightOnlyConfig(
            group_size=sizes[0], int4_packing_format="tile_packed_to_4d"
        )
    elif kind == "intx":
        config = quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=PerGroup(sizes[0]),
            mapping_type=MappingType.ASYMMETRIC,
        )
    else:
        config = quantization.Int8WeightOnlyConfig()
    quantization.quantize_(model, config, filter_fn=lambda _, name: name in linear_modules)
    return model


def bitsandbytes_model(model: nn.Module, layers: str, group: int, *, bits: int) -> nn.Module:
    """The model quantized by bitsandbytes.

    With 4 bits: NF4, with products in float32. With 8 bits: LLM.int8(), in which input features
    with a magnitude above 6 stay in 16 bits.
    """
    import bitsandbytes as bnb

    device = next(model.parameters()).device
    # bitsandbytes warns at every product that it casts the inputs, which is intended here.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    for name, layer in _linear_modules(model, layers).items():
        shape = (layer.in_features, layer.out_features, layer.bias is not None)
        weight = layer.weight.detach().cpu()
        if bits == 4:
            _check_row(name, layer.in_features, NF4_BLOCK)
            quantized = bnb.nn.Linear4bit(*shape, quant_type="nf4", compute_dtype=torch.float32)
            quantized.weight = bnb.nn.Params4bit(
                weight, requires_grad=False, quant_type="nf4", blocksize=NF4_BLOCK
            )
        else:
            quantized = bnb.nn.Linear8bitLt(*shape, has_fp16_weights=False, threshold=6.0)
            quantized.weight = bnb.nn.Int8Params(
                weight, has_fp16_weights=False, requires_grad=False
            )
        quantized.bias = layer.bias
        model.set_submodule(name, quantized.to(device))
    return model


def _check_row(name: str, inputs: int, block: int) -> None:
    if inputs % block:
        raise NotHere(f"{name} has {inputs} inputs; valid: multiples of {block}")


def _linear_modules(model: nn.Module, layers: str) -> dict[str, nn.Linear]:
    """The selected layers by module name. Raises ``NotHere`` if one is not an ``nn.Linear``."""
    modules = dict(model.named_modules())
    linear_modules = {}
    for parameter_name in linear_layers(model, layers):
        module_name = parameter_name.removesuffix(".weight")
        module = modules.get(module_name)
        if not isinstance(module, nn.Linear):
            raise NotHere(f"{parameter_name} belongs to a layer that is not an nn.Linear")
        linear_modules[module_name] = module
    return linear_modules


class Format(NamedTuple):
    """One format to ship a model in.

    ``package`` must be installed. ``counterpart`` is the role of the simulated quantizer that the
    format is compared with. ``convert`` returns the model to run.
    """

    package: str
    counterpart: str
    convert: Callable[[nn.Module, str, int], nn.Module]


FORMATS = {
    # 4 bits, scale and minimum in float16, groups of 32
    "gguf_q4_1": Format("gguf", LOW_BIT, partial(gguf_model, kind="Q4_1")),
    # 8 bits symmetric, scale in float16, groups of 32
    "gguf_q8_0": Format("gguf", HIGH_BIT, partial(gguf_model, kind="Q8_0")),
    # packed 4-bit kernels in bfloat16
    "torchao_int4": Format("torchao", LOW_BIT, partial(torchao_model, kind="int4")),
    # 4 bits, asymmetric, float32
    "torchao_intx4": Format("torchao", LOW_BIT, partial(torchao_model, kind="intx")),
    # 8 bits symmetric per output channel
    "torchao_int8": Format("torchao", HIGH_BIT, partial(torchao_model, kind="int8")),
    # 4-bit normal-float code book, groups of 64
    "bitsandbytes_nf4": Format("bitsandbytes", LOW_BIT, partial(bitsandbytes_model, bits=4)),
    # LLM.int8(): weights and activations in 8 bits, outliers apart
    "bitsandbytes_int8": Format("bitsandbytes", HIGH_BIT, partial(bitsandbytes_model, bits=8)),
}


def score_format(model: nn.Module, prober: Prober, name: str) -> SequenceScores:
    """Per-sequence scores of a format of ``FORMATS``, with the FP32 model as the reference."""
    shipped_format = FORMATS[name]
    low_bit = next(
        spec for quantizer, spec in prober.specs.items() if prober.roles[quantizer] == LOW_BIT
    )
    group = low_bit.row_group or 128
    shipped = shipped_format.convert(copy.deepcopy(model), low_bit.layers, group).eval()
    forwards = {FP32: ModelForward(model), name: lambda ids: model_logits(shipped, ids)}
    return score(prober.tokens, forwards, **prober.options)[name]


def _installed_packages() -> list[str]:
    """The packages of ``FORMATS`` that are installed."""
    packages = {shipped.package for shipped in FORMATS.values()}
    return sorted(package for package in packages if util.find_spec(package))


def probe_deployed(
    model: nn.Module, prober: Prober, step: int, simulated: pd.DataFrame, *, resamples: int
) -> pd.DataFrame:
    """One row per format of ``FORMATS``, measured or skipped, with its simulated counterpart.

    ``simulated`` are the per-sequence scores of ``prober`` for the same model. Columns: step,
    format, package, version, status, reason, the measured columns of the audit, counterpart,
    simulated_gap_pct, and difference_points (the real gap minus the simulated one).
    """
    tables = [simulated]
    skip_reasons = {}
    missing = {shipped.package for shipped in FORMATS.values()} - set(_installed_packages())
    if missing:
        packages = " ".join(sorted(missing))
        logger.warning(f"formats that need other packages are skipped: pip install {packages}")
    for name, shipped_format in FORMATS.items():
        if shipped_format.package in missing:
            skip_reasons[name] = f"the package {shipped_format.package} is not installed"
            continue
        try:
            tables.append(score_format(model, prober, name).table(step, name, DEPLOYED))
        except Exception as error:  # noqa: BLE001, a back-end may raise anything
            skip_reasons[name] = one_line(error)
            logger.warning(f"step {step}: {name} skipped: {skip_reasons[name]}")

    summary = summarise(pd.concat(tables), ["step"], resamples=resamples, seed=0)
    is_deployed = summary["role"] == DEPLOYED
    simulated_by_role = summary[~is_deployed].set_index("role")
    measured = summary[is_deployed].set_index("quantizer").drop(columns=["step", "role"])
    rows = []
    for name, shipped_format in FORMATS.items():
        counterpart = simulated_by_role.loc[shipped_format.counterpart]
        was_measured = name not in skip_reasons
        if was_measured:
            numbers = measured.loc[name].to_dict()
            version = metadata.version(shipped_format.package)
            difference = numbers["gap_pct"] - counterpart["gap_pct"]
        else:
            numbers = dict.fromkeys(measured.columns)
            version = ""
            difference = None
        rows.append(
            {
                "step": step,
                "format": name,
                "package": shipped_format.package,
                "version": version,
                "status": "measured" if was_measured else "skipped",
                "reason": skip_reasons.get(name, ""),
                **numbers,
                "counterpart": counterpart["quantizer"],
                "simulated_gap_pct": counterpart["gap_pct"],
                "difference_points": difference,
            }
        )
    return pd.DataFrame(rows).astype({"n_sequences": "Int64", "n_tokens": "Int64"})
