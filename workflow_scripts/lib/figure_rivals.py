"""Figure 13: absolute low-bit perplexity against FP32 perplexity of every condition."""

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflow_scripts.lib import plotting
from workflow_scripts.lib.labels import SCHEDULES, role_labels
from workflow_scripts.lib.placement import place_label
from workflow_scripts.lib.plotting import GREY, LOOKS, PAGE_IN
from workflow_scripts.lib.rivals import compare

ISO_GAPS_PCT = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Group: colour, marker and what it is called.
GROUPS = {
    "paper": (LOOKS["low_bit"].color, "o", "the paper's three schedules"),
    "rival": (LOOKS["high_bit"].color, "s", "other trained conditions"),
    "average": (LOOKS["oli"].color, "D", "the run's own checkpoints, no training"),
}
_WIDE = 2.0  # where the best and the worst FP32 model are further apart, axes are logarithmic


def draw(rivals: pd.DataFrame, *, suite: dict) -> Figure:
    """Every condition's end in the plane of the two perplexities.

    ``rivals`` is rivals.csv of ``suite`` (key ``label``). A filled marker is the mean over
    seeds, dots are seeds; hollow markers end on a bump. Grey lines join equal relative
    gaps. Lower is better on both axes, and the gap is only how far a point lies above
    the diagonal.
    """
    name, table = role_labels(rivals)["low_bit"], compare(rivals)
    with plotting.style():
        figure = Figure(figsize=(PAGE_IN, 5.2))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.09, right=0.95, bottom=0.09, top=0.86)
        _set_limits(axes, table)
        _draw_iso_gaps(axes)
        means = _draw_conditions(axes, table)
        axes.set_xlabel("FP32 perplexity at the end")
        axes.set_ylabel(f"{name} perplexity at the end")
        for label, x, y, color in means:
            place_label(axes, x, y, label, color=color)
        _explain(figure, table)
        figure.suptitle(
            f"{suite['label']}: {table['schedule'].nunique()} ways to go on from one checkpoint",
            x=0.09, ha="left", y=0.985,
        )  # fmt: skip
    return figure


def _set_limits(axes: Axes, table: pd.DataFrame) -> None:
    """Both axes over all points with room for labels, logarithmic where they are far apart."""
    wide = table["fp32_ppl"].max() > _WIDE * table["fp32_ppl"].min()
    for axis, column in ((axes.xaxis, "fp32_ppl"), (axes.yaxis, "low_bit_ppl")):
        low, high = np.log(table[column].min()), np.log(table[column].max())
        room = 0.08 * max(high - low, 0.01)
        set_limits = axes.set_xlim if axis.axis_name == "x" else axes.set_ylim
        set_limits(np.exp(low - room), np.exp(high + 1.5 * room))
        if wide:
            plotting.log_axis(axis)
        else:
            axis.set_major_locator(ticker.MaxNLocator(8))


def _draw_iso_gaps(axes: Axes) -> None:
    """Lines of equal relative gap, each named where it leaves the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    x = np.geomspace(left, right, 200)
    for gap in ISO_GAPS_PCT:
        y = x * (1 + gap / 100)
        inside = (y >= bottom) & (y <= top)
        if not inside.any():
            continue
        axes.plot(x[inside], y[inside], color=GREY, lw=0.5, alpha=0.6, zorder=1)
        at = (x[inside][-1], y[inside][-1])
        on_top = at[0] < right * 0.999
        axes.annotate(
            f"{gap} %", at, (0, 2) if on_top else (3, 0), textcoords="offset points", color=GREY,
            ha="center" if on_top else "left", va="bottom" if on_top else "center",
            annotation_clip=False,
        )  # fmt: skip


def _draw_conditions(axes: Axes, table: pd.DataFrame) -> list[tuple[str, float, float, str]]:
    """Markers of all conditions; returns label, position and colour of each."""
    found = []
    for (group, schedule, phase), part in table.groupby(
        ["group", "schedule", "update_phase"], sort=False
    ):
        color, marker, _ = GROUPS[group]
        x, y = part["fp32_ppl"].mean(), part["low_bit_ppl"].mean()
        if len(part) > 1:
            axes.plot(
                part["fp32_ppl"], part["low_bit_ppl"], ls="", marker=".", ms=2.5, color=color,
                alpha=0.6, zorder=3,
            )  # fmt: skip
        axes.plot(
            x, y, ls="", marker=marker, ms=4.5, mec=color, mew=0.8, zorder=4,
            mfc="white" if phase == "bump" else color,
        )  # fmt: skip
        label = SCHEDULES.get(schedule, schedule.replace("_", " "))
        found.append((f"{label}, on a bump" if phase == "bump" else label, x, y, color))
    return found


def _explain(figure: Figure, table: pd.DataFrame) -> None:
    handles = [
        Line2D([], [], ls="", marker=GROUPS[group][1], color=GROUPS[group][0],
               label=GROUPS[group][2])
        for group in table["group"].unique()
    ]  # fmt: skip
    seeds = table.groupby(["schedule", "update_phase"])["seed"].nunique()
    dots = {"ls": "", "marker": ".", "ms": 2.5, "color": GREY}
    handles.append(Line2D([], [], **dots, label=f"one seed (up to {seeds.max()})"))
    handles.append(Line2D([], [], color=GREY, lw=0.5, label="equal relative gap"))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.08, 0.955), ncols=len(handles),
        frameon=False, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
