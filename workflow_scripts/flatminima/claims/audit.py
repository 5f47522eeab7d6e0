"""Claims about the audit: Table 1, Phase 1 and the plateau (sections 4.2 and 4.4)."""

import numpy as np
import pandas as pd

from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    measured,
    printed,
    within,
)
from flatminima.claims.trends import between, plateau, spread_around_line


@measured(*(f"C{n:02d}" for n in range(6, 16)), "C37")
def fp32_perplexity(m: Measurements, claim: Claim) -> Finding:
    """FP32 perplexity of one row of Table 1."""
    step = m.step(claim.paper["step"])
    value = m.at("fp32", "ppl", step)
    return Finding(
        f"{value:.2f} at step {step:,}", within(value, claim.paper["ppl"], claim.tolerance)
    )


@measured(*(f"C{n:02d}" for n in range(16, 26)))
def low_bit_gap(m: Measurements, claim: Claim) -> Finding:
    """Gap of one row of Table 1 with its bootstrap interval."""
    step = m.step(claim.paper["step"])
    value, low, high = (
        m.at("low_bit", column, step) for column in ("gap_pct", "gap_low_pct", "gap_high_pct")
    )
    return Finding(
        f"{value:.2f} % [{low:.2f}, {high:.2f}] at step {step:,}",
        within(value, claim.paper["gap_pct"], claim.tolerance),
    )


@measured("C26")
def high_bit_column(m: Measurements, claim: Claim) -> Finding:
    """INT8 gaps of all rows of Table 1."""
    values = np.array([m.at("high_bit", "gap_pct", m.step(s)) for s in m.table1["step"]])
    off = float(np.max(np.abs(values - m.table1["int8_gap_pct"])))
    return Finding(
        f"{', '.join(f'{v:.2f}' for v in values)} %; largest distance {off:.2f} points",
        within(off, 0, claim.tolerance),
    )


@printed("C27")
def printed_high_bit(m: Measurements, claim: Claim) -> Finding:
    """Largest INT8 gap of Table 1."""
    value = m.table1["int8_gap_pct"].max()
    return Finding(f"at most {value} % in ten rows", bool(value < claim.tolerance["below"]))


@measured("C27")
def largest_high_bit(m: Measurements, claim: Claim) -> Finding:
    """Largest INT8 gap of all revisions."""
    curve = m.curve("high_bit", "gap_pct")
    return Finding(
        f"at most {curve.max():.3f} % (step {curve.idxmax():,}) in {len(curve)} revisions",
        bool(curve.max() < claim.tolerance["below"]),
    )


@measured("C31")
def end_of_phase_1(m: Measurements, claim: Claim) -> Finding:
    """Perplexity and gap at the end of the rapid-learning phase."""
    step = m.step(claim.paper["step"])
    ppl, gap = m.at("fp32", "ppl", step), m.at("low_bit", "gap_pct", step)
    relative, points = ({k: claim.tolerance[k]} for k in ("relative_pct", "points"))
    return Finding(
        f"perplexity {ppl:.1f}, gap {gap:.2f} % at step {step:,}",
        within(ppl, claim.paper["ppl"], relative) and within(gap, claim.paper["gap_pct"], points),
    )


@printed("C32", "X08")
def phase_1_printed(m: Measurements, claim: Claim) -> Finding:
    """Direction of both quantities over Phase 1 in Table 1."""
    first, last = (m.printed(claim.paper[k]) for k in ("first_step", "last_step"))
    return Finding(
        f"gap {first.int4_gap_pct} % to {last.int4_gap_pct} % while perplexity goes "
        f"{first.fp32_ppl} to {last.fp32_ppl}",
        bool(last.int4_gap_pct < first.int4_gap_pct and last.fp32_ppl < first.fp32_ppl),
    )


@measured("C32", "X08")
def phase_1(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite."""
    steps = [m.step(claim.paper[k]) for k in ("first_step", "last_step")]
    gap = [m.at("low_bit", "gap_pct", s) for s in steps]
    ppl = [m.at("fp32", "ppl", s) for s in steps]
    return Finding(
        f"gap {gap[0]:.2f} % to {gap[1]:.2f} % while perplexity goes {ppl[0]:.1f} to {ppl[1]:.1f}",
        gap[1] < gap[0] and ppl[1] < ppl[0],
    )


@measured("C33")
def plateau_range(m: Measurements, claim: Claim) -> Finding:
    """Smallest and largest gap between two steps."""
    first, last = (m.step(claim.paper[k]) for k in ("first_step", "last_step"))
    part = between(m.even("low_bit", "gap_pct"), first, last)
    return Finding(
        f"{part.min():.2f} to {part.max():.2f} % over {last - first:,} steps",
        part.min() >= claim.paper["low_pct"] - claim.tolerance["points"]
        and part.max() <= claim.paper["high_pct"] + claim.tolerance["points"],
    )


@measured("C34")
def plateau_variance(m: Measurements, claim: Claim) -> Finding:
    """Scatter of the gap around the plateau's own trend."""
    first, last = (m.step(claim.paper[k]) for k in ("first_step", "last_step"))
    part = between(m.even("low_bit", "gap_pct"), first, last)
    share = 100 * spread_around_line(part) / part.mean()
    return Finding(
        f"{spread_around_line(part):.2f} points around the line, {share:.1f} % of the mean gap",
        bool(share < claim.tolerance["below"]),
    )


@printed("C35")
def narrow_plateau_printed(m: Measurements, claim: Claim) -> Finding:
    """Gaps of the rows of Table 1 that carry phase 2."""
    gaps = m.table1.loc[m.table1["phase"] == 2, "int4_gap_pct"]
    return Finding(f"{gaps.min()} to {gaps.max()} % in phase 2", _inside(gaps, claim))


@measured("C35")
def narrow_plateau(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite."""
    gaps = between(m.even("low_bit", "gap_pct"), *plateau(m))
    return Finding(f"{gaps.min():.2f} to {gaps.max():.2f} %", _inside(gaps, claim))


def _inside(gaps: pd.Series, claim: Claim) -> bool:
    slack = claim.tolerance["points"]
    return bool(
        gaps.min() >= claim.paper["low_pct"] - slack
        and gaps.max() <= claim.paper["high_pct"] + slack
    )
