"""What each figure shows, in words: alternative texts for readers who cannot see it."""

import pandas as pd

from flatminima.figures.figure_kurtosis import SUMMARIES
from flatminima.labels import SCHEDULES, role_labels
from flatminima.revisions.missing import missing_words


def audit_text(audit: pd.DataFrame, phases: dict, *, suite: dict) -> str:
    """Figure 1 in words; the arguments are those of ``figure_audit.draw``."""
    names, best, onset = role_labels(audit), phases["convergence"], phases["onset"]["step"]
    start = phases["segments"][0]["first_step"]
    first, last = (
        audit[audit["step"] == step].set_index("role") for step in (start, audit["step"].max())
    )
    gaps = " and ".join(
        f"the {names[role]} gap goes from {first.loc[role, 'gap_pct']:z.2f} % at step {start:,} to "
        f"{last.loc[role, 'gap_pct']:z.2f} %"
        for role in ("low_bit", "high_bit")
    )
    found = "no onset is found" if onset is None else f"the onset is at step {onset:,}"
    rate = last.loc["fp32", "lr_fraction"]
    ends = "is not known" if pd.isna(rate) else f"ends at {100 * rate:.0f} % of its maximum"
    return (
        f"{suite['label']}: three panels over training to step {audit['step'].max():,}. "
        f"Perplexity gaps: {gaps}; {found}. FP32 perplexity is lowest, {best['ppl']:.2f}, at step "
        f"{best['step']:,} and ends at {last.loc['fp32', 'ppl']:.2f}. The learning rate {ends}."
        + (f" Checkpoints that are {missing_words(phases)}." if missing_words(phases) else "")
    )


def kurtosis_text(kurtosis: pd.DataFrame, *, suite: dict) -> str:
    """Figure 2 in words."""
    courses = []
    for statistic, name in SUMMARIES.items():
        part = kurtosis[kurtosis["statistic"] == statistic].set_index("step")["excess_kurtosis"]
        courses.append(
            f"{' '.join(name.split())}: {part.iloc[0]:.2f} at step {part.index[0]:,}, largest "
            f"{part.max():.2f} at step {part.idxmax():,}, {part.iloc[-1]:.2f} at the end"
        )
    return (
        f"{suite['label']}: excess kurtosis of the weights over training, and late in training the "
        f"perplexity gap against it. Kurtosis, {'; '.join(courses)}."
    )


def forks_text(forks: pd.DataFrame, *, suite: dict) -> str:
    """Figure 3 in words."""
    last = forks[forks["step"] == forks["step"].max()]
    means = last.groupby(["schedule", "role"], sort=False)[["gap_pct", "ppl"]].mean()
    name = role_labels(forks)["low_bit"]
    ends = [
        f"{SCHEDULES.get(schedule, schedule)} {means.loc[(schedule, 'low_bit'), 'gap_pct']:.1f} %, "
        f"{means.loc[(schedule, 'low_bit'), 'ppl']:.2f} and "
        f"{means.loc[(schedule, 'fp32'), 'ppl']:.2f}"
        for schedule in last["schedule"].unique()
    ]
    return (
        f"{suite['label']}: forks from step {forks['fork_step'].iloc[0]:,} to step "
        f"{forks['step'].max():,}; panels of the {name} gap, {name} perplexity, FP32 perplexity "
        f"and learning rate. At the last probe, means over seeds of these three: {'; '.join(ends)}."
    )


def bit_widths_text(audit: pd.DataFrame, *, suite: dict) -> str:
    """Figure 5 in words."""
    names = role_labels(audit)
    last = audit[audit["step"] == audit["step"].max()].set_index("role")
    low, high = (last.loc[role, "delta_nll_nats_per_token"] for role in ("low_bit", "high_bit"))
    return (
        f"{suite['label']}: loss added by {names['high_bit']} against loss added by "
        f"{names['low_bit']}, a point for each checkpoint, on logarithmic axes; at the last one "
        f"{high:.5f} and {low:.4f} nats per token. Beside it the same of the paper's printed "
        "Table 1, where both grow together."
    )
