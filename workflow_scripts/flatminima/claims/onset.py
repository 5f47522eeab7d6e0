"""Claims about the turn of the run: best FP32 step, onset, growth after it (section 4.3)."""

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.claims.arithmetic import loss
from flatminima.claims.beyond import number
from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    NotMeasured,
    measured,
    printed,
    within,
)
from flatminima.claims.trends import between, boundary, slope
from flatminima.early_warning import (
    MONITOR_RULE,
    PAPER_WINDOW,
    judge,
    slope_not_negative,
)


@measured("C36")
def best_fp32(m: Measurements, claim: Claim) -> Finding:
    """Step and value of the best FP32 perplexity."""
    best = m.phases["convergence"]
    relative, steps = ({k: claim.tolerance[k]} for k in ("relative_pct", "steps"))
    return Finding(
        f"{best['ppl']:.2f} at step {best['step']:,} [{best['step_low']:,}, {best['step_high']:,}]",
        within(best["step"], m.step(claim.paper["step"]), steps)
        and within(best["ppl"], claim.paper["ppl"], relative),
    )


@measured("C38")
def after_best(m: Measurements, claim: Claim) -> Finding:
    """Range of perplexity after its best step."""
    ppl = m.even("fp32", "ppl")
    part = between(ppl, m.phases["convergence"]["step"], ppl.index[-1])
    slack = claim.tolerance["relative_pct"] / 100
    return Finding(
        f"{part.min():.2f} to {part.max():.2f} in {len(part)} revisions",
        part.min() >= claim.paper["low_ppl"] * (1 - slack)
        and part.max() <= claim.paper["high_ppl"] * (1 + slack),
    )


@printed("C39")
def printed_lag(m: Measurements, claim: Claim) -> Finding:
    """Distance of the two steps that the text names; the text gives no interval."""
    lag = claim.paper["onset"] - claim.paper["best"]
    return Finding(f"{claim.paper['onset']:,} - {claim.paper['best']:,} = {lag:,} steps", None)


@measured("C39", "X03")
def lag(m: Measurements, claim: Claim) -> Finding:
    """Onset minus best FP32 step, with its interval."""
    if m.phases["lag_steps"] is None:
        return Finding("no onset found", False, m.phases["onset"]["reason"])
    low, high = m.phases["lag_low"], m.phases["lag_high"]
    return Finding(
        f"{m.phases['lag_steps']:,} steps [{low:,}, {high:,}]",
        bool(low <= 0 <= high),
        f"the interval spans {100 * (high - low) / m.suite['last']:.0f} % of the run",
    )


@printed("C41")
def growth_at_the_floor_printed(m: Measurements, claim: Claim) -> Finding:
    """Rows of Table 1 that lie where the schedule that was run is constant."""
    floor = m.pythia_schedule("cosine_neox_v1").floor_step
    rows = m.table1[m.table1["step"] >= floor]
    rise = np.diff(loss(rows["int4_gap_pct"]))[0] / np.diff(rows["step"])[0] * 10000
    return Finding(
        f"{rise:+.2f} nats per 10,000 steps between {rows['step'].iloc[0]:,} and "
        f"{rows['step'].iloc[-1]:,}, where Pythia's rate was constant",
        None,
    )


@measured("C41")
def growth_at_the_floor(m: Measurements, claim: Claim) -> Finding:
    """Slope of the INT4 loss over the revisions whose last updates had a constant rate."""
    lr = m.even("fp32", "lr")
    smallest = lr.iloc[-1]
    constant = lr.index[(lr <= smallest * (1 + 1e-9)) & (lr.index > m.suite["warmup_steps"])]
    if len(constant) < 5:
        raise NotMeasured(f"five revisions at a constant learning rate, found {len(constant)}")
    value, low, high = slope(m.even("low_bit", "delta_nll_nats_per_token")[constant])
    return Finding(
        f"{value:+.5f} nats per 1,000 steps [{low:+.5f}, {high:+.5f}] over {len(constant)} "
        f"revisions from step {constant[0]:,}",
        low > 0,
    )


@printed("C42")
def printed_alarm(m: Measurements, claim: Claim) -> Finding:
    """Sign of the change of FP32 perplexity between rows of Table 1; too coarse to decide."""
    later = m.table1[m.table1["step"] >= claim.paper["best"]]
    signs = [
        f"{a:,} to {b:,} {d:+.1f}"
        for a, b, d in zip(
            later["step"], later["step"][1:], later["fp32_ppl"].diff()[1:], strict=False
        )
    ]
    return Finding("; ".join(signs), None)


@measured("C42")
def early_warning(m: Measurements, claim: Claim) -> Finding:
    """Lead time and false alarms of the paper's rule, as in ``early_warning.csv``."""
    found = judge(slope_not_negative(m.even("fp32", "ppl"), PAPER_WINDOW), m.phases)
    first = found.first_alarm_step
    parts = [f"first alarm at step {first:,}" if first is not None else "no alarm"]
    if found.lead_steps is not None:
        word = "before" if found.lead_steps >= 0 else "after"
        parts.append(
            f"first that is not false at {found.warning_step:,}, {abs(found.lead_steps):,} steps "
            f"{word} the onset"
        )
    if found.onset_step is None:
        parts.append("no onset to warn of")
    return Finding(
        f"{', '.join(parts)}; alarms before the best step {found.best_step:,}: "
        f"{found.alarms_before_best}",
        bool((found.lead_steps or 0) > 0 and not found.alarms_before_best),
        f"slope over {PAPER_WINDOW} revisions; other windows and rules: early_warning.csv"
        f"{_monitor_note(m)}",
    )


def _monitor_note(m: Measurements) -> str:
    """What the convergence monitor of this project would have said, from ``early_warning.csv``."""
    if m.early_warning is None:
        return ""
    texts = []
    for row in m.early_warning[m.early_warning["rule"] == MONITOR_RULE].itertuples():
        first = "no alarm" if pd.isna(row.first_alarm_step) else f"step {row.first_alarm_step:,.0f}"
        lead = "" if pd.isna(row.lead_steps) else f", lead {row.lead_steps:,.0f} steps"
        texts.append(
            f"{row.parameter}: first {first}{lead}, alarms {row.alarms}, {row.false_alarms} "
            f"false, {row.alarms_before_best} before the best step"
        )
    return f"; {MONITOR_RULE} {'; '.join(texts)}" if texts else ""


@printed("C43")
def growth_printed(m: Measurements, claim: Claim) -> Finding:
    """Growth of the INT4 loss on the plateau and after it, from the rows of Table 1."""
    rates = []
    for first, last in ((10000, 77000), (77000, 143000)):
        low, high = loss(m.table1.set_index("step").loc[[first, last], "int4_gap_pct"])
        rates.append((high - low) / (last - first) * 10000)
    return Finding(
        f"{rates[0]:.3f} nats per 10,000 steps up to 77,000, {rates[1]:.3f} after "
        f"({rates[1] / rates[0]:.0f} times)",
        None,
    )


@measured("C43")
def growth(m: Measurements, claim: Claim) -> Finding:
    """Slopes of the INT4 loss before and after the start of Phase 3."""
    start, name = boundary(m.phases)
    curve = m.even("low_bit", "delta_nll_nats_per_token")
    before = slope(between(curve, m.phases["rapid_learning_end"]["step"], start))
    after = slope(between(curve, start, curve.index[-1]))
    texts = [f"{s:+.5f} [{low:+.5f}, {high:+.5f}]" for s, low, high in (before, after)]
    return Finding(
        f"{texts[0]} before and {texts[1]} after step {start:,}, nats per 1,000 steps",
        after[1] > before[2],
        f"divided at the {name}",
    )


@printed("C44", "X10")
def rise_printed(m: Measurements, claim: Claim) -> Finding:
    """Rise of FP32 perplexity from its best to its last printed value."""
    best, final = claim.paper["best_ppl"], claim.paper["final_ppl"]
    rise = 100 * (final / best - 1)
    at_30k = m.printed(30000)["fp32_ppl"]
    return Finding(
        f"{best} to {final:.2f} is {rise:+.1f} %",
        rise < claim.tolerance["below"],
        f"of the {at_30k - best:.1f} points gained from step 30,000 to the best step, "
        f"{final - best:.1f} are lost again",
    )


@measured("C44", "X10")
def rise(m: Measurements, claim: Claim) -> Finding:
    """Rise from the best to the last revision of the suite."""
    ppl = m.even("fp32", "ppl")
    value = 100 * (ppl.iloc[-1] / ppl.min() - 1)
    return Finding(
        f"{ppl.min():.2f} (step {ppl.idxmin():,}) to {ppl.iloc[-1]:.2f} is {value:+.1f} %",
        bool(value < claim.tolerance["below"]),
    )


def second_order_ratio(m: Measurements) -> str:
    """The two probes' second-order costs, where they were measured; empty where not."""
    if not m.knows("low_over_high_second_order", "paper_kl_bits_factor"):
        return ""
    ratio, bits = m.finding("low_over_high_second_order"), m.finding("paper_kl_bits_factor")
    return (
        f"by their second-order terms INT4 costs {number(ratio, 0)} times INT8; bits alone "
        f"change the KL divergence {number(bits, 0)}-fold (mechanism/findings.csv)"
    )


@measured("C47")
def one_sensitivity_of_suite(m: Measurements, claim: Claim) -> Finding:
    """INT8 against INT4 loss over all evenly spaced revisions."""
    low = m.even("low_bit", "delta_nll_nats_per_token")
    high = m.even("high_bit", "delta_nll_nats_per_token")
    r = stats.pearsonr(low, high)
    both = (low > 0) & (high > 0)
    detail = ""
    if both.sum() > 2:
        loglog = stats.linregress(np.log(low[both]), np.log(high[both]))
        detail = (
            f", log-log slope {loglog.slope:.2f}, median INT4/INT8 "
            f"{np.median(low[both] / high[both]):.0f} ({both.sum()} revisions with both above 0)"
        )
    return Finding(
        f"r = {r.statistic:.3f} over {len(low)} revisions{detail}",
        bool(r.statistic <= claim.tolerance["r_below"]),
        second_order_ratio(m),
    )


@measured("C74")
def best_low_bit(m: Measurements, claim: Claim) -> Finding:
    """Smallest INT4 perplexity and its step, against the best FP32 step and the end."""
    low, fp32 = m.even("low_bit", "ppl"), m.even("fp32", "ppl")
    return Finding(
        f"{low.min():.2f} at step {low.idxmin():,} (FP32 best at {fp32.idxmin():,}), "
        f"{low.iloc[-1]:.2f} at the end",
        bool(low.idxmin() <= fp32.idxmin()),
    )


@printed("C78")
def monotonic_printed(m: Measurements, claim: Claim) -> Finding:
    """Falls of the gap between the rows of Table 1."""
    falls = int((m.table1["int4_gap_pct"].diff() < 0).sum())
    tau = stats.kendalltau(m.table1["step"], m.table1["int4_gap_pct"]).statistic
    return Finding(
        f"{falls} falls in {len(m.table1)} rows (Kendall tau {tau:.2f})",
        None,
    )


@measured("C78")
def monotonic(m: Measurements, claim: Claim) -> Finding:
    """Does the gap anywhere fall by more than both intervals allow?"""
    low, high = m.even("low_bit", "gap_low_pct"), m.even("low_bit", "gap_high_pct")
    falls = high < low.cummax()
    tau = stats.kendalltau(low.index, m.even("low_bit", "gap_pct")).statistic
    return Finding(
        f"{int(falls.sum())} of {len(low)} revisions lie below an earlier one by more than both "
        f"intervals (Kendall tau {tau:.2f})",
        bool(falls.any()),
    )
