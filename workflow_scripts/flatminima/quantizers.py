"""Round-to-nearest weight quantization without calibration: one function per kind.

``quantizer_specs`` defines the quantizers. ``fake_quantize`` is a pure function of a weight and
a spec. ``KINDS`` has one function per kind, of groups of weights that share a scale. All
operations are float32 in a fixed order, so codes and values are defined to the last bit.

With b bits, ``affine`` computes for each group of weights w (equations 1 and 2):

asymmetric   scale = (max(w) - min(w)) / (2^b - 1)
             zero  = round(-min(w) / scale)
             code  = clamp(round(w / scale) + zero, 0, 2^b - 1)
             value = (code - zero) * scale
symmetric    scale = max(|w|) / (2^(b-1) - 1), zero = 0,
             code  = clamp(round(w / scale), -(2^(b-1) - 1), 2^(b-1) - 1)

``round`` rounds ties to even. The zero point is an integer that is not clamped, so groups of
one sign are quantized as well as any other. A group whose scale is zero or subnormal, such as a
constant group, is returned unchanged. If all weights of a group are smaller than about 1e-30, the
last bit may depend on whether the processor flushes subnormal numbers to zero
(``device.prepare_backend``).

A four-bit code book scales a group, replaces each weight by the nearest entry (the lower one at
a tie) and scales back. A group whose scale is zero becomes zero.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from flatminima.equalization import MatrixScales, equalized_layers
from flatminima.errors import Diverged, UserError
from flatminima.layers import count_weights, kind_of, linear_layers, not_selected
from flatminima.quantizer_specs import AffineQuantizer, AnyQuantizer

SMALLEST_SCALE = torch.finfo(torch.float32).tiny
# Code books in rising order. E2M1's 15 values; its largest, 6 = 1.5 * 2^2, has exponent 2.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SIGNED_E2M1 = [*(-value for value in E2M1[:0:-1]), *E2M1]
_E2M1_EXPONENT = 2
_E4M3_MAX = 448.0
# NF4 has 8 positive and 7 negative entries, which are quantiles of the normal distribution. The
# outermost quantile is the mean of 1 - 1/30 and 1 - 1/32 (QLoRA, appendix E).
_POSITIVE = ndtri(np.linspace(0.9677083, 0.5, 9)[:-1])
_NEGATIVE = ndtri(np.linspace(0.9677083, 0.5, 8)[:-1])
_NF4 = np.sort([*-_NEGATIVE, 0.0, *_POSITIVE]) / _POSITIVE[0]


def split_groups(weight: Tensor, spec: AnyQuantizer) -> list[Tensor]:
    """Split ``[out, in]`` weights into groups that share a scale, along the last axis.

    Returns ``[out, groups, group]``, and ``[out, 1, remainder]`` if the groups do not fill a row.
    If the tensor has a single scale, returns ``[1, 1, all]``.
    """
    if isinstance(spec, AffineQuantizer) and spec.granularity == "tensor":
        return [weight.reshape(1, 1, -1)]
    out_features, in_features = weight.shape
    size = spec.group_length(in_features)
    in_full_groups = in_features - in_features % size
    full_groups = weight[:, :in_full_groups].reshape(out_features, -1, size)
    remainder = weight[:, None, in_full_groups:]
    return [part for part in (full_groups, remainder) if part.numel()]


def join_groups(parts: list[Tensor], weight: Tensor) -> Tensor:
    """Inverse of ``split_groups``: a tensor in the shape of ``weight``."""
    if len(parts) == 1:
        return parts[0].reshape(weight.shape)
    return torch.cat([part.reshape(len(weight), -1) for part in parts], dim=1)


# Each kind is a function of groups [..., group], the spec, and the largest magnitude in the
# entire weight. Only nvfp4 uses the largest magnitude.


def affine_scale(groups: Tensor, spec: AffineQuantizer) -> Tensor:
    """Distance between neighbouring levels, ``[..., 1]`` for groups ``[..., group]``."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    span = torch.maximum(low.abs(), high.abs()) if spec.symmetric else high - low
    return span / _top(spec)


def _top(spec: AffineQuantizer) -> int:
    """The largest code."""
    return 2 ** (spec.bits - 1) - 1 if spec.symmetric else 2**spec.bits - 1


def affine_codes(groups: Tensor, spec: AffineQuantizer) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of ``[..., group]`` weights, and the groups' zero points and scales, ``[..., 1]``."""
    scale = affine_scale(groups, spec)
    low = groups.amin(dim=-1, keepdim=True)
    # Equation 1: the code of zero. A symmetric grid has its zero in the middle.
    zero = torch.zeros_like(scale) if spec.symmetric else torch.round(-low / scale)
    bottom = -_top(spec) if spec.symmetric else 0
    # In place: groups may be hundreds of megabytes.
    codes = torch.round(groups / scale).add_(zero).clamp_(bottom, _top(spec))
    return codes, zero, scale


def _affine(groups: Tensor, spec: AffineQuantizer, largest: Tensor) -> Tensor:
    codes, zero, scale = affine_codes(groups, spec)
    return torch.where(scale < SMALLEST_SCALE, groups, codes.sub_(zero).mul_(scale))


def _code_book(groups: Tensor, scale: Tensor, code: Sequence[float]) -> Tensor:
    """Each value over its scale replaced by the nearest entry (the lower one at a tie)."""
    book = torch.tensor(code, dtype=torch.float32, device=groups.device)
    # Midpoints between neighbouring entries are the borders of the cells.
    values = book[torch.bucketize(groups / scale, (book[1:] + book[:-1]) / 2)]
    return torch.where(scale > 0, values * scale, 0.0)


def _largest(groups: Tensor) -> Tensor:
    """Largest magnitude of each group, ``[..., 1]``."""
    return groups.abs().amax(dim=-1, keepdim=True)


def _nf4(groups: Tensor, spec: AnyQuantizer, largest: Tensor) -> Tensor:
    return _code_book(groups, _largest(groups), _NF4)


def _mxfp4(groups: Tensor, spec: AnyQuantizer, largest: Tensor) -> Tensor:
    # frexp: largest = mantissa * 2^exponent with a mantissa in [0.5, 1), exact.
    group_largest = _largest(groups)
    exponent = torch.frexp(group_largest).exponent - 1 - _E2M1_EXPONENT
    power_of_two = torch.ldexp(torch.ones_like(group_largest), exponent)
    scale = torch.where(group_largest > 0, power_of_two, 0.0)
    return _code_book(groups, scale, _SIGNED_E2M1)


def _nvfp4(groups: Tensor, spec: AnyQuantizer, largest: Tensor) -> Tensor:
    # Each group's scale is stored in eight bits, as a multiple of one float32 scale per tensor.
    tensor_scale = largest / (E2M1[-1] * _E4M3_MAX)
    exact_multiple = _largest(groups) / E2M1[-1] / tensor_scale
    stored_multiple = exact_multiple.to(torch.float8_e4m3fn).to(torch.float32)
    scale = stored_multiple * tensor_scale
    return _code_book(groups, scale, _SIGNED_E2M1)


KINDS = {"affine": _affine, "nf4": _nf4, "mxfp4": _mxfp4, "nvfp4": _nvfp4}


# Weights


def fake_quantize(weight: Tensor, spec: AnyQuantizer) -> Tensor:
    """Quantize and dequantize one weight (equation 2), float32 ``[out_features, in_features]``.

    Returns a new tensor. Raises ``TypeError`` for another dtype, and ``Diverged`` for weights
    that are not finite or whose range overflows float32.
    """
    if weight.dtype != torch.float32:
        raise TypeError(f"weights must be float32 to be quantized, not {weight.dtype}")
    # NaN and infinity both reach the extremes, so one pass finds every bad weight.
    low, high = weight.aminmax()
    if not torch.isfinite(high - low):
        raise Diverged(f"weights span {low.item()} to {high.item()}: not a finite range")
    largest = torch.maximum(low.abs(), high.abs())
    quantize = KINDS[spec.kind]
    parts = [quantize(part, spec, largest) for part in split_groups(weight, spec)]
    return join_groups(parts, weight)


def grid_steps(weight: Tensor, spec: AffineQuantizer) -> Tensor:
    """Distance between neighbouring levels around each weight; zero in unchanged groups.

    Raises ``UserError`` for a kind whose levels are not evenly spaced.
    """
    if not isinstance(spec, AffineQuantizer):
        raise UserError(f"{spec.label} has no evenly spaced levels; this measurement needs them")
    parts = [affine_scale(part, spec).expand_as(part) for part in split_groups(weight, spec)]
    steps = join_groups(parts, weight)
    return torch.where(steps < SMALLEST_SCALE, 0.0, steps)


# Models


def linear_weights(model: nn.Module, layers: str = "blocks") -> dict[str, nn.Parameter]:
    """Weights that a probe quantizes, by parameter name (``layers.linear_layers``)."""
    return {name: layer.weight for name, layer in linear_layers(model, layers).items()}


class Quantized(Mapping):
    """Fake-quantized weights that ``spec`` selects, by parameter name; the model is unchanged.

    With ``keep`` all weights are quantized once and kept. Otherwise a weight is quantized each time
    it is read, so that only one is in memory.

    With ``spec.equalize``, weights are scaled, quantized and scaled back. This gives the same
    function as a scaled and quantized model, and the rest of the model stays as it is.
    """

    def __init__(self, model: nn.Module, spec: AnyQuantizer, *, keep: bool) -> None:
        self._layers = linear_layers(model, spec.layers)
        self._spec = spec
        self._scales = equalizing_scales_of(model, spec)
        self._kept: dict[str, Tensor] = {}
        if keep:
            self._kept = dict(self)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._kept:
            return self._kept[name]
        layer = self._layers[name]
        try:
            # One matrix per expert, each [out, in]: groups run along the inputs.
            quantized = [
                _scaled_and_quantized(matrix, self._spec, self._scales.get(name))
                for matrix in layer.matrices()
            ]
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        return layer.restored(torch.stack(quantized))

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def _scaled_and_quantized(
    matrix: Tensor, spec: AnyQuantizer, scales: MatrixScales | None
) -> Tensor:
    """``fake_quantize`` of a scaled matrix ``[out, in]``, in the scale of the model."""
    if scales is None:
        return fake_quantize(matrix, spec)
    factors = scales.of(matrix)
    return fake_quantize(matrix * factors, spec).div_(factors)


def equalizing_scales_of(model: nn.Module, spec: AnyQuantizer) -> dict[str, MatrixScales]:
    """Scales by parameter name of the weights that ``spec`` equalizes."""
    if spec.equalize == "none":
        return {}
    return equalized_layers(model, linear_layers(model, spec.layers), spec.equalize)


def quantized_weights(model: nn.Module, spec: AnyQuantizer) -> dict[str, Tensor]:
    """All fake-quantized weights that ``spec`` selects, by parameter name."""
    return dict(Quantized(model, spec, keep=False))


def coverage(model: nn.Module, spec: AnyQuantizer, read: Collection[str] | None = None) -> dict:
    """Which weights of a model ``spec`` quantizes, and which it leaves unchanged.

    ``read`` are the names of the parameters that the model read when it ran. A selected weight
    that was not read counts as left, since quantizing it changes nothing. Keys:

    - ``weights`` of ``of`` are quantized, in ``matrices`` and ``groups``
    - ``bits_per_weight`` of the quantized weights, with their scales
    - ``narrowed``: inputs of layers narrower than a group, by ``kind_of`` their names
    - ``left``: weights left unchanged, by ``kind_of`` their names
    - ``unread``: the part of ``left`` that was selected but not read
    - ``not_equalized``: with ``spec.equalize``, quantized weights whose columns have no free
      scale, by ``kind_of`` their names
    """
    selected = linear_layers(model, spec.layers)
    used = selected
    if read is not None:
        used = {name: layer for name, layer in selected.items() if name in read}
    shapes = [layer.matrices().shape for layer in used.values()]  # [experts, out, in] each
    weights = sum(shape.numel() for shape in shapes)
    bits = sum(shape.numel() * spec.storage_bits(*shape[1:]) for shape in shapes)
    left = not_selected(model, used)
    not_read = {kind_of(name) for name in selected if name not in used}
    record = {
        "weights": weights,
        "of": count_weights(model),
        "matrices": sum(shape[0] for shape in shapes),
        "groups": sum(shape[0] * spec.count_groups(*shape[1:]) for shape in shapes),
        "bits_per_weight": bits / weights if weights else 0.0,
        "narrowed": {
            kind_of(name): layer.in_features
            for name, layer in used.items()
            if spec.row_group is not None and layer.in_features < spec.row_group
        },
        "left": left,
        "unread": {kind: left[kind] for kind in sorted(not_read)},
    }
    if spec.equalize != "none":
        scales = equalizing_scales_of(model, spec)
        not_equalized: Counter[str] = Counter()
        for name, layer in used.items():
            if name not in scales or (scales[name].columns == 1.0).all():
                not_equalized[kind_of(name)] += layer.weight.numel()
        record["not_equalized"] = dict(not_equalized)
    return record


def coverage_line(coverage: Mapping) -> str:
    """``coverage`` in one line for a log."""
    left = _counts_text(coverage["left"])
    line = (
        f"{coverage['weights']:,} of {coverage['of']:,} weights quantized "
        f"({100 * coverage['weights'] / coverage['of']:.1f} %) in {coverage['matrices']:,} "
        f"matrices and {coverage['groups']:,} groups; left unchanged: {left or 'none'}"
    )
    if coverage["narrowed"]:
        line += f"; groups narrowed to the rows of {_counts_text(coverage['narrowed'])}"
    if coverage["unread"]:
        line += f"; not read when the model ran: {', '.join(coverage['unread'])}"
    if coverage.get("not_equalized"):
        line += f"; not equalized: {_counts_text(coverage['not_equalized'])}"
    return line


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
