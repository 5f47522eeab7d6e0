"""Definitions of quantizers. One class per kind has its configuration keys, checks and names.

This module does not import torch, so that the configuration, tables and figures can use it.
``flatminima.quantizers`` has the function of each kind. A new code book needs a line in
``CODE_BOOKS``; any other new kind needs a class that is named in ``AnyQuantizer``. Both need a
function in ``quantizers.KINDS``.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator

from flatminima.config_section import LARGEST_COUNT, Section
from flatminima.errors import UserError

Layers = Literal["blocks", "blocks+head"]
Equalize = Literal["none", "norm", "max"]
Granularity = Literal["tensor", "channel", "group"]

# Roles: what a row of a measured table is about, whatever names the quantizers have.
FP32 = "fp32"  # the unchanged model
LOW_BIT = "low_bit"  # the quantizer whose collapse is audited
HIGH_BIT = "high_bit"  # the quantizer that it is compared with

# Number of weights that share a scale, and bits of the scale.
CODE_BOOKS = {
    "nf4": (64, 32),  # QLoRA: Dettmers et al., arXiv 2305.14314, appendix E
    "mxfp4": (32, 8),  # OCP Microscaling Formats 1.0, 5.3.3 and 6.3
    "nvfp4": (16, 8),  # the tensor's float32 scale is not counted
}


def fit_group(size: int, in_features: int) -> int:
    """Number of weights of a row that share a scale, for a requested group ``size``.

    A row shorter than a group is one group; ``quantizers.coverage`` names such layers. If the
    size does not divide a row, the last group of the row has the remainder. All code about
    groups relies on this function.
    """
    return min(size, in_features)


class _Quantizer(Section):
    """Base class of all kinds. Each kind defines:

    - ``bits`` per weight
    - ``scale_bits``: bits of a scale, with its zero point if there is one
    - ``row_group``: weights along the inputs that share a scale, ``None`` for an entire row
    - ``label``: short name in tables and figures, such as ``INT4``
    - ``description``: a phrase for captions
    """

    model_config = ConfigDict(frozen=True)

    layers: Layers = Field(
        "blocks",
        description="Which linear layers are quantized: all but the output head, or with it.",
    )
    equalize: Equalize = Field(
        "none",
        description="Scale channels before rounding, where this leaves the model's function as it "
        "is: to columns of equal norm, or of equal largest magnitude. Uses the weights alone.",
    )

    def _with_repairs(self, name: str) -> str:
        """``name`` with what is done beside rounding to nearest."""
        repairs = {
            "none": "",
            "norm": ", equalized",
            "max": ", equalized by largest magnitude",
        }
        return name + repairs[self.equalize]

    def group_length(self, in_features: int) -> int:
        """Weights along the inputs that share a scale in a row of ``in_features``."""
        return fit_group(self.row_group or in_features, in_features)

    def count_groups(self, out_features: int, in_features: int) -> int:
        """Number of scales of one ``[out_features, in_features]`` matrix."""
        return out_features * -(-in_features // self.group_length(in_features))

    def storage_bits(self, out_features: int, in_features: int) -> float:
        """Bits per weight of such a matrix in storage, with its scales."""
        groups = self.count_groups(out_features, in_features)
        return self.bits + self.scale_bits * groups / (out_features * in_features)


class AffineQuantizer(_Quantizer):
    """Round-to-nearest on evenly spaced levels (equations 1 and 2)."""

    kind: Literal["affine"] = Field("affine", description="Evenly spaced levels; the default.")
    bits: int = Field(ge=2, le=8, description="Bits per weight, 2 to 8.")
    granularity: Granularity = Field(
        description="What shares one scale: a tensor, an output channel, or a group of its inputs."
    )
    group_size: int | None = Field(
        None,
        ge=1,
        le=LARGEST_COUNT,
        description="Weights along the inputs per scale; with granularity group only.",
    )
    symmetric: bool = Field(description="No zero point where true.")

    @model_validator(mode="after")
    def _group_size_with_groups(self) -> "AffineQuantizer":
        if (self.granularity == "group") != (self.group_size is not None):
            needs = "needs" if self.granularity == "group" else "takes no"
            raise ValueError(f"granularity {self.granularity} {needs} group_size")
        return self

    @property
    def row_group(self) -> int | None:
        """``group_size``."""
        return self.group_size

    @property
    def scale_bits(self) -> int:
        """16 for the scale, as in GPTQ, AWQ and GGUF, and ``bits`` for a zero point."""
        zero_point_bits = 0 if self.symmetric else self.bits
        return 16 + zero_point_bits

    @property
    def label(self) -> str:
        """``INT4`` for 4 bits."""
        return self._with_repairs(f"INT{self.bits}")

    @property
    def description(self) -> str:
        """Bits, symmetry and what shares a scale."""
        symmetry = "symmetric" if self.symmetric else "asymmetric"
        units = {"tensor": "tensor", "channel": "output channel"}
        unit = units.get(self.granularity, f"group of {self.group_size}")
        return self._with_repairs(f"INT{self.bits} {symmetry}, per {unit}")

    def count_groups(self, out_features: int, in_features: int) -> int:
        """Number of scales of one ``[out_features, in_features]`` matrix."""
        if self.granularity == "tensor":
            return 1
        return super().count_groups(out_features, in_features)


class CodeBookQuantizer(_Quantizer):
    """Four-bit codes are indices into a fixed code book. Each block of a row has a scale."""

    kind: Literal["nf4", "mxfp4", "nvfp4"] = Field(
        description="Quantiles of the normal distribution with float32 scales; E2M1 elements with "
        "powers of two; E2M1 elements with E4M3 scales in a float32 one."
    )
    bits: ClassVar = 4

    @property
    def row_group(self) -> int:
        """Number of weights in a block."""
        return CODE_BOOKS[self.kind][0]

    @property
    def scale_bits(self) -> int:
        """Bits of the scale of a block."""
        return CODE_BOOKS[self.kind][1]

    @property
    def label(self) -> str:
        """``NF4`` for nf4."""
        return self._with_repairs(self.kind.upper())

    @property
    def description(self) -> str:
        """Label and block size."""
        return self._with_repairs(f"{self.kind.upper()}, per block of {self.row_group}")


def _affine_by_default(definition: object) -> object:
    if isinstance(definition, Mapping) and "kind" not in definition:
        return {"kind": "affine", **definition}
    return definition


# One entry of ``quantizers`` in the configuration.
AnyQuantizer = Annotated[
    AffineQuantizer | CodeBookQuantizer,
    Field(discriminator="kind"),
    BeforeValidator(_affine_by_default),
]
_ENTRY: TypeAdapter[AnyQuantizer] = TypeAdapter(AnyQuantizer)


def read_spec(definition: Mapping) -> AnyQuantizer:
    """The quantizer that an entry of the configuration defines.

    Raises ``pydantic.ValidationError``, which is a ``ValueError``, for an invalid entry.
    """
    return _ENTRY.validate_python(dict(definition))


def read_specs(definitions: Mapping[str, Mapping]) -> dict[str, AnyQuantizer]:
    """Quantizers by name, from entries of the section ``quantizers`` of the configuration."""
    return {name: read_spec(definition) for name, definition in definitions.items()}


_EQUALIZED = "_equalized"  # end of the name of a quantizer with equalized channels


def named_quantizer(name: str) -> dict:
    """The definition behind a name such as ``int3_g64``, ``int8_channel`` or ``nf4``.

    Groups have a zero point. A scale of a channel or a tensor is symmetric, as in ``config.yaml``.
    A name that ends in ``_equalized`` has its channels brought to equal norm first.
    Raises ``UserError`` for any other name.
    """
    if name.endswith(_EQUALIZED):
        return named_quantizer(name.removesuffix(_EQUALIZED)) | {"equalize": "norm"}
    if name in CODE_BOOKS:
        return {"kind": name}
    match = re.fullmatch(r"int([2-8])_(?:g([1-9]\d*)|(channel|tensor))", name)
    if not match:
        raise UserError(
            f"quantizer {name!r} is not known; valid: int2_g64 to int8_g64 with any size of the "
            "group, int2_channel to int8_channel, int2_tensor to int8_tensor, "
            f"{', '.join(CODE_BOOKS)}, each also with {_EQUALIZED} at its end"
        )
    bits, group_size, granularity = match.groups()
    if group_size:
        group = {"granularity": "group", "group_size": int(group_size)}
        return {"bits": int(bits), "symmetric": False, **group}
    return {"bits": int(bits), "symmetric": True, "granularity": granularity}


def printed_names(specs: Mapping[str, AnyQuantizer]) -> dict[str, str]:
    """Printed name of each quantizer: its label, or its description if two share a label."""
    label_counts = Counter(spec.label for spec in specs.values())
    return {
        name: spec.label if label_counts[spec.label] == 1 else spec.description
        for name, spec in specs.items()
    }
