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
from flatminima.hypothesis_tests import join_notes
from flatminima.missing import missing_words
from flatminima.style import GREY, LOOKS, end_labels, place_label, role_labels

QUANTIZED = ("low_bit", "high_bit")
PAPER_GAPS = {"low_bit": "int4_gap_pct", "high_bit": "int8_gap_pct"}  # columns of its Table 1


def draw(
    audit: pd.DataFrame,
    phases: dict,
    *,
    suite: dict,
    paper_points: pd.DataFrame | None = None,
) -> Figure:
    """Gap of both quantizers, FP32 perplexity and learning rate over training steps.

    ``audit`` and ``phases`` are audit.csv and phases.json of ``suite`` (keys ``label``).
    ``paper_points`` (columns step, int4_gap_pct, int8_gap_pct, fp32_ppl) are drawn over
    the curves as open markers; give them only where the suite is the paper's own model.
    The paper's figure 1, section 4.2.
    """
    names, steps = role_labels(audit, suite), audit["step"].unique()
    with style.style():
        figure = Figure(figsize=(style.PAGE_IN, 5.4))
        grid = figure.add_gridspec(
            3, 1, height_ratios=(2.5, 1.8, 0.6), hspace=0.1,
            left=0.105, right=0.935, bottom=0.075, top=0.89,
        )  # fmt: skip
        panels = list(grid.subplots(sharex=True))
        panels[0].set_xlim(0, steps.max())
        style.draw_phases(panels, style.named_segments(phases))
        _draw_gaps(panels[0], audit, phases, names, paper_points)
        _draw_perplexity(panels[1], audit, phases, paper_points)
        _draw_learning_rate(panels[2], audit)
        last = audit.iloc[-1]
        known = pd.notna(last["tokens_seen"])
        each = last["tokens_seen"] / last["step"] if known else None
        style.step_axis(panels[2], tokens_per_step=each)
        if paper_points is not None:
            first = paper_points.iloc[len(paper_points) // 2]
            words = "open markers: the paper's Table 1"
            place_label(panels[0], first["step"], first["int8_gap_pct"], words, color=GREY)
        _mark_events(panels, audit, phases)
        for panel, step in product(panels[:2], phases.get("missing", [])):
            # Where the curves are broken.
            transform = panel.get_xaxis_transform()
            panel.plot(step, 0, "x", color=GREY, ms=4, clip_on=False, transform=transform)
        low, high = (names[role] for role in QUANTIZED)
        style.put_title(
            figure,
            f"{suite['label']}: {low} and {high} against FP32 at {audit['step'].nunique()} "
            + join_notes("checkpoints", missing_words(phases)),
            x=0.105, y=0.985,
        )  # fmt: skip
        figure.align_ylabels(panels)
    return figure


def _dots(audit: pd.DataFrame) -> str | None:
    """Markers on the curves of a suite with few checkpoints."""
    return "o" if audit["step"].nunique() < 40 else None


def _curve(audit: pd.DataFrame, phases: dict, role: str) -> pd.DataFrame:
    """Rows of a role by step; those of missing revisions are empty: no line crosses them."""
    rows = audit[audit["role"] == role].set_index("step")
    return rows.reindex(sorted({*rows.index, *phases.get("missing", [])}))


def _draw_gaps(
    axes: Axes, audit: pd.DataFrame, phases: dict, names: dict[str, str], paper: pd.DataFrame | None
) -> None:
    quantized = audit[audit["role"].isin(QUANTIZED)]
    # What the low-bit gap does after rapid learning decides; the rest must stay visible.
    learned = audit["step"] >= phases["segments"][0]["last_step"]
    shown = [quantized["gap_pct"]]
    decisive = [audit.loc[learned & (audit["role"] == "low_bit"), "gap_pct"]]
    if paper is not None:
        shown += [paper[column] for column in PAPER_GAPS.values()]
        decisive.append(paper[PAPER_GAPS["low_bit"]])
    words = style.choose_scale(
        axes.yaxis, pd.concat(shown), bounds=quantized["gap_low_pct"], decisive=pd.concat(decisive)
    )
    dots = _dots(audit)
    ends = []
    for role in sorted(quantized["role"].unique()):
        look, part = LOOKS[role], _curve(audit, phases, role)
        axes.fill_between(
            part.index, part["gap_low_pct"], part["gap_high_pct"], color=look.color, alpha=0.22,
            lw=0,
        )  # fmt: skip
        axes.plot(
            part.index, part["gap_pct"], color=look.color, ls=look.linestyle,
            marker=dots and look.marker,
        )  # fmt: skip
        if paper is not None:
            _draw_paper(axes, paper, PAPER_GAPS[role], role)
        ends.append((names[role], part["gap_pct"].dropna().iloc[-1], look.color))
    if axes.get_yscale() != "log":
        axes.axhline(0, color=GREY, lw=0.5, zorder=0)
    axes.set_ylabel("perplexity gap (% of FP32)" + (f"\n{words}" if words else ""))
    end_labels(axes, ends)


def _draw_perplexity(
    axes: Axes, audit: pd.DataFrame, phases: dict, paper: pd.DataFrame | None
) -> None:
    curve = _curve(audit, phases, "fp32")["ppl"]
    fp32, best = curve.dropna(), phases["convergence"]
    late = fp32[fp32.index >= best["step"]]
    # The fall of the first steps would hide the rise of the last ones.
    top = max(1.35 * best["ppl"], 1.05 * late.max())
    low = best["ppl"] - 0.4 * (top - best["ppl"])
    axes.set_ylim(low, top)
    axes.plot(curve.index, curve, color=LOOKS["fp32"].color, marker=_dots(audit))
    inside = [] if paper is None else paper[paper["fp32_ppl"].between(low, top)]
    if len(inside):
        _draw_paper(axes, inside, "fp32_ppl", "fp32")
    axes.set_ylabel("FP32 perplexity")
    end_labels(axes, [("FP32", fp32.iloc[-1], LOOKS["fp32"].color)])
    shown = fp32[fp32 <= top]
    if len(shown) < len(fp32):
        # Beside the curve where it has fallen by the height of the text.
        fallen = fp32[fp32 <= low + 0.6 * (top - low)].index[0]
        axes.annotate(
            f"off the axis\nbefore step {shown.index[0]:,}:\n"
            f"{fp32.iloc[0]:,.0f} at step {fp32.index[0]:,}",
            (fallen, 1), (5, -2), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", va="top", color=GREY,
        )  # fmt: skip


def _draw_paper(axes: Axes, points: pd.DataFrame, column: str, role: str) -> None:
    look = LOOKS[role]
    axes.plot(
        points["step"], points[column], ls="", marker=look.marker, mfc="white", mec=look.color,
        ms=4, zorder=5, clip_on=False,
    )  # fmt: skip


def _draw_learning_rate(axes: Axes, audit: pd.DataFrame) -> None:
    fp32 = audit[audit["role"] == "fp32"]
    known = fp32.dropna(subset="lr_fraction")
    axes.plot(known["step"], 100 * known["lr_fraction"], color=GREY, marker=_dots(audit))
    axes.set(ylim=(0, 105), yticks=(0, 50, 100), ylabel="LR\n(% of max)")
    if not len(known):
        axes.text(
            0.5, 0.5, "not known", ha="center", va="center", color=GREY, transform=axes.transAxes
        )


def _mark_events(panels: list[Axes], audit: pd.DataFrame, phases: dict) -> None:
    falling = phases["convergence"]["step"] == audit["step"].max()
    name = "FP32 is lowest at the end" if falling else "FP32 convergence"
    events = [(phases["convergence"], 1, "fp32", "ppl", name)]
    if phases["onset"]["step"] is not None:
        events.append((phases["onset"], 0, "low_bit", "gap_pct", "onset"))
    for event, _, role, _, _ in events:
        for panel in panels:
            panel.axvline(event["step"], color=LOOKS[role].color, lw=0.6, ls=(0, (1, 2)))
    for event, panel, role, column, name in events:
        curve = audit[audit["role"] == role]
        value = float(np.interp(event["step"], curve["step"], curve[column]))
        _mark(panels[panel], event, value, name, LOOKS[role].color)


def _mark(axes: Axes, event: dict, value: float, name: str, color: str) -> None:
    """A point at the event with its 95 % interval along the steps."""
    step, low, high = event["step"], event["step_low"], event["step_high"]
    known = low is not None
    axes.errorbar(
        step, value, xerr=[[step - low], [high - step]] if known else None, fmt="D", ms=4,
        color=color, mfc="white", mew=1, elinewidth=1.2, capsize=2.5, zorder=8, clip_on=False,
    )  # fmt: skip
    interval = f"\n(95 % interval {low:,} to {high:,})" if known else ""
    place_label(axes, step, value, f"{name}: step {step:,}{interval}", color=color)
