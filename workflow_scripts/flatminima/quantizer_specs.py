"""What quantizers are: one class a kind, which is its configuration entry, its check and its name.

Nothing here touches a weight, so that the configuration, tables and figures know quantizers
without torch; ``flatminima.quantizers`` has the function of each kind. A new code book is a line
of ``CODE_BOOKS``, another kind a class named in ``AnyQuantizer``, and either a function there.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator

from flatminima.config_section import LARGEST_COUNT, Section

Layers = Literal["blocks", "blocks+head"]
Granularity = Literal["tensor", "channel", "group"]

# What a row of a measured table is about, whatever the quantizers are called.
FP32 = "fp32"  # the model as it is
LOW_BIT = "low_bit"  # the quantizer whose collapse is audited
HIGH_BIT = "high_bit"  # the quantizer it is held against

# Weights that share a scale, and the bits of the scale.
CODE_BOOKS = {
    "nf4": (64, 32),  # QLoRA: Dettmers et al., arXiv 2305.14314, appendix E
    "mxfp4": (32, 8),  # OCP Microscaling Formats 1.0, 5.3.3 and 6.3
    "nvfp4": (16, 8),  # a float32 scale of the tensor besides
}


def fit_group(size: int, in_features: int) -> int:
    """Weights of a row that share a scale, where groups of ``size`` are asked for.

    The one decision about groups that do not fit: a row shorter than a group is one group,
    in that layer only, and ``quantizers.coverage`` names the layer. Where the size does not
    divide a row, the last group of the row holds the remainder.
    """
    return min(size, in_features)


class _Quantizer(Section):
    """What all kinds have in common.

    A kind has ``bits``, ``scale_bits`` (of a scale and what is stored beside it), ``row_group``
    (weights along the inputs that share one; ``None`` for no limit but the row), ``label`` (short
    name in tables and figures, such as ``INT4``) and ``description`` (a phrase for captions).
    """

    model_config = ConfigDict(frozen=True)

    layers: Layers = Field(
        "blocks",
        description="Which linear layers are quantized: all but the output head, or with it.",
    )

    def group_length(self, in_features: int) -> int:
        """Weights along the inputs that share a scale in a row of ``in_features``."""
        return fit_group(self.row_group or in_features, in_features)

    def count_groups(self, out_features: int, in_features: int) -> int:
        """Number of scales of one ``[out_features, in_features]`` matrix."""
        return out_features * -(-in_features // self.group_length(in_features))

    def storage_bits(self, out_features: int, in_features: int) -> float:
        """Bits per weight of such a matrix as it would be stored, scales among them."""
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
        """16, as GPTQ, AWQ and GGUF store a scale, and a zero point in as many as a code."""
        return 16 + (0 if self.symmetric else self.bits)

    @property
    def label(self) -> str:
        """``INT4`` for 4 bits."""
        return f"INT{self.bits}"

    @property
    def description(self) -> str:
        """Bits, symmetry and what shares a scale."""
        symmetry = "symmetric" if self.symmetric else "asymmetric"
        units = {"tensor": "tensor", "channel": "output channel"}
        unit = units.get(self.granularity, f"group of {self.group_size}")
        return f"{self.label} {symmetry}, per {unit}"

    def count_groups(self, out_features: int, in_features: int) -> int:
        """One for the tensor, or those of each row."""
        return (
            1 if self.granularity == "tensor" else super().count_groups(out_features, in_features)
        )


class CodeBookQuantizer(_Quantizer):
    """Four bits that name an entry of a fixed book, and a scale for each block of a row."""

    kind: Literal["nf4", "mxfp4", "nvfp4"] = Field(
        description="Quantiles of the normal distribution with float32 scales; E2M1 elements with "
        "powers of two; E2M1 elements with E4M3 scales in a float32 one."
    )
    bits: ClassVar = 4

    @property
    def row_group(self) -> int:
        """Weights of a block."""
        return CODE_BOOKS[self.kind][0]

    @property
    def scale_bits(self) -> int:
        """Of the scale of a block."""
        return CODE_BOOKS[self.kind][1]

    @property
    def label(self) -> str:
        """``NF4`` for nf4."""
        return self.kind.upper()

    @property
    def description(self) -> str:
        """Name and block."""
        return f"{self.label}, per block of {self.row_group}"


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

    Raises ``pydantic.ValidationError``, a ``ValueError``, for an entry that defines none.
    """
    return _ENTRY.validate_python(dict(definition))


def read_specs(definitions: Mapping[str, Mapping]) -> dict[str, AnyQuantizer]:
    """Quantizers by name from (a part of) the ``quantizers`` section of the configuration."""
    return {name: read_spec(definition) for name, definition in definitions.items()}


def printed_names(specs: Mapping[str, AnyQuantizer]) -> dict[str, str]:
    """What each is called in print: its label, or its description where a label is not unique."""
    labels = Counter(spec.label for spec in specs.values())
    return {
        name: spec.description if labels[spec.label] > 1 else spec.label
        for name, spec in specs.items()
    }
