"""Claims that need no weights: the grid, the schedule, tokens, definitions, Table 1 as printed."""

import math

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    measured,
    printed,
    within,
)
from flatminima.revisions.missing import missing_steps, missing_words
from flatminima.schedules import Cosine, CosineNeoxV1
from flatminima.suite import revision_steps


@measured("C01")
def revisions(m: Measurements, claim: Claim) -> Finding:
    """Count the revisions of the grid, and the distinct ones where the suite was described."""
    powers = m.suite.get("powers_of_two", m.pythia["powers_of_two"])
    steps = revision_steps(powers_of_two=powers, spacing=m.suite["spacing"], last=m.suite["last"])
    value, count = f"{len(steps)} revisions in the grid", len(steps)
    if m.suite_table is not None:
        lost = missing_steps(m.suite_table)
        count = len(m.suite_table) - len(lost)
        distinct = m.suite_table["weights_sha256"].nunique()
        value = f"{count} revisions, {distinct} distinct models"
        if lost:
            value += f" ({missing_words(lost)})"
    note = "the update at step 0 has learning rate 0, so steps 0 and 1 hold the same weights"
    return Finding(value, within(count, claim.paper["checkpoints"], claim.tolerance), note)


@printed("C02", "X13")
def named_checkpoints(m: Measurements, claim: Claim) -> Finding:
    """Add the two kinds of checkpoints that the text names."""
    even = m.pythia["last"] // claim.paper["spacing"]
    total = claim.paper["log_spaced"] + even
    return Finding(
        f"{claim.paper['log_spaced']} + {even} = {total}",
        within(total, claim.paper["checkpoints"], claim.tolerance),
        "step 0 is the one left out",
    )


@measured("C03")
def tokens(m: Measurements, claim: Claim) -> Finding:
    """Tokens of the whole run."""
    total = m.suite["last"] * m.suite["tokens_per_step"]
    return Finding(f"{total:,} tokens", within(total, claim.paper["tokens"], claim.tolerance))


@measured("C04")
def warmup(m: Measurements, claim: Claim) -> Finding:
    """Warm-up as a hundredth of the run, to the step."""
    expected = math.floor(0.01 * m.suite["last"])
    return Finding(
        f"{m.suite['warmup_steps']:,} steps; 1 % of {m.suite['last']:,} is {expected:,}",
        within(m.suite["warmup_steps"], expected, claim.tolerance),
    )


def floor_step(schedule: Cosine | CosineNeoxV1) -> int:
    """First step after the warm-up at which a pretraining schedule is at its minimum."""
    return schedule.floor_step if isinstance(schedule, CosineNeoxV1) else schedule.total_steps


@measured("C05")
def decay(m: Measurements, claim: Claim) -> Finding:
    """When the schedule that was run stops falling."""
    last = m.suite["last"]
    try:
        floor = floor_step(m.schedule())
    except ValueError as never:  # the formula stops falling a warm-up's length before the end
        return Finding(str(never), False)
    return Finding(
        f"at the minimum from step {floor:,}; the last {last - floor:,} steps are constant",
        within(floor, last, claim.tolerance),
        "the schedule of gpt-neox v1.0 is a cosine towards 0 with the minimum as a floor",
    )


@printed("C29")
def learning_rates(m: Measurements, claim: Claim) -> Finding:
    """Table 1's learning rates under the paper's cosine and under the one that was run."""
    agree = {}
    for kind in ("cosine", "cosine_neox_v1"):
        lr = m.pythia_schedule(kind)
        agree[kind] = [
            row.step
            for row in m.table1.itertuples()
            if within(100 * lr(row.step) / lr.lr_max, row.lr_pct, claim.tolerance)
        ]
    rows = claim.paper["rows"]
    off = [f"{step:,}" for step in m.table1["step"] if step not in agree["cosine"]]
    return Finding(
        f"{len(agree['cosine'])} of {rows} rows agree with the paper's cosine"
        + (f" (not step {', '.join(off)})" if off else "")
        + f", {len(agree['cosine_neox_v1'])} of {rows} with the schedule that was run",
        len(agree["cosine"]) == rows,
    )


@measured("C29")
def learning_rates_of_suite(m: Measurements, claim: Claim) -> Finding:
    """The same column at the same places of this suite's run."""
    fractions = [100 * m.at("fp32", "lr_fraction", m.step(s)) for s in m.table1["step"]]
    off = max(abs(np.array(fractions) - m.table1["lr_pct"]))
    return Finding(
        f"{', '.join(f'{x:.1f}' for x in fractions)} % at the same places; "
        f"largest distance {off:.1f} points",
        within(off, 0, claim.tolerance),
    )


@printed("X12")
def learning_rate_of_row(m: Measurements, claim: Claim) -> Finding:
    """One learning rate under the paper's cosine."""
    lr = m.pythia_schedule("cosine")
    value = 100 * lr(claim.paper["step"]) / lr.lr_max
    return Finding(
        f"{value:.2f} % against {claim.paper['lr_pct']} %",
        within(value, claim.paper["lr_pct"], claim.tolerance),
    )


@measured("C40")
def learning_rate_at_onset(m: Measurements, claim: Claim) -> Finding:
    """Learning rate of the schedule that was run at the step named as the onset."""
    lr, step = m.schedule(), m.step(claim.paper["step"])
    value = 100 * lr(step) / lr.lr_max
    other = m.pythia_schedule("cosine")
    return Finding(
        f"{value:.1f} % at step {step:,}",
        within(value, claim.paper["lr_pct"], claim.tolerance),
        f"the paper's cosine gives {100 * other(claim.paper['step']) / other.lr_max:.1f} %",
    )


@printed("X29")
def still_falling(m: Measurements, claim: Claim) -> Finding:
    """The same for Pythia, whatever the suite, and the end of the decay."""
    lr = m.pythia_schedule("cosine_neox_v1")
    value, floor = 100 * lr(claim.paper["step"]) / lr.lr_max, floor_step(lr)
    return Finding(
        f"{value:.1f} % at step {claim.paper['step']:,}; constant from step {floor:,}, "
        f"for {claim.paper['last'] - floor:,} steps",
        within(value, claim.paper["lr_pct"], claim.tolerance) and floor >= claim.paper["last"],
        against="source",
    )


@printed("C30")
def initial_perplexity(m: Measurements, claim: Claim) -> Finding:
    """Perplexity of random logits: the mean of exp over a normal is exp(variance / 2)."""
    value = m.pythia["vocabulary"] * math.exp(m.pythia["init_logit_variance"] / 2)
    return Finding(
        f"{value:,.0f}",
        within(value, claim.paper["ppl"], claim.tolerance),
        "above the vocabulary because random logits are worse than equal ones",
    )


@measured("C30")
def initial_perplexity_of_suite(m: Measurements, claim: Claim) -> Finding:
    """FP32 perplexity of step 0."""
    value = m.at("fp32", "ppl", 0)
    return Finding(f"{value:,.0f}", within(value, claim.paper["ppl"], claim.tolerance))


def loss(gap_pct: pd.Series) -> np.ndarray:
    """Gaps in percent of the perplexity as differences of the loss in nats per token."""
    return np.log1p(gap_pct.to_numpy() / 100)


@printed("C47")
def one_sensitivity(m: Measurements, claim: Claim) -> Finding:
    """Do INT4 and INT8 losses of Table 1 grow together?"""
    low, high = loss(m.table1["int4_gap_pct"]), loss(m.table1["int8_gap_pct"])
    r, loglog = stats.pearsonr(low, high), stats.linregress(np.log(low), np.log(high))
    ratio = low / high
    row = list(m.table1["step"]).index(30000)
    return Finding(
        f"r = {r.statistic:.3f} (p = {r.pvalue:.0e}), log-log r = {loglog.rvalue:.3f} with slope "
        f"{loglog.slope:.2f}, INT4/INT8 = {ratio.min():.0f} to {ratio.max():.0f} "
        f"(median {np.median(ratio):.0f})",
        bool(r.statistic <= claim.tolerance["r_below"]),
        f"from step 30,000 to the end INT8 grows {high[-1] / high[row]:.1f} times and INT4 "
        f"{low[-1] / low[row]:.1f} times; squared step sizes alone give a ratio of "
        f"{(255 / 15) ** 2:.0f}",
    )


@printed("C45")
def fold(m: Measurements, claim: Claim) -> Finding:
    """Ratio of the printed final gaps."""
    ratio = claim.paper["int4_pct"] / claim.paper["int8_pct"]
    return Finding(f"{ratio:.1f}", within(ratio, claim.paper["ratio"], claim.tolerance))


@printed("X02")
def folds(m: Measurements, claim: Claim) -> Finding:
    """The two ratios named in the text against the one that the numbers give."""
    ratio = claim.paper["int4_pct"] / claim.paper["int8_pct"]
    named = [claim.paper["introduction"], claim.paper["section_4_4"]]
    return Finding(
        f"{ratio:.1f} against {named[0]} and {named[1]}",
        all(within(ratio, n, claim.tolerance) for n in named),
    )


@measured("C45", "X02")
def fold_of_suite(m: Measurements, claim: Claim) -> Finding:
    """Ratio of the measured final gaps."""
    low, high = (m.at(role, "gap_pct", m.suite["last"]) for role in ("low_bit", "high_bit"))
    value = f"{low:.1f} % / {high:.3f} % = {low / high:.0f}"
    target = claim.paper.get("ratio", claim.paper.get("section_4_4"))
    return Finding(value, within(low / high, target, claim.tolerance))


@printed("C74")
def int4_perplexities(m: Measurements, claim: Claim) -> Finding:
    """Absolute INT4 perplexity of the rows of Table 1."""
    ppl = m.table1["fp32_ppl"] * (1 + m.table1["int4_gap_pct"] / 100)
    best, best_fp32 = (m.table1["step"][x.idxmin()] for x in (ppl, m.table1["fp32_ppl"]))
    return Finding(
        f"{ppl.min():.1f} at step {best:,}, {ppl.iloc[-1]:.1f} at the end",
        bool(best <= best_fp32),
    )
