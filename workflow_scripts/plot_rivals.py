"""Draw figure 8: low-bit perplexity against FP32 perplexity of every condition at its end."""

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from flatminima import style
from flatminima.forks import compare
from flatminima.jobs import run
from flatminima.style import GREY, LOOKS, SCHEDULES, lead_line, place_label, role_labels

ISO_GAPS_PCT = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Group: colour, marker and what it is called.
GROUPS = {
    "paper": (LOOKS["low_bit"].color, "o", "the paper's schedules"),
    "rival": (LOOKS["high_bit"].color, "s", "other training"),
    "average": (LOOKS["oli"].color, "D", "averages, no training"),
}
_WIDE = 2.0  # where the best and the worst FP32 model are further apart, axes are logarithmic


def main(rivals: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` has the key label."""
    style.save(draw(pd.read_csv(rivals), suite=suite), outputs)


@style.style()
def draw(rivals: pd.DataFrame, *, suite: dict) -> Figure:
    """Every condition's end in the plane of the two perplexities, and their ranking.

    ``rivals`` is rivals.csv of ``suite`` (key ``label``). A marker is the mean over seeds,
    dots are seeds; a number is the rank by low-bit perplexity, listed beside the axes. A
    schedule that oscillates counts at the last end of a cool phase. Grey lines join equal
    relative gaps. Lower is better on both axes, and the gap is only how far a point lies
    above the diagonal.
    """
    name, table = role_labels(rivals, suite)["low_bit"], compare(rivals)
    table = table[table["update_phase"] != "bump"]
    ranking = _ranking(table)
    figure = Figure(figsize=(style.PAGE_IN, 4.6))
    axes = figure.add_axes((0.085, 0.095, 0.50, 0.74))
    _set_limits(axes, table)
    _draw_iso_gaps(axes)
    _draw_conditions(axes, table, ranking)
    axes.set_xlabel("FP32 perplexity at the end")
    axes.set_ylabel(f"{name} perplexity at the end")
    _list_ranking(figure, ranking, name)
    _explain(figure, table)
    style.put_title(
        figure,
        f"{suite['label']}: {len(ranking)} ways to go on from one checkpoint",
        x=0.085, y=0.985,
    )  # fmt: skip
    return figure


def _ranking(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of each condition, best low-bit perplexity first; rank from 1."""
    groups = table.groupby(["group", "schedule"], sort=False)
    means = groups[["fp32_ppl", "low_bit_ppl", "gap_pct"]].mean().reset_index()
    means = means.assign(seeds=groups["fp32_ppl"].size().to_numpy())
    means = means.sort_values("low_bit_ppl", kind="stable").reset_index(drop=True)
    return means.assign(rank=means.index + 1)


def _set_limits(axes: Axes, table: pd.DataFrame) -> None:
    """Both axes over all points with room for labels, logarithmic where they are far apart."""
    wide = table["fp32_ppl"].max() > _WIDE * table["fp32_ppl"].min()
    for axis, column in ((axes.xaxis, "fp32_ppl"), (axes.yaxis, "low_bit_ppl")):
        low, high = np.log(table[column].min()), np.log(table[column].max())
        room = 0.08 * max(high - low, 0.01)
        set_limits = axes.set_xlim if axis.axis_name == "x" else axes.set_ylim
        set_limits(np.exp(low - room), np.exp(high + 1.5 * room))
        if wide:
            style.log_axis(axis)
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


def _draw_conditions(axes: Axes, table: pd.DataFrame, ranking: pd.DataFrame) -> None:
    """Seeds as dots, means as markers with their rank beside them."""
    for row in ranking.itertuples():
        color, marker, _ = GROUPS[row.group]
        if row.seeds > 1:
            part = table[table["schedule"] == row.schedule]
            axes.plot(part["fp32_ppl"], part["low_bit_ppl"], ".", ms=2.5, color=color, alpha=0.6)
        axes.plot(row.fp32_ppl, row.low_bit_ppl, marker, ms=4.5, color=color, zorder=4)
    for row in ranking[::-1].itertuples():
        point, color = (row.fp32_ppl, row.low_bit_ppl), GROUPS[row.group][0]
        lead_line(axes, *point, place_label(axes, *point, str(row.rank), color=color))


def _list_ranking(figure: Figure, ranking: pd.DataFrame, name: str) -> None:
    """The conditions by rank with their three numbers, to the right of the axes."""
    left, top = 0.645, 0.835
    line = min(0.036, 0.74 / (len(ranking) + 1))
    columns = {"FP32": 0.86, name: 0.925, "gap %": 0.99}
    for title, x in columns.items():
        figure.text(x, top, title, ha="right", va="top", color=GREY)
    for row in ranking.itertuples():
        y, color = top - line * row.rank, GROUPS[row.group][0]
        label = SCHEDULES.get(row.schedule, row.schedule.replace("_", " "))
        figure.text(left, y, str(row.rank), ha="right", va="top", color=color)
        figure.text(left + 0.012, y, label, va="top", color=color)
        values = (f"{row.fp32_ppl:.2f}", f"{row.low_bit_ppl:.2f}", f"{row.gap_pct:.1f}")
        for value, x in zip(values, columns.values(), strict=True):
            figure.text(x, y, value, ha="right", va="top")


def _explain(figure: Figure, table: pd.DataFrame) -> None:
    handles = [
        Line2D([], [], ls="", marker=GROUPS[group][1], color=GROUPS[group][0],
               label=GROUPS[group][2])
        for group in table["group"].unique()
    ]  # fmt: skip
    dots = {"ls": "", "marker": ".", "ms": 2.5, "color": GREY}
    handles.append(Line2D([], [], **dots, label="one seed"))
    handles.append(Line2D([], [], color=GREY, lw=0.5, label="equal gap"))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.075, 0.95), ncols=len(handles),
        frameon=False, handlelength=1.0, columnspacing=1.1, handletextpad=0.5,
    )  # fmt: skip


if __name__ == "__main__":
    run(main, snakemake)
