"""The probe of real quantized inference: what one would ship, beside the simulated gap.

The same weights go through torchao, bitsandbytes and GGUF's blocks, for the layers that
the simulated probe quantizes and no others, so that the format is the only difference. A
back-end that is not installed, or that a device or a layer does not allow, is skipped by
name with its reason.
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

DEPLOYED = "deployed"  # the role of their rows
GGUF_BLOCK, NF4_BLOCK = 32, 64
TORCHAO_GROUPS = (256, 128, 64, 32)  # what torchao's packed kernels take


class NotHere(Exception):
    """Why a format cannot be used for this model on this device, in one line."""


# Each takes a copy of the model, which layers (``layers.Layers``) and the low-bit group size, and
# returns the model to run.


def gguf_model(model: nn.Module, layers: str, group: int, *, kind: str) -> nn.Module:
    """The model with its weights as GGUF's blocks of ``kind`` hold them."""
    import gguf

    quantization = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for name, layer in linear_layers(model, layers).items():
            _check_row(name, layer.in_features, GGUF_BLOCK)
            matrices = layer.matrices()
            rows = matrices.reshape(-1, layer.in_features).contiguous().cpu().numpy()
            blocks = gguf.quants.quantize(rows, quantization)
            read = torch.from_numpy(gguf.quants.dequantize(blocks, quantization))
            layer.weight.copy_(layer.restored(read.reshape(matrices.shape).to(matrices.device)))
    return model


def torchao_model(model: nn.Module, layers: str, group: int, *, kind: str) -> nn.Module:
    """``int4`` is packed, ``intx`` is for any device and not packed, ``int8`` has no groups.

    Its group is the largest that torchao takes, that every row divides into, and no larger
    than ``group``.
    """
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    if kind == "int4" and next(model.parameters()).device.type != "cuda":
        raise NotHere("its packed 4-bit kernels need a CUDA device")
    chosen = _only_linear(model, layers)
    inputs = {layer.in_features for layer in chosen.values()}
    most = max(group, TORCHAO_GROUPS[-1])
    sizes = [s for s in TORCHAO_GROUPS if s <= most and not any(n % s for n in inputs)]
    if not sizes and kind != "int8":
        raise NotHere(f"rows of {min(inputs)} inputs divide into no group of {TORCHAO_GROUPS}")
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
    quantization.quantize_(model, config, filter_fn=lambda _, name: name in chosen)
    return model


def bitsandbytes_model(model: nn.Module, layers: str, group: int, *, bits: int) -> nn.Module:
    """NF4, computed with in float32, or LLM.int8(), features beyond 6 kept in 16 bits."""
    import bitsandbytes as bnb

    device = next(model.parameters()).device
    # It says for every product that it casts the inputs, which is what is asked for.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    for name, layer in _only_linear(model, layers).items():
        shape = (layer.in_features, layer.out_features, layer.bias is not None)
        weight = layer.weight.detach().cpu()
        if bits == 4:
            _check_row(name, layer.in_features, NF4_BLOCK)
            new = bnb.nn.Linear4bit(*shape, quant_type="nf4", compute_dtype=torch.float32)
            new.weight = bnb.nn.Params4bit(
                weight, requires_grad=False, quant_type="nf4", blocksize=NF4_BLOCK
            )
        else:
            new = bnb.nn.Linear8bitLt(*shape, has_fp16_weights=False, threshold=6.0)
            new.weight = bnb.nn.Int8Params(weight, has_fp16_weights=False, requires_grad=False)
        new.bias = layer.bias
        model.set_submodule(name, new.to(device))
    return model


def _check_row(name: str, inputs: int, block: int) -> None:
    if inputs % block:
        raise NotHere(f"{name} has {inputs} inputs, no multiple of {block}")


def _only_linear(model: nn.Module, layers: str) -> dict[str, nn.Linear]:
    """The layers by module name; ``NotHere`` where one of them is no ``nn.Linear``."""
    modules, found = dict(model.named_modules()), {}
    for name in linear_layers(model, layers):
        module = modules.get(name.removesuffix(".weight"))
        if not isinstance(module, nn.Linear):
            raise NotHere(f"{name} belongs to a layer that is no nn.Linear")
        found[name.removesuffix(".weight")] = module
    return found


class Format(NamedTuple):
    """One way to ship a model. ``counterpart`` is the role of the simulated quantizer beside it."""

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
    """Per-sequence scores of a format of ``FORMATS`` against the model in full precision."""
    form = FORMATS[name]
    if util.find_spec(form.package) is None:
        raise NotHere(f"the package {form.package} is not installed")
    low_bit = next(s for n, s in prober.specs.items() if prober.roles[n] == LOW_BIT)
    other = form.convert(copy.deepcopy(model), low_bit.layers, low_bit.row_group or 128).eval()
    forwards = {FP32: ModelForward(model), name: lambda ids: model_logits(other, ids)}
    return score(prober.tokens, forwards, **prober.options)[name]


def probe_deployed(
    model: nn.Module, prober: Prober, step: int, simulated: pd.DataFrame, *, resamples: int
) -> pd.DataFrame:
    """One row per format of ``FORMATS``, measured or skipped, beside its simulated counterpart.

    ``simulated`` are the per-sequence scores that ``prober`` gave of the same model. Columns:
    step, format, package, version, status, reason, the measured columns of the audit,
    counterpart, simulated_gap_pct, and difference_points, the former gap minus the latter.
    """
    tables, reasons, found = [simulated], {}, []
    for name in FORMATS:
        try:
            tables.append(score_format(model, prober, name).table(step, name, DEPLOYED))
        except Exception as error:  # noqa: BLE001, whatever a back-end raises
            reasons[name] = one_line(error)
            logger.warning(f"step {step}: {name} skipped: {reasons[name]}")
    rows = summarise(pd.concat(tables), ["step"], resamples=resamples, seed=0)
    by_role = rows[rows["role"] != DEPLOYED].set_index("role")
    measured = rows[rows["role"] == DEPLOYED].set_index("quantizer").drop(columns=["step", "role"])
    for name, form in FORMATS.items():
        beside, there = by_role.loc[form.counterpart], name not in reasons
        numbers = measured.loc[name].to_dict() if there else dict.fromkeys(measured.columns)
        found.append({
            "step": step, "format": name, "package": form.package,
            "version": metadata.version(form.package) if there else "",
            "status": "measured" if there else "skipped", "reason": reasons.get(name, ""),
            **numbers,
            "counterpart": beside["quantizer"], "simulated_gap_pct": beside["gap_pct"],
            "difference_points": numbers["gap_pct"] - beside["gap_pct"] if there else None,
        })  # fmt: skip
    return pd.DataFrame(found).astype({"n_sequences": "Int64", "n_tokens": "Int64"})
