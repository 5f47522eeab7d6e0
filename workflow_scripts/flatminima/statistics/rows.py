"""One row of ``statistics.csv``: what every test and summary of a suite is written as.

What cannot be computed (one seed, no variance, no such probes) is a row with an empty
value and a note that says why.
"""

from dataclasses import dataclass, fields

NAN = float("nan")
_DEPEND = "not independent, so p is too small and the interval too narrow"
ONE_RUN = "unit: one run; its seed fixes the order of the data"
PROBES_DEPEND = f"unit: one probe; those of one run are {_DEPEND}"
CHECKPOINTS_DEPEND = f"unit: one checkpoint; neighbouring ones are {_DEPEND}"


@dataclass(frozen=True)
class Row:
    """One row of ``statistics.csv``.

    ``unit`` is what counts as one observation; ``a`` and ``b`` are the two sides of
    ``comparison`` in its order ("a v b"). ``measure`` names the compared quantity with
    its unit. ``difference`` is mean a minus mean b; ``interval_low`` and
    ``interval_high`` are its 95 % interval or, where nothing is subtracted, that of
    ``value``. ``cohens_d`` is the difference in pooled standard deviations,
    ``cliffs_delta`` the share of pairs with the higher value in a minus the share with
    the lower one. ``p_adjusted`` is Holm's p within ``family``.
    """

    test: str
    comparison: str
    unit: str
    measure: str
    statistic: str
    value: float = NAN
    interval_low: float = NAN
    interval_high: float = NAN
    dof: float = NAN
    p_value: float = NAN
    family: str = ""
    p_adjusted: float = NAN
    n_a: int = 0
    n_b: int | None = None
    mean_a: float = NAN
    sd_a: float = NAN
    mean_b: float = NAN
    sd_b: float = NAN
    difference: float = NAN
    cohens_d: float = NAN
    cliffs_delta: float = NAN
    note: str = ""


COLUMNS = [field.name for field in fields(Row)]


def join_notes(*parts: str) -> str:
    """Join the remarks that are not empty."""
    return "; ".join(part for part in parts if part)
