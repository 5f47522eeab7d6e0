"""Figure 1: what quantization costs at every checkpoint of a training run.

It stands in the package, not in ``plot_audit.py``, because the command ``flatminima audit``
draws it as well, also where only the wheel is installed.
"""

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.absent_steps import left_out_words
from flatminima.hypothesis_tests import join_notes
from flatminima.style import GREY, LOOKS

QUANTIZED = ("low_bit", "high_bit")
PAPER = {"low_bit": "int4_gap_pct", "high_bit": "int8_gap_pct", "fp32": "fp32_ppl"}  # its Table 1


@style.style()
def draw(
    audit: pd.DataFrame, phases: dict, *, suite: dict, paper_points: pd.DataFrame | None = None
) -> Figure:
    """Gap of both quantizers, FP32 perplexity and learning rate over training steps.

    ``audit`` and ``phases`` are audit.csv and phases.json of ``suite`` (key ``label``).
    ``paper_points`` (its Table 1) are drawn over the curves as open markers; give them only
    where the suite is the paper's own model. The paper's figure 1, section 4.2.
    """
    names, missing = style.role_labels(audit, suite), phases.get("missing", [])
    count, last = audit["step"].nunique(), audit.iloc[-1]
    title = f"{suite['label']}: {names['low_bit']} and {names['high_bit']} against FP32 at {count} "
    figure = style.page(title + join_notes("checkpoints", left_out_words(phases)), 5.4)
    panels = gap, ppl, rate = figure.subplots(3, sharex=True, height_ratios=(2.5, 1.8, 0.6))
    gap.set_title(style.shade_phases(panels, phases))
    # Curves break where a revision is missing, and a cross says so.
    by_role = {
        role: part.set_index("step").reindex(sorted({*part["step"], *missing}))
        for role, part in audit.groupby("role")
    }
    look = {"marker": "o"} if count < 40 else {}
    words = _scale_gaps(gap, audit, phases, paper_points)
    for role in QUANTIZED:
        part, color, dashes = by_role[role], LOOKS[role].color, LOOKS[role].linestyle
        gap.fill_between(part.index, part["gap_low_pct"], part["gap_high_pct"], color=color,
                         alpha=0.22, lw=0)  # fmt: skip
        gap.plot(part["gap_pct"], color=color, ls=dashes, **look, label=names[role])
    gap.axhline(0, color=GREY, lw=0.5, zorder=0)
    gap.set_ylabel(f"perplexity gap (% of FP32){words}")
    name = _scale_perplexity(ppl, by_role["fp32"]["ppl"].dropna(), phases["convergence"])
    ppl.plot(by_role["fp32"]["ppl"], color=LOOKS["fp32"].color, **look, label=name)
    ppl.set_ylabel("FP32 perplexity")
    known = 100 * by_role["fp32"]["lr_fraction"].dropna()
    rate.plot(known, color=GREY, **look)
    label = "LR\n(% of max)" if len(known) else "LR\n(not known)"
    rate.set(ylim=(0, 105), yticks=(0, 50, 100), ylabel=label)
    style.step_axis(rate, audit["step"].max(), ticks=7)
    if pd.notna(last["tokens_seen"]):
        each = last["tokens_seen"] / last["step"]
        rate.set_xlabel(f"training step ({each:,.0f} tokens each)")
    for role, axes in zip(PAPER, (gap, gap, ppl), strict=True) if paper_points is not None else ():
        look = {"marker": LOOKS[role].marker, "mec": LOOKS[role].color, "mfc": "white", "ms": 4}
        axes.plot(paper_points["step"], paper_points[PAPER[role]], ls="", **look, zorder=5,
                  label=f"paper's Table 1: {PAPER[role].split('_')[0].upper()}")  # fmt: skip
    _mark_events(panels, audit, phases)
    for panel, step in product((gap, ppl), missing):
        panel.plot(step, 0, "x", color=GREY, ms=4, clip_on=False,
                   transform=panel.get_xaxis_transform())  # fmt: skip
    style.legends([gap], [2], whole=True)
    figure.align_ylabels(panels)
    return figure


def _scale_gaps(axes: Axes, audit: pd.DataFrame, phases: dict, paper: pd.DataFrame | None) -> str:
    """Set the scale of the gaps and return words for it.

    What the low-bit gap does after rapid learning decides; the rest must stay visible.
    """
    quantized, learned = audit[audit["role"] != "fp32"], phases["segments"][0]["last_step"]
    decisive = audit[(audit["role"] == "low_bit") & (audit["step"] >= learned)]["gap_pct"]
    shown = [quantized["gap_pct"], quantized["gap_low_pct"]]
    if paper is not None:
        shown += [paper[PAPER[role]] for role in QUANTIZED]
        decisive = pd.concat([decisive, paper[PAPER["low_bit"]]])
    return style.choose_scale(axes, pd.concat(shown), decisive=decisive)


def _scale_perplexity(axes: Axes, fp32: pd.Series, best: dict) -> str:
    """Limit the axis, as the fall of the first steps would hide the rise of the last ones.

    Returns a name for the curve, which says what is off the axis.
    """
    top = max(1.35 * best["ppl"], 1.05 * fp32[fp32.index >= best["step"]].max())
    axes.set_ylim(best["ppl"] - 0.4 * (top - best["ppl"]), top)
    shown = fp32[fp32 <= top]
    if len(shown) == len(fp32):
        return "FP32"
    start = f"{fp32.iloc[0]:,.0f} at step {fp32.index[0]:,}"
    return f"FP32 ({start}, off the axis until {shown.index[0]:,})"


def _mark_events(panels: list[Axes], audit: pd.DataFrame, phases: dict) -> None:
    """FP32 convergence and the onset: a line through all panels, a point with its interval."""
    falling = phases["convergence"]["step"] == audit["step"].max()
    name = "FP32 is lowest at the end" if falling else "FP32 convergence"
    events = [(name, phases["convergence"], panels[1], "fp32", "ppl")]
    events.append(("onset", phases["onset"], panels[0], "low_bit", "gap_pct"))
    for name, event, panel, role, column in events:
        step, low, high = event["step"], event["step_low"], event["step_high"]
        if step is None:
            continue
        for axes in panels:
            axes.axvline(step, color=LOOKS[role].color, lw=0.6, ls=(0, (1, 2)))
        curve, known = audit[audit["role"] == role], low is not None
        interval = f" [{low:,}, {high:,}]" if known else ""
        panel.errorbar(
            step, np.interp(step, curve["step"], curve[column]), fmt="D", ms=4, mfc="white", mew=1,
            xerr=[[step - low], [high - step]] if known else None, color=LOOKS[role].color,
            elinewidth=1.2, capsize=2.5, zorder=8, clip_on=False,
            label=f"{name}: step {step:,}{interval}",
        )  # fmt: skip
