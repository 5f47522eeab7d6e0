"""One row of ``statistics.csv``: what every test and summary of a suite is written as.

What cannot be computed (one seed, no variance, no such probes) is a row with an empty
value and a note that says why.
"""

from dataclasses import dataclass, fields

NAN = float("nan")
PROBES_DEPEND = "probes of one run are not independent, so this p is too small"
CHECKPOINTS_DEPEND = "neighbouring checkpoints are not independent, so this p is too small"


@dataclass(frozen=True)
class Row:
    """One row of ``statistics.csv``.

    ``unit`` is what counts as one observation; ``a`` and ``b`` are the two sides of
    ``comparison`` in its order ("a v b"); ``difference`` is mean a minus mean b and
    ``effect_size`` Cohen's d. ``measure`` names the compared quantity with its unit.
    """

    test: str
    comparison: str
    unit: str
    measure: str
    statistic: str
    value: float = NAN
    dof: float = NAN
    p_value: float = NAN
    n_a: int = 0
    n_b: int | None = None
    mean_a: float = NAN
    sd_a: float = NAN
    mean_b: float = NAN
    sd_b: float = NAN
    difference: float = NAN
    effect_size: float = NAN
    note: str = ""


COLUMNS = [field.name for field in fields(Row)]


def join_notes(*parts: str) -> str:
    """Join the remarks that are not empty."""
    return "; ".join(part for part in parts if part)
