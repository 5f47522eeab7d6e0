"""Figure 1: what quantization costs at every checkpoint of a training run.

The drawing is in the package, not in ``plot_audit.py``, because the command ``flatminima audit``
draws it as well, also where only the wheel is installed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.absent_steps import left_out_words
from flatminima.hypothesis_tests import join_notes
from flatminima.style import GREY, LOOKS

QUANTIZED = ("low_bit", "high_bit")
# Column of each role in the paper's Table 1.
PAPER_COLUMNS = {"low_bit": "int4_gap_pct", "high_bit": "int8_gap_pct", "fp32": "fp32_ppl"}
MOST_WITH_MARKERS = 40  # checkpoints; more markers than that run into each other


@style.style()
def draw(
    audit: pd.DataFrame,
    phases: dict,
    *,
    suite: dict,
    paper_points: pd.DataFrame | None = None,
    rates: Mapping[int, float] | None = None,
) -> Figure:
    """Gap of both quantizers, FP32 perplexity and learning rate over training steps.

    ``audit`` and ``phases`` are audit.csv and phases.json of ``suite`` (key ``label``).
    ``paper_points`` is the paper's Table 1, drawn as open markers over the curves. Give it only
    if the suite is the paper's own model. ``rates`` are learning rates by step from a log; by
    default those of ``audit`` are drawn. Without any rate there is no panel of rates. The paper's
    figure 1, section 4.2.
    """
    labels = style.role_labels(audit, suite)
    missing_steps = phases.get("missing", [])
    checkpoints = audit["step"].nunique()
    title = (
        f"{suite['label']}: {labels['low_bit']} and {labels['high_bit']} against FP32 at "
        f"{checkpoints} checkpoints"
    )
    lr_fraction = _rates_of_max(audit, rates)
    heights = (2.5, 1.8, 0.6) if len(lr_fraction) else (2.5, 1.8)
    page_height = 0.5 + sum(heights)
    figure = style.page(join_notes(title, left_out_words(phases)), page_height)
    panels = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    gap_axes, perplexity_axes = panels[:2]
    gap_axes.set_title(style.shade_phases(panels, phases))

    # A curve breaks where a revision is missing: reindexing puts NaN at these steps.
    by_role = {
        role: rows.set_index("step").reindex(sorted({*rows["step"], *missing_steps}))
        for role, rows in audit.groupby("role")
    }
    marker = {"marker": "o"} if checkpoints < MOST_WITH_MARKERS else {}
    _draw_gaps(gap_axes, by_role, labels, marker)
    _draw_further_gaps(gap_axes, by_role, labels, further_roles(audit))
    scale_note = _scale_gaps(gap_axes, audit, phases, paper_points)
    gap_axes.set_ylabel(f"perplexity gap (% of FP32){scale_note}")
    _draw_perplexity(perplexity_axes, by_role["fp32"]["ppl"], phases["convergence"], marker)
    if len(lr_fraction):
        _draw_learning_rate(panels[2], lr_fraction, marker if rates is None else {})
    _label_steps(panels[-1], audit)
    if paper_points is not None:
        _draw_paper_points(gap_axes, perplexity_axes, paper_points)
    _mark_events(panels, audit, phases)
    for axes in (gap_axes, perplexity_axes):
        _mark_missing(axes, missing_steps)
    style.legends([gap_axes], [2], of_page=True)
    figure.align_ylabels(panels)
    return figure


def _draw_gaps(
    axes: Axes, by_role: dict[str, pd.DataFrame], labels: dict[str, str], marker: dict
) -> None:
    """The gap of each quantizer with its 95 % interval, in percent of FP32 perplexity."""
    for role in QUANTIZED:
        rows = by_role[role]
        look = LOOKS[role]
        axes.fill_between(
            rows.index,
            rows["gap_low_pct"],
            rows["gap_high_pct"],
            color=look.color,
            alpha=0.22,
            lw=0,
        )
        axes.plot(
            rows["gap_pct"], color=look.color, ls=look.linestyle, label=labels[role], **marker
        )
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)


def further_roles(audit: pd.DataFrame) -> list[str]:
    """Quantizers beyond the audited two, whose role is their name (``probe.also``)."""
    return [role for role in audit["role"].unique() if role not in (*QUANTIZED, "fp32")]


def _draw_further_gaps(
    axes: Axes, by_role: dict[str, pd.DataFrame], labels: dict[str, str], roles: Sequence[str]
) -> None:
    """Further quantizers as thin lines, without intervals."""
    for role, look in style.fork_looks(roles).items():
        axes.plot(
            by_role[role]["gap_pct"],
            color=look.color,
            ls=look.linestyle,
            lw=0.9,
            label=labels[role],
        )


def _draw_perplexity(axes: Axes, fp32: pd.Series, best: dict, marker: dict) -> None:
    label = _scale_perplexity(axes, fp32.dropna(), best)
    axes.plot(fp32, color=LOOKS["fp32"].color, label=label, **marker)
    axes.set_ylabel("FP32 perplexity")


def _rates_of_max(audit: pd.DataFrame, rates: Mapping[int, float] | None) -> pd.Series:
    """Learning rates by step as fractions of the highest, up to the last audited step."""
    if rates is None:
        return audit[audit["role"] == "fp32"].set_index("step")["lr_fraction"].dropna()
    logged = pd.Series(rates, dtype=float).sort_index()
    return (logged / logged.max())[logged.index <= audit["step"].max()]


def _draw_learning_rate(axes: Axes, lr_fraction: pd.Series, marker: dict) -> None:
    axes.plot(100 * lr_fraction, color=GREY, **marker)
    axes.set(ylim=(0, 105), yticks=(0, 50, 100), ylabel="LR\n(% of max)")


def _label_steps(axes: Axes, audit: pd.DataFrame) -> None:
    """The x axis of all panels, with the tokens of one step where they are known."""
    style.step_axis(axes, audit["step"].max(), ticks=7)
    last_row = audit.iloc[-1]
    if pd.notna(last_row["tokens_seen"]):
        # The same for every step, so the last row will do.
        tokens_per_step = last_row["tokens_seen"] / last_row["step"]
        axes.set_xlabel(f"training step ({tokens_per_step:,.0f} tokens each)")


def _draw_paper_points(gap_axes: Axes, perplexity_axes: Axes, table1: pd.DataFrame) -> None:
    axes_of_role = {"low_bit": gap_axes, "high_bit": gap_axes, "fp32": perplexity_axes}
    for role, axes in axes_of_role.items():
        column = PAPER_COLUMNS[role]
        name = column.split("_")[0].upper()
        axes.plot(
            table1["step"],
            table1[column],
            ls="",
            marker=LOOKS[role].marker,
            mec=LOOKS[role].color,
            mfc="white",
            ms=4,
            zorder=5,
            label=f"paper's Table 1: {name}",
        )


def _mark_missing(axes: Axes, missing_steps: Sequence[int]) -> None:
    """A cross on the x axis for every missing revision."""
    for step in missing_steps:
        axes.plot(
            step, 0, "x", color=GREY, ms=4, clip_on=False, transform=axes.get_xaxis_transform()
        )


def _scale_gaps(
    axes: Axes, audit: pd.DataFrame, phases: dict, paper_points: pd.DataFrame | None
) -> str:
    """Set the scale of the gaps and return a note on it for the axis label.

    The low-bit gap after rapid learning decides the scale. All other gaps must stay visible.
    """
    quantized = audit[audit["role"].isin([*QUANTIZED, *further_roles(audit)])]
    rapid_learning_end = phases["segments"][0]["last_step"]
    after_learning = audit["step"] >= rapid_learning_end
    decisive = audit[(audit["role"] == "low_bit") & after_learning]["gap_pct"]
    visible = [quantized["gap_pct"], quantized["gap_low_pct"]]
    if paper_points is not None:
        visible += [paper_points[PAPER_COLUMNS[role]] for role in QUANTIZED]
        decisive = pd.concat([decisive, paper_points[PAPER_COLUMNS["low_bit"]]])
    return style.choose_scale(axes, pd.concat(visible), decisive=decisive)


def _scale_perplexity(axes: Axes, fp32: pd.Series, best: dict) -> str:
    """Limit the axis, because the fall of the first steps would hide the rise of the last ones.

    Returns a name for the curve, which says which steps are off the axis.
    """
    # The rise after the best step must be visible to its top.
    highest_late = fp32[fp32.index >= best["step"]].max()
    top = max(1.35 * best["ppl"], 1.05 * highest_late)
    axes.set_ylim(best["ppl"] - 0.15 * (top - best["ppl"]), top)
    visible = fp32[fp32 <= top]
    if len(visible) == len(fp32):
        return "FP32"
    start = f"{fp32.iloc[0]:,.0f} at step {fp32.index[0]:,}"
    return f"FP32 ({start}, off the axis until {visible.index[0]:,})"


def _mark_events(panels: Sequence[Axes], audit: pd.DataFrame, phases: dict) -> None:
    """FP32 convergence and the onset: a line through all panels, a point with its interval."""
    gap_axes, perplexity_axes = panels[:2]
    still_falling = phases["convergence"]["step"] == audit["step"].max()
    convergence_name = "FP32 is lowest at the end" if still_falling else "FP32 convergence"
    events = [
        (convergence_name, phases["convergence"], perplexity_axes, "fp32", "ppl"),
        ("onset", phases["onset"], gap_axes, "low_bit", "gap_pct"),
    ]
    for name, event, point_axes, role, column in events:
        step = event["step"]
        if step is None:
            continue
        color = LOOKS[role].color
        for axes in panels:
            axes.axvline(step, color=color, lw=0.6, ls=(0, (1, 2)))
        curve = audit[audit["role"] == role]
        low, high = event["step_low"], event["step_high"]
        bars = None
        interval = ""
        # Without resampled text an event has no interval.
        if low is not None:
            bars = [[step - low], [high - step]]
            interval = f" [{low:,}, {high:,}]"
        point_axes.errorbar(
            step,
            # An event may lie between two checkpoints of a curve that has holes.
            np.interp(step, curve["step"], curve[column]),
            xerr=bars,
            fmt="D",
            ms=4,
            mfc="white",
            mew=1,
            color=color,
            elinewidth=1.2,
            capsize=2.5,
            zorder=8,
            clip_on=False,
            label=f"{name}: step {step:,}{interval}",
        )
