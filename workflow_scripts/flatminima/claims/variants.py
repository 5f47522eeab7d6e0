"""Claims about the pilot, the calibration and the amplitude of the forks (appendix B, abstract).

They are measured by forks that the paper does not have: pilot.csv, calibration.json and
amplitudes.csv, which are no part of ``all``.
"""

import math

import numpy as np
import pandas as pd

from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    NotMeasured,
    measured,
    within,
)
from flatminima.quantizer_specs import FP32


def _ends(table: pd.DataFrame, role: str) -> pd.DataFrame:
    """Rows of one role at each condition's and seed's last probe."""
    rows = table[table["role"] == role]
    return rows[rows["step"] == rows.groupby(["schedule", "seed"])["step"].transform("max")]


@measured("C68")
def pilot_rise(m: Measurements, claim: Claim) -> Finding:
    """FP32 perplexity from the fork point to the end of the paper's pilot: short and small."""
    ends = _ends(m.pilot, FP32)
    tokens = ends["length"] * ends["batch_size"]
    arm = ends[tokens == tokens.min()]
    start, last = int(arm["fork_step"].iloc[0]), float(arm["ppl"].mean())
    first = m.at(FP32, "ppl", start)
    one = arm.iloc[0]
    return Finding(
        f"{first:.1f} to {last:.1f} ({100 * (last / first - 1):+.0f} %) in "
        f"{one['step'] - start:,} steps of {one['batch_size']} x {one['length']} tokens "
        f"({len(arm)} seeds)",
        within(last, claim.paper["last_ppl"], claim.tolerance),
    )


@measured("C69")
def pilot_effects(m: Measurements, claim: Claim) -> Finding:
    """Effect of the window and of Adam's state at equal tokens per update, at the end.

    Each is the difference of two means of the log of the FP32 perplexity, over the other
    factor and over seeds.
    """
    ends = _ends(m.pilot, FP32)
    tokens = ends["length"] * ends["batch_size"]
    ends = ends[(tokens == tokens.max()) & ends["optimizer_state"].isin(["fresh", "rewarmed"])]
    log_ppl = np.log(ends["ppl"])
    by_length = log_ppl.groupby(ends["length"]).mean().sort_index()
    by_state = log_ppl.groupby(ends["optimizer_state"]).mean()
    if len(by_length) != 2 or len(by_state) != 2:
        raise NotMeasured("two windows with two states of Adam in pilot.csv")
    window = float(by_length.iloc[0] - by_length.iloc[1])
    state = float(by_state["fresh"] - by_state["rewarmed"])
    return Finding(
        f"windows of {by_length.index[0]} against {by_length.index[1]} tokens change FP32 "
        f"perplexity by {100 * math.expm1(window):+.1f} %, fresh against rewarmed moments by "
        f"{100 * math.expm1(state):+.1f} %",
        bool(window > abs(state)),
    )


@measured("C70")
def calibration_rule(m: Measurements, claim: Claim) -> Finding:
    """The amplitude from gradients at the fork point, under the reading that is assumed."""
    found = m.calibration["amplitudes"]
    value = found[m.calibration["assumed"]]
    others = ", ".join(f"{name} {v:.3g}" for name, v in found.items() if v != value)
    apart = abs(math.log10(value / claim.paper["amplitude"]))
    return Finding(
        f"{value:.3g} from plain gradients; other readings: {others}",
        apart <= math.log10(claim.tolerance["factor"]),
        "the text lacks the formula; what is assumed stands in lib/forks/calibration.py",
    )


@measured("C77")
def amplitude_or_cadence(m: Measurements, claim: Claim) -> Finding:
    """What decides how far OLI's gap at rest lies from the control's: amplitude or cadence.

    Shares of the variance between the cells (means over seeds) of a two-way table.
    """
    if m.forks is None:
        raise NotMeasured("forks.csv")
    ends = _ends(m.amplitudes, "low_bit")
    control = _ends(m.forks[m.forks["schedule"] == "cosine"], "low_bit")
    control = control[control["seed"].isin(ends["seed"])]["gap_pct"].mean()
    cells = ends.pivot_table(index="amplitude", columns="period", values="gap_pct") - control
    if min(cells.shape) < 2 or cells.isna().to_numpy().any():
        raise NotMeasured("every amplitude at two cadences in amplitudes.csv")
    values = cells.to_numpy()
    rows = values.mean(axis=1, keepdims=True) - values.mean()
    columns = values.mean(axis=0, keepdims=True) - values.mean()
    total = ((values - values.mean()) ** 2).sum()
    shares = [
        100 * (np.broadcast_to(part, values.shape) ** 2).sum() / total
        for part in (rows, columns, values - values.mean() - rows - columns)
    ]
    shown = "; ".join(
        f"every {period} steps "
        + ", ".join(f"x{amplitude:g} {gap:+.1f}" for amplitude, gap in cells[period].items())
        for period in cells
    )
    return Finding(
        f"amplitude carries {shares[0]:.0f} %, cadence {shares[1]:.0f} %, both together "
        f"{shares[2]:.0f} % of the differences; gap against the control in points: {shown}",
        bool(shares[0] > 50),
    )
