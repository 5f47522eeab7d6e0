"""The cells of the factorial probe, as data.

Every combination of bits, symmetry and granularity on the paper's layers, every layer set
with every number of bits at the symmetry and granularity of the suite's low-bit quantizer,
and each four-bit format with a code book.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

PAPER_LAYERS = "blocks"


@dataclass(frozen=True)
class Cell:
    """One combination. ``granularity`` is tensor, channel or g64 (groups of 64 inputs).

    ``format`` is ``int`` for evenly spaced levels, where the other columns count.
    """

    layers: str
    format: str = "int"
    bits: int = 4
    symmetric: bool | None = None
    granularity: str = ""

    @property
    def name(self) -> str:
        """Name of the cell in tables, such as ``int4-asym-g64-blocks``."""
        if self.format != "int":
            return f"{self.format}-{self.layers}"
        symmetry = "sym" if self.symmetric else "asym"
        return f"int{self.bits}-{symmetry}-{self.granularity}-{self.layers}"


def granularity_name(spec: Mapping) -> str:
    """Granularity of a quantizer of the configuration, as cells name it."""
    return f"g{spec['group_size']}" if spec["granularity"] == "group" else spec["granularity"]


def cells(
    *, bits: list[int], group_sizes: list[int], formats: list[str], sets: list[str], low: Mapping
) -> list[Cell]:
    """All cells of the design.

    ``sets`` are layer sets; ``low`` has the ``symmetric`` and ``granularity`` they share.
    """
    granularities = ["tensor", "channel", *(f"g{size}" for size in sorted(group_sizes)[::-1])]
    full = product(bits, (False, True), granularities)
    chosen = [Cell(PAPER_LAYERS, "int", b, s, g) for b, s, g in full]
    own = (low["symmetric"], low["granularity"])
    others = product([layers for layers in sets if layers != PAPER_LAYERS], bits)
    chosen += [Cell(layers, "int", b, *own) for layers, b in others]
    return chosen + [Cell(PAPER_LAYERS, name) for name in formats]
