"""The probe of real quantized inference: what one would ship, beside the simulated gap.

The same weights go through torchao, bitsandbytes and the GGUF format, for the layers that
the simulated probe quantizes and no others, so that the format is the only difference. A
back-end that is not installed, or that a device or a layer does not allow, is skipped by
name with its reason.
"""

import copy
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from flatminima.intervals import summarise
from flatminima.jobs import log
from flatminima.layers import LinearWeight, linear_layers
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT
from flatminima.scoring import ModelForward, Prober, model_logits

DEPLOYED = "deployed"  # the role of their rows
GGUF_BLOCK = 32
NF4_BLOCK = 64
TORCHAO_GROUPS = (256, 128, 64, 32)  # what torchao's packed kernels take


class NotHere(Exception):
    """Why a format cannot be used for this model on this device, in one line."""


def gguf_model(model: nn.Module, layers: str, group: int, *, kind: str) -> nn.Module:
    """The model with its weights written to a GGUF file in ``kind`` and read back.

    The file holds these tensors and nothing else: it is no file for an inference engine.
    """
    import gguf

    quantization, selected = gguf.GGMLQuantizationType[kind], linear_layers(model, layers)
    _check_rows(selected, GGUF_BLOCK)
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


def _check_rows(layers: Mapping[str, LinearWeight | nn.Linear], block: int) -> None:
    for name, layer in layers.items():
        if layer.in_features % block:
            raise NotHere(f"{name} has {layer.in_features} inputs, no multiple of {block}")


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
    size = _torchao_group(model, layers, group)
    config = Int4WeightOnlyConfig(group_size=size, int4_packing_format="tile_packed_to_4d")
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


def bitsandbytes_model(model: nn.Module, layers: str, group: int, *, bits: int) -> nn.Module:
    """NF4, computed with in float32, or LLM.int8(), features beyond 6 kept in 16 bits."""
    import bitsandbytes as bnb

    device, chosen = next(model.parameters()).device, _only_linear(model, layers)
    if bits == 4:
        _check_rows(chosen, NF4_BLOCK)
    # It says for every product that it casts the inputs, which is what is asked for.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    for name, layer in chosen.items():
        shape, given = (layer.in_features, layer.out_features), {"bias": layer.bias is not None}
        weight = layer.weight.detach().cpu()
        if bits == 4:
            new = bnb.nn.Linear4bit(*shape, **given, quant_type="nf4", compute_dtype=torch.float32)
            new.weight = bnb.nn.Params4bit(
                weight, requires_grad=False, quant_type="nf4", blocksize=NF4_BLOCK
            )
        else:
            new = bnb.nn.Linear8bitLt(*shape, **given, has_fp16_weights=False, threshold=6.0)
            new.weight = bnb.nn.Int8Params(weight, has_fp16_weights=False, requires_grad=False)
        new.bias = layer.bias
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, new.to(device))
    return model


@dataclass(frozen=True)
class Format:
    """One way to ship a model. ``counterpart`` is the role of the simulated quantizer beside it.

    ``convert`` takes a copy of the model, which layers (``layers.Layers``) and the low-bit
    group size, and returns the model to run; it raises ``NotHere`` where it cannot.
    """

    package: str
    counterpart: str
    description: str
    convert: Callable[[nn.Module, str, int], nn.Module]


FORMATS = {
    "gguf_q4_1": Format(
        "gguf", LOW_BIT, "GGUF Q4_1: 4 bits, scale and minimum in float16, groups of 32",
        partial(gguf_model, kind="Q4_1"),
    ),
    "gguf_q8_0": Format(
        "gguf", HIGH_BIT, "GGUF Q8_0: 8 bits symmetric, scale in float16, groups of 32",
        partial(gguf_model, kind="Q8_0"),
    ),
    "torchao_int4": Format(
        "torchao", LOW_BIT, "Int4WeightOnlyConfig: packed 4-bit kernels in bfloat16", torchao_int4
    ),
    "torchao_intx4": Format(
        "torchao", LOW_BIT, "IntxWeightOnlyConfig of 4 bits, asymmetric, not packed, float32",
        torchao_intx,
    ),
    "torchao_int8": Format(
        "torchao", HIGH_BIT, "Int8WeightOnlyConfig: 8 bits symmetric per output channel",
        torchao_int8,
    ),
    "bitsandbytes_nf4": Format(
        "bitsandbytes", LOW_BIT, "NF4: 4-bit normal-float code book, groups of 64",
        partial(bitsandbytes_model, bits=4),
    ),
    "bitsandbytes_int8": Format(
        "bitsandbytes", HIGH_BIT, "LLM.int8(): weights and activations in 8 bits, outliers apart",
        partial(bitsandbytes_model, bits=8),
    ),
}  # fmt: skip


def probe_format(
    model: nn.Module, prober: Prober, step: int, name: str
) -> tuple[pd.DataFrame | None, str]:
    """Per-sequence scores of one format as ``Prober`` gives them, or why there are none."""
    form = FORMATS[name]
    if util.find_spec(form.package) is None:
        return None, f"the package {form.package} is not installed"
    low_bit = next(s for n, s in prober.specs.items() if prober.roles[n] == LOW_BIT)
    try:
        group = low_bit.row_group or 128
        other = form.convert(copy.deepcopy(model), low_bit.layers, group).eval()
        forwards = {FP32: ModelForward(model), name: lambda ids: model_logits(other, ids)}
        found = prober.score(forwards)[name]
    except NotHere as reason:
        return None, str(reason)
    except Exception as error:  # noqa: BLE001, whatever a back-end raises
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return found.table(step, name, DEPLOYED), ""


def probe_deployed(
    model: nn.Module, prober: Prober, step: int, simulated: pd.DataFrame, *, resamples: int
) -> pd.DataFrame:
    """One row per format of ``FORMATS``, measured or skipped, beside its simulated counterpart.

    ``simulated`` are the per-sequence scores that ``prober`` gave of the same model. Columns:
    step, format, package, version, status, reason, the measured columns of the audit,
    counterpart, simulated_gap_pct, and difference_points, the former gap minus the latter.
    """
    tables, reasons = [simulated], {}
    for name in FORMATS:
        table, reasons[name] = probe_format(model, prober, step, name)
        if table is None:
            log(f"step {step}: {name} skipped: {reasons[name]}")
        else:
            tables.append(table)
    rows = summarise(pd.concat(tables), ["step"], resamples=resamples, seed=0)
    return _beside(rows, reasons, step)


def _beside(rows: pd.DataFrame, reasons: Mapping[str, str], step: int) -> pd.DataFrame:
    simulated = rows[rows["role"] != DEPLOYED].set_index("role")
    measured = rows[rows["role"] == DEPLOYED].set_index("quantizer").drop(columns=["step", "role"])
    found = []
    for name, form in FORMATS.items():
        beside, there = simulated.loc[form.counterpart], name in measured.index
        numbers = measured.loc[name].to_dict() if there else dict.fromkeys(measured.columns)
        found.append({
            "step": step, "format": name, "package": form.package,
            "version": metadata.version(form.package) if there else "",
            "status": "measured" if there else "skipped", "reason": reasons[name],
            **numbers,
            "counterpart": beside["quantizer"], "simulated_gap_pct": beside["gap_pct"],
            "difference_points": numbers["gap_pct"] - beside["gap_pct"] if there else None,
        })  # fmt: skip
    return pd.DataFrame(found).astype({"n_sequences": "Int64", "n_tokens": "Int64"})
