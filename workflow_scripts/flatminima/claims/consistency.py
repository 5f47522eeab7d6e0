"""Does the text about the audit agree with itself? Boundaries, ranges and Table 1."""

import math

from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    measured,
    printed,
    within,
)
from flatminima.claims.trends import between, boundary, plateau


@printed("X03")
def boundaries(m: Measurements, claim: Claim) -> Finding:
    """Spread of the steps that the text names as the boundary of Phase 3."""
    steps = sorted(claim.paper.values())
    spread = steps[-1] - steps[0]
    return Finding(
        f"{', '.join(f'{s:,}' for s in steps)}: {spread:,} steps apart",
        within(spread, 0, claim.tolerance),
    )


@printed("X04")
def last_before_phase_3(m: Measurements, claim: Claim) -> Finding:
    """Checkpoints between the fork point and the start of Phase 3."""
    return _between(claim, claim.paper["fork"], claim.paper["phase_3"], m.pythia["spacing"])


@measured("X04")
def last_before_phase_3_of_suite(m: Measurements, claim: Claim) -> Finding:
    """The same with the suite's fork point and its own boundary."""
    start = (m.suite.get("fork") or {}).get("start", m.step(claim.paper["fork"]))
    return _between(claim, start, boundary(m.phases)[0], m.suite["spacing"])


def _between(claim: Claim, fork: int, phase_3: int, spacing: int) -> Finding:
    count = (phase_3 - fork) // spacing - 1
    text = f"{count} checkpoints between step {fork:,} and step {phase_3:,}"
    return Finding(text, within(count, 0, claim.tolerance))


@printed("X05")
def plateau_lengths(m: Measurements, claim: Claim) -> Finding:
    """The longer of two lengths, rounded to the digits of the rounder one."""
    rough, exact = claim.paper["roughly"], claim.paper["section_4_2"]
    digits = -int(math.log10(rough))
    return Finding(f"{exact:,} rounds to {round(exact, digits):,}", round(exact, digits) == rough)


@measured("X05")
def plateau_length(m: Measurements, claim: Claim) -> Finding:
    """Length of the suite's plateau."""
    first, last = plateau(m)
    return Finding(f"{last - first:,} steps from {first:,} to {last:,}", None)


@printed("X06")
def plateau_ranges(m: Measurements, claim: Claim) -> Finding:
    """Both printed ranges against the rows of phase 2."""
    gaps = m.table1.loc[m.table1["phase"] == 2, "int4_gap_pct"]
    p, fits = claim.paper, []
    for place in ("introduction", "section_4_2"):
        low, high = p[f"{place}_low"], p[f"{place}_high"]
        ends = ((gaps.min(), low), (gaps.max(), high))
        fits.append(all(within(found, named, claim.tolerance) for found, named in ends))
    ranges = [f"{p[f'{k}_low']} to {p[f'{k}_high']} %" for k in ("introduction", "section_4_2")]
    return Finding(
        f"{ranges[0]} and {ranges[1]} against {gaps.min()} to {gaps.max()} % in the table",
        all(fits),
    )


@measured("X06")
def plateau_gaps(m: Measurements, claim: Claim) -> Finding:
    """Range of the gap on the suite's plateau."""
    gaps = between(m.even("low_bit", "gap_pct"), *plateau(m))
    return Finding(f"{gaps.min():.2f} to {gaps.max():.2f} %", None)


@printed("X07")
def starting_gaps(m: Measurements, claim: Claim) -> Finding:
    """Spread of the gaps named as the start of the collapse."""
    values = sorted(claim.paper.values())
    return Finding(
        f"{', '.join(str(v) for v in values)} %",
        within(values[-1] - values[0], 0, claim.tolerance),
        "11 % is the gap of step 70,000, before any of the boundaries",
    )


@measured("X07")
def starting_gap(m: Measurements, claim: Claim) -> Finding:
    """Gap at the suite's own boundary."""
    step, name = boundary(m.phases)
    return Finding(f"{m.at('low_bit', 'gap_pct', step):.2f} % at the {name}, step {step:,}", None)


@printed("X09")
def stagnation_printed(m: Measurements, claim: Claim) -> Finding:
    """Change of FP32 perplexity over the plateau in Table 1."""
    first, last = (m.printed(claim.paper[k])["fp32_ppl"] for k in ("first_step", "last_step"))
    return _change(first, last, claim)


@measured("X09")
def stagnation(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite."""
    steps = [m.step(claim.paper[k]) for k in ("first_step", "last_step")]
    return _change(*(m.at("fp32", "ppl", s) for s in steps), claim)


def _change(first: float, last: float, claim: Claim) -> Finding:
    value = 100 * (last / first - 1)
    text = f"{first:.1f} to {last:.1f} is {value:+.0f} %"
    return Finding(text, bool(abs(value) < claim.tolerance["below"]))


@printed("X11")
def one_perplexity(m: Measurements, claim: Claim) -> Finding:
    """Numbers are printed to one decimal: v stands for [v - 0.05, v + 0.05)."""
    half = claim.tolerance["rounding"]
    low, high = sorted((claim.paper["table"], claim.paper["appendix"]))
    return Finding(
        f"{low} and {high}: no number rounds to both"
        if high - low >= 2 * half - 1e-9
        else f"{low} and {high}: the same after rounding",
        high - low < 2 * half - 1e-9,
        "a slip of the last digit, or another set of sequences",
    )


@measured("X11")
def perplexity_at_fork(m: Measurements, claim: Claim) -> Finding:
    """FP32 perplexity of the suite's fork point."""
    step = m.step(claim.paper["step"])
    return Finding(f"{m.at('fp32', 'ppl', step):.2f} at step {step:,}", None)
