"""Calibration-free round-to-nearest weight quantization (equations 1 and 2).

A ``QuantizerSpec`` is data; ``fake_quantize`` is a pure function of a weight and a
spec. Every operation is a float32 operation in a stated order, so that codes and
values are defined to the bit. With b bits, per group of weights w:

asymmetric   scale = (max(w) - min(w)) / (2^b - 1)
             zero  = round(-min(w) / scale)
             code  = clamp(round(w / scale) + zero, 0, 2^b - 1)
             value = (code - zero) * scale
symmetric    scale = max(|w|) / (2^(b-1) - 1), zero = 0,
             code  = clamp(round(w / scale), -(2^(b-1) - 1), 2^(b-1) - 1)

``round`` takes ties to even. The zero point is an integer that is not clamped, so
groups of one sign are quantized as well as any other. A group whose scale is zero
or subnormal (a constant group, say) is returned unchanged. Groups whose weights are
all smaller than about 1e-30 may differ in the last bit between a processor that
flushes subnormal numbers to zero (``prepare_backend``) and one that does not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from flatminima.layers import (
    Layers,
    LinearWeight,
    check_layers,
    count_weights,
    linear_layers,
    not_selected,
)
from flatminima.logits import OnUse

Granularity = Literal["tensor", "channel", "group"]
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
MOST_HELD = 2**23  # weights of a quantized copy that is kept in memory, 32 MiB
LARGEST_ZERO = 2**22  # below it float32 holds every sum of a code and a zero point


@dataclass(frozen=True)
class QuantizerSpec:
    """What a quantizer does; one entry of ``quantizers`` in ``config.yaml``.

    ``group_size`` counts weights along the input dimension and is only read where
    ``granularity`` is ``group``. ``layers`` is ``blocks`` (every linear layer but
    the output head, as in the paper) or ``blocks+head``. Raises ``ValueError`` for
    a value that is none of these, so that no typo can mean something else.
    """

    bits: int
    granularity: Granularity
    symmetric: bool
    group_size: int | None = None
    layers: Layers = "blocks"

    def __post_init__(self) -> None:
        if self.bits not in range(2, 9):
            raise ValueError(f"bits {self.bits}: 2 to 8")
        if self.granularity not in get_args(Granularity):
            raise ValueError(
                f"granularity {self.granularity!r}: {', '.join(get_args(Granularity))}"
            )
        check_layers(self.layers)

    @property
    def label(self) -> str:
        """Short name for tables and figures, such as ``INT4``."""
        return f"INT{self.bits}"

    @property
    def description(self) -> str:
        """One phrase for captions."""
        symmetry = "symmetric" if self.symmetric else "asymmetric"
        unit = {
            "tensor": "per tensor",
            "channel": "per output channel",
            "group": f"per group of {self.group_size}",
        }[self.granularity]
        return f"{self.label} {symmetry}, {unit}"


def group_length(spec: QuantizerSpec, in_features: int) -> int:
    """Weights along the input dimension that share a scale, for ``channel`` and ``group``."""
    if spec.granularity == "channel":
        return in_features
    if spec.group_size is None or not 1 <= spec.group_size <= in_features:
        raise ValueError(
            f"group_size {spec.group_size}: a layer with {in_features} inputs takes 1 to "
            f"{in_features}"
        )
    return spec.group_size


def count_groups(spec: QuantizerSpec, out_features: int, in_features: int) -> int:
    """Number of scales of one ``[out_features, in_features]`` matrix."""
    if spec.granularity == "tensor":
        return 1
    return out_features * -(-in_features // group_length(spec, in_features))


def _scales(low: Tensor, high: Tensor, spec: QuantizerSpec) -> tuple[Tensor, Tensor]:
    """Scale and zero point of groups whose weights lie between ``low`` and ``high``."""
    if spec.symmetric:
        scale = torch.maximum(low.abs(), high.abs()) / _top(spec)
        return scale, torch.zeros_like(scale)
    scale = (high - low) / _top(spec)
    return scale, torch.round(-low / scale)


def _top(spec: QuantizerSpec) -> int:
    """The largest code."""
    return 2 ** (spec.bits - 1) - 1 if spec.symmetric else 2**spec.bits - 1


def _quantize_rows(
    rows: Tensor, low: Tensor, high: Tensor, spec: QuantizerSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, zero points and scales of ``[..., group]`` weights, one scale per last axis."""
    scale, zero = _scales(low, high, spec)
    bottom = -_top(spec) if spec.symmetric else 0
    codes = torch.round(rows / scale).add_(zero).clamp_(bottom, _top(spec))
    return codes, zero, scale


def _rows_plainly(rows: Tensor, low: Tensor, high: Tensor, spec: QuantizerSpec) -> Tensor:
    """The definition, operation by operation, for any group at all."""
    codes, zero, scale = _quantize_rows(rows, low, high, spec)
    values = codes.sub_(zero).mul_(scale)
    return torch.where(scale < SMALLEST_SCALE, rows, values)


def _rows_in_place(rows: Tensor, low: Tensor, high: Tensor, spec: QuantizerSpec) -> Tensor:
    """The same bits with half the passes over the weights.

    Where codes and zero points are integers that float32 holds exactly, the zero point
    need not be added and taken off again: only the largest code is compared with it. The
    smallest is 0 by itself, and the symmetric ones stay in their range by themselves.
    Adding 0 makes -0 the 0 that the definition has. Other groups take the definition.
    """
    scale, zero = _scales(low, high, spec)
    exact = (scale >= SMALLEST_SCALE).logical_and_(zero.abs() < LARGEST_ZERO)
    if not exact.all():
        return _rows_plainly(rows, low, high, spec)
    values = torch.div(rows, scale).round_()
    if not spec.symmetric:
        torch.minimum(values, _top(spec) - zero, out=values)
    return values.mul_(scale).add_(0.0)


def fake_quantize(weight: Tensor, spec: QuantizerSpec) -> Tensor:
    """Quantize and dequantize one weight (equation 2).

    ``weight`` is float32 ``[out_features, in_features]``; the result has the same
    shape and dtype and shares no memory with it. The last group of a row holds the
    remainder where ``group_size`` does not divide ``in_features``. Raises
    ``TypeError`` for another dtype and ``ValueError`` for non-finite weights or a
    range that overflows float32.
    """
    return _fake_quantize(weight, spec, _rows_in_place)


def fake_quantize_plainly(weight: Tensor, spec: QuantizerSpec) -> Tensor:
    """The same as the definition says it, several times slower: what tests compare with."""
    return _fake_quantize(weight, spec, _rows_plainly)


def _fake_quantize(weight: Tensor, spec: QuantizerSpec, quantize_rows: Callable) -> Tensor:
    if weight.dtype != torch.float32:
        raise TypeError(f"weights must be float32 to be quantized, not {weight.dtype}")
    groups = [
        (rows, rows.amin(dim=-1, keepdim=True), rows.amax(dim=-1, keepdim=True))
        for rows in _grouped(weight, spec)
    ]
    low = torch.stack([lows.min() for _, lows, _ in groups]).min()
    high = torch.stack([highs.max() for _, _, highs in groups]).max()
    if not torch.isfinite(high - low):
        raise ValueError(f"weights span {low.item()} to {high.item()}: not a finite range")
    parts = [quantize_rows(*group, spec) for group in groups]
    if len(parts) == 1:
        return parts[0].reshape(weight.shape)
    return torch.cat([part.reshape(len(weight), -1) for part in parts], dim=1)


def _grouped(weight: Tensor, spec: QuantizerSpec) -> list[Tensor]:
    """The weights with a group along the last axis; what is left over at the end of the rows."""
    weight = weight.contiguous()
    if spec.granularity == "tensor":
        return [weight.reshape(1, -1)]
    out_features, in_features = weight.shape
    size = group_length(spec, in_features)
    whole = in_features - in_features % size
    if whole == in_features:
        return [weight.reshape(out_features, -1, size)]
    return [weight[:, :whole].reshape(out_features, -1, size), weight[:, whole:]]


def linear_weights(model: nn.Module, layers: str = "blocks") -> dict[str, nn.Parameter]:
    """Weights that a probe quantizes, by parameter name (``layers.linear_layers``)."""
    return {name: layer.weight for name, layer in linear_layers(model, layers).items()}


def _quantize_layer(layer: LinearWeight, spec: QuantizerSpec) -> Tensor:
    """The layer's weight, quantized along its inputs; each expert is a matrix of its own."""
    matrices = layer.matrices()
    if len(matrices) == 1:
        return layer.restored(fake_quantize(matrices[0], spec).unsqueeze(0))
    if spec.granularity == "tensor":
        return layer.restored(torch.stack([fake_quantize(matrix, spec) for matrix in matrices]))
    rows = fake_quantize(matrices.reshape(-1, layer.in_features), spec)
    return layer.restored(rows.reshape(matrices.shape))


def quantized_weights(model: nn.Module, spec: QuantizerSpec) -> dict[str, Tensor]:
    """Fake-quantized copies of the weights that ``spec`` selects; the model is untouched."""
    return dict(quantized_on_use(model, spec))


def quantized_on_use(model: nn.Module, spec: QuantizerSpec) -> OnUse:
    """The same, each made anew from the model's weight whenever it is asked for."""
    layers = linear_layers(model, spec.layers)

    def make(name: str) -> Tensor:
        try:
            return _quantize_layer(layers[name], spec)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error

    return OnUse(list(layers), make)


def probe_weights(model: nn.Module, spec: QuantizerSpec) -> Mapping[str, Tensor]:
    """Quantized weights for a probe: held where they are small, made on use where they are not.

    Making them takes a hundredth of what a batch of a larger model does.
    """
    quantized = quantized_on_use(model, spec)
    count = sum(layer.weight.numel() for layer in linear_layers(model, spec.layers).values())
    return dict(quantized) if count <= MOST_HELD else quantized


def coverage(model: nn.Module, spec: QuantizerSpec) -> dict:
    """How many weights of the model ``spec`` quantizes, in how many groups, and which it leaves.

    Keys: weights, of, matrices, groups, left (counts by name, ``layers.not_selected``).
    """
    selected = linear_layers(model, spec.layers)
    matrices = {name: layer.matrices() for name, layer in selected.items()}
    return {
        "weights": sum(layer.weight.numel() for layer in selected.values()),
        "of": count_weights(model),
        "matrices": sum(len(stack) for stack in matrices.values()),
        "groups": sum(len(m) * count_groups(spec, *m.shape[1:]) for m in matrices.values()),
        "left": not_selected(model, selected),
    }


def coverage_line(found: Mapping) -> str:
    """``coverage`` in one line for a log."""
    left = ", ".join(f"{name} {count:,}" for name, count in found["left"].items())
    return (
        f"{found['weights']:,} of {found['of']:,} weights quantized "
        f"({100 * found['weights'] / found['of']:.1f} %) in {found['matrices']:,} matrices and "
        f"{found['groups']:,} groups; left as they are: {left or 'none'}"
    )


def read_specs(definitions: Mapping[str, Mapping]) -> dict[str, QuantizerSpec]:
    """Specs by name from the ``quantizers`` section of the configuration."""
    return {name: QuantizerSpec(**definition) for name, definition in definitions.items()}
