"""Claims about the values of the fork experiment (sections 5.1 and 5.2, Table 2)."""

import numpy as np
import pandas as pd

from flatminima.claims import seeds
from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    NotMeasured,
    measured,
    printed,
    within,
)


def definition(m: Measurements, kind: str) -> dict:
    """The suite's definition of a kind of fork."""
    for entry in (m.suite.get("fork") or {}).get("schedules", {}).values():
        if entry["kind"] == kind:
            return entry
    raise NotMeasured(f"forks of the kind {kind} in the settings of the suite")


@printed("C54", "C55")
def cycles_printed(m: Measurements, claim: Claim) -> Finding:
    """Cycles that fit into the fork."""
    count = claim.paper["steps"] / claim.paper["period"]
    return Finding(
        f"{claim.paper['steps']:,} / {claim.paper['period']:,} = {count:g}",
        within(count, claim.paper["cycles"], claim.tolerance),
    )


@measured("C54")
def oli_cycles(m: Measurements, claim: Claim) -> Finding:
    """The same from the settings of the suite."""
    oli = definition(m, "oli")
    return _cycles(m, claim, oli["bump_steps"] + oli["cool_steps"])


@measured("C55")
def sgdr_cycles(m: Measurements, claim: Claim) -> Finding:
    """The same from the settings of the suite."""
    return _cycles(m, claim, definition(m, "sgdr")["period"])


def _cycles(m: Measurements, claim: Claim, period: int) -> Finding:
    steps = m.suite["fork"]["steps"]
    count = steps / period
    text = f"{steps:,} / {period:,} = {count:g}"
    return Finding(text, within(count, claim.paper["cycles"], claim.tolerance))


@measured("C56")
def cosine_final(m: Measurements, claim: Claim) -> Finding:
    """Final gap of the cosine forks."""
    return _mean(seeds.final(m, "cosine"), claim)


@measured("C57")
def sgdr_final(m: Measurements, claim: Claim) -> Finding:
    """Final gap of the SGDR forks."""
    return _mean(seeds.final(m, "sgdr"), claim)


@measured("C58")
def oli_cool(m: Measurements, claim: Claim) -> Finding:
    """Gap of all cool probes of the OLI forks."""
    return _mean(seeds.probes(m, "oli", "cool")["gap_pct"], claim)


@measured("C59")
def oli_all(m: Measurements, claim: Claim) -> Finding:
    """Gap of the OLI forks over all probes; the final one is in the note."""
    final = seeds.mean_sd(seeds.final(m, "oli"))
    return _mean(seeds.run_mean(m, "oli"), claim, f"at the last step {final} %")


def _mean(values: pd.Series, claim: Claim, note: str = "") -> Finding:
    holds = within(values.mean(), claim.paper["mean_pct"], claim.tolerance)
    return Finding(f"{seeds.mean_sd(values)} %", holds, note)


@measured("C60")
def fp32_of_forks(m: Measurements, claim: Claim) -> Finding:
    """Final FP32 perplexity of the three kinds of fork."""
    values = {
        kind: seeds.final(m, kind, role="fp32", column="ppl").mean()
        for kind in ("cosine", "sgdr", "oli")
    }
    return Finding(
        ", ".join(f"{kind} {value:.1f}" for kind, value in values.items()),
        all(within(value, claim.paper[kind], claim.tolerance) for kind, value in values.items()),
    )


@printed("C66")
def cost_printed(m: Measurements, claim: Claim) -> Finding:
    """Difference of the printed FP32 perplexities."""
    value = claim.paper["oli"] - claim.paper["cosine"]
    return Finding(
        f"{claim.paper['oli']} - {claim.paper['cosine']} = {value:.1f}",
        within(value, claim.paper["cost"], claim.tolerance),
        seeds.printed_low_bit_ppl(m),
    )


@measured("C66")
def cost(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite, and the absolute low-bit perplexities."""
    oli, cosine = (
        seeds.final(m, kind, role="fp32", column="ppl").mean() for kind in ("oli", "cosine")
    )
    low = [seeds.final(m, kind, column="ppl").mean() for kind in ("oli", "cosine")]
    return Finding(
        f"{oli:.1f} - {cosine:.1f} = {oli - cosine:.1f}; low-bit perplexity {low[0]:.1f} against "
        f"{low[1]:.1f}",
        within(oli - cosine, claim.paper["cost"], claim.tolerance),
    )


@printed("C67", "X17")
def control_printed(m: Measurements, claim: Claim) -> Finding:
    """Fork A against the audit at step 100,000, as printed."""
    p, fork = claim.paper, m.pythia["fork"]
    share = fork["steps"] * fork["batch_size"] * fork["length"] / m.pythia["tokens_per_step"]
    return Finding(
        f"gap {p['fork_gap_pct']} against {p['audit_gap_pct']} % "
        f"({p['audit_gap_pct'] / p['fork_gap_pct']:.1f} times), FP32 {p['fork_ppl']} against "
        f"{p['audit_ppl']} ({100 * (p['fork_ppl'] / p['audit_ppl'] - 1):+.0f} %)",
        within(p["fork_gap_pct"], p["audit_gap_pct"], claim.tolerance)
        and within(p["fork_ppl"], p["audit_ppl"], claim.tolerance),
        f"the fork sees the tokens of {share:.0f} of Pythia's steps",
    )


@measured("C67", "X17")
def control(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite."""
    step = int(seeds.probes(m, "cosine")["step"].max())
    gap = (seeds.final(m, "cosine").mean(), m.at("low_bit", "gap_pct", step))
    ppl = (
        seeds.final(m, "cosine", role="fp32", column="ppl").mean(),
        m.at("fp32", "ppl", step),
    )
    return Finding(
        f"gap {gap[0]:.2f} against {gap[1]:.2f} %, FP32 {ppl[0]:.2f} against {ppl[1]:.2f} at step "
        f"{step:,}",
        bool(np.all([within(*gap, claim.tolerance), within(*ppl, claim.tolerance)])),
    )
