"""Calibration-free round-to-nearest weight quantization: one function a kind.

``quantizer_specs`` says what quantizers are; ``fake_quantize`` is a pure function of a weight
and a spec. A kind is a function of groups of weights that share a scale, in ``KINDS``. Every
operation is a float32 operation in a stated order, so that codes and values are defined to
the bit. With b bits, per group of weights w, ``affine`` is (equations 1 and 2)

asymmetric   scale = (max(w) - min(w)) / (2^b - 1)
             zero  = round(-min(w) / scale)
             code  = clamp(round(w / scale) + zero, 0, 2^b - 1)
             value = (code - zero) * scale
symmetric    scale = max(|w|) / (2^(b-1) - 1), zero = 0,
             code  = clamp(round(w / scale), -(2^(b-1) - 1), 2^(b-1) - 1)

``round`` takes ties to even. The zero point is an integer that is not clamped, so groups of
one sign are quantized as well as any other. A group whose scale is zero or subnormal (a
constant group, say) is returned unchanged. Groups whose weights are all smaller than about
1e-30 may differ in the last bit between a processor that flushes subnormal numbers to zero
(``device.prepare_backend``) and one that does not.

The four-bit code books scale a group, take the nearest entry (the lower one at a tie) and
scale back; a group whose scale is zero becomes zero.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from flatminima.errors import Diverged, UserError
from flatminima.layers import count_weights, kind_of, linear_layers, not_selected
from flatminima.quantizer_specs import AffineQuantizer, AnyQuantizer

SMALLEST_SCALE = torch.finfo(torch.float32).tiny
MOST_HELD = 2**23  # weights of a quantized copy that is kept in memory, 32 MiB
# Code books in rising order. E2M1's 15 values; its largest, 6 = 1.5 * 2^2, has exponent 2.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SIGNED_E2M1 = [*(-value for value in E2M1[:0:-1]), *E2M1]
_E2M1_EXPONENT = 2
_E4M3_MAX = 448.0
# Quantiles of the normal distribution on either side of zero; the outermost is the mean of
# 1 - 1/30 and 1 - 1/32.
_POSITIVE, _NEGATIVE = (ndtri(np.linspace(0.9677083, 0.5, n)[:-1]) for n in (9, 8))
_NF4 = np.sort([*-_NEGATIVE, 0.0, *_POSITIVE]) / _POSITIVE[0]


def split_groups(weight: Tensor, spec: AnyQuantizer) -> list[Tensor]:
    """The ``[out, in]`` weights as ``[out, groups, group]``, and ``[out, 1, remainder]`` if any.

    ``[1, 1, all]`` where a tensor has one scale.
    """
    if isinstance(spec, AffineQuantizer) and spec.granularity == "tensor":
        return [weight.reshape(1, 1, -1)]
    out_features, in_features = weight.shape
    size = spec.group_length(in_features)
    whole = in_features - in_features % size
    parts = [weight[:, :whole].reshape(out_features, -1, size), weight[:, None, whole:]]
    return [part for part in parts if part.numel()]


def join_groups(parts: list[Tensor], weight: Tensor) -> Tensor:
    """Inverse of ``split_groups``: a tensor in the shape of ``weight``."""
    if len(parts) == 1:
        return parts[0].reshape(weight.shape)
    return torch.cat([part.reshape(len(weight), -1) for part in parts], dim=1)


# Kinds: a function of groups [..., group], their spec, and the largest magnitude of the weight


def affine_scale(groups: Tensor, spec: AffineQuantizer) -> Tensor:
    """Distance of neighbouring levels of each group, kept as an axis of length 1."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    span = torch.maximum(low.abs(), high.abs()) if spec.symmetric else high - low
    return span / _top(spec)


def _top(spec: AffineQuantizer) -> int:
    """The largest code."""
    return 2 ** (spec.bits - 1) - 1 if spec.symmetric else 2**spec.bits - 1


def affine_codes(groups: Tensor, spec: AffineQuantizer) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of ``[..., group]`` weights, and their zero points and scales."""
    scale, low = affine_scale(groups, spec), groups.amin(dim=-1, keepdim=True)
    zero = torch.zeros_like(scale) if spec.symmetric else torch.round(-low / scale)
    bottom = -_top(spec) if spec.symmetric else 0
    codes = torch.round(groups / scale).add_(zero).clamp_(bottom, _top(spec))
    return codes, zero, scale


def _affine(groups: Tensor, spec: AffineQuantizer, largest: Tensor) -> Tensor:
    codes, zero, scale = affine_codes(groups, spec)
    return torch.where(scale < SMALLEST_SCALE, groups, codes.sub_(zero).mul_(scale))


def _code_book(groups: Tensor, scale: Tensor, code: Sequence[float]) -> Tensor:
    """Each value over its scale replaced by the nearest entry (the lower one at a tie)."""
    book = torch.tensor(code, dtype=torch.float32, device=groups.device)
    values = book[torch.bucketize(groups / scale, (book[1:] + book[:-1]) / 2)]
    return torch.where(scale > 0, values * scale, 0.0)


def _largest(groups: Tensor) -> Tensor:
    return groups.abs().amax(dim=-1, keepdim=True)


def _nf4(groups: Tensor, spec: AnyQuantizer, largest: Tensor) -> Tensor:
    return _code_book(groups, _largest(groups), _NF4)


def _mxfp4(groups: Tensor, spec: AnyQuantizer, largest: Tensor) -> Tensor:
    # frexp: largest = mantissa * 2^exponent with a mantissa in [0.5, 1), exact.
    own = _largest(groups)
    exponent = torch.frexp(own).exponent - 1 - _E2M1_EXPONENT
    scale = torch.where(own > 0, torch.ldexp(torch.ones_like(own), exponent), 0.0)
    return _code_book(groups, scale, _SIGNED_E2M1)


def _nvfp4(groups: Tensor, spec: AnyQuantizer, largest: Tensor) -> Tensor:
    whole = largest / (E2M1[-1] * _E4M3_MAX)
    wanted = _largest(groups) / E2M1[-1] / whole
    scale = wanted.to(torch.float8_e4m3fn).to(torch.float32) * whole
    return _code_book(groups, scale, _SIGNED_E2M1)


KINDS = {"affine": _affine, "nf4": _nf4, "mxfp4": _mxfp4, "nvfp4": _nvfp4}


# Weights


def fake_quantize(weight: Tensor, spec: AnyQuantizer) -> Tensor:
    """Quantize and dequantize one weight (equation 2), float32 ``[out_features, in_features]``.

    The result shares no memory with it. Raises ``TypeError`` for another dtype and ``Diverged``
    for non-finite weights or a range that overflows float32.
    """
    if weight.dtype != torch.float32:
        raise TypeError(f"weights must be float32 to be quantized, not {weight.dtype}")
    low, high = weight.aminmax()
    if not torch.isfinite(high - low):
        raise Diverged(f"weights span {low.item()} to {high.item()}: not a finite range")
    largest, quantize = torch.maximum(low.abs(), high.abs()), KINDS[spec.kind]
    parts = [quantize(part, spec, largest) for part in split_groups(weight, spec)]
    return join_groups(parts, weight)


def grid_steps(weight: Tensor, spec: AffineQuantizer) -> Tensor:
    """Distance of neighbouring levels for every weight; zero where a group is left as it is.

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
    """Fake-quantized weights that ``spec`` selects, by parameter name; the model is untouched.

    Each is made when it is asked for, so that no more than one layer's is there at a time; all
    are kept where they are small. Making them takes a hundredth of a larger model's batch.
    """

    def __init__(self, model: nn.Module, spec: AnyQuantizer, most_held: int = MOST_HELD) -> None:
        self._layers, self._spec, self._kept = linear_layers(model, spec.layers), spec, {}
        if sum(layer.weight.numel() for layer in self._layers.values()) <= most_held:
            self._kept = dict(self)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._kept:
            return self._kept[name]
        layer = self._layers[name]
        try:  # along the inputs; each expert is a matrix of its own
            found = torch.stack([fake_quantize(m, self._spec) for m in layer.matrices()])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        return layer.restored(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def quantized_weights(model: nn.Module, spec: AnyQuantizer) -> dict[str, Tensor]:
    """The same, all of them at once."""
    return dict(Quantized(model, spec, most_held=0))


def coverage(model: nn.Module, spec: AnyQuantizer, read: Collection[str] | None = None) -> dict:
    """How many weights of the model ``spec`` quantizes, in how many groups, and which it leaves.

    ``read`` are the names of those that the model has read when it ran; others change nothing
    and count as left. Beside counts: bits_per_weight (of those quantized, scales among them),
    narrowed (inputs of layers narrower than a group, by name with ``*`` for numbers), left
    (counts by name), unread (the part of ``left`` that was selected but not read).
    """
    selected = linear_layers(model, spec.layers)
    used = selected if read is None else {n: v for n, v in selected.items() if n in read}
    shapes = [layer.matrices().shape for layer in used.values()]
    weights = sum(shape.numel() for shape in shapes)
    bits = sum(shape.numel() * spec.storage_bits(*shape[1:]) for shape in shapes)
    left = not_selected(model, used)
    not_read = {kind_of(name) for name in selected if name not in used}
    return {
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


def coverage_line(found: Mapping) -> str:
    """``coverage`` in one line for a log."""
    left, narrowed = (
        ", ".join(f"{name} {count:,}" for name, count in found[key].items())
        for key in ("left", "narrowed")
    )
    line = (
        f"{found['weights']:,} of {found['of']:,} weights quantized "
        f"({100 * found['weights'] / found['of']:.1f} %) in {found['matrices']:,} matrices and "
        f"{found['groups']:,} groups; left as they are: {left or 'none'}"
    )
    if narrowed:
        line += f"; groups narrowed to the rows of {narrowed}"
    if found["unread"]:
        line += f"; not read when the model ran: {', '.join(found['unread'])}"
    return line
