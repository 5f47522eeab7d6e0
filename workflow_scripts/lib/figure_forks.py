"""Figure 3: forks of one checkpoint under three learning-rate schedules."""

import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflow_scripts.lib import plotting
from workflow_scripts.lib.labels import SCHEDULES, role_labels
from workflow_scripts.lib.plotting import GREY, LOOKS, PAGE_IN


def draw(forks: pd.DataFrame, audit: pd.DataFrame, *, suite: dict) -> Figure:
    """Gap, absolute perplexities and learning rate of every fork over its probes.

    ``forks`` and ``audit`` are forks.csv and audit.csv of ``suite`` (key ``label``).
    Thin lines are seeds, thick ones their mean; the audited run over the same steps is
    grey. Absolute perplexities stand below the gap because the gap is relative to each
    fork's own FP32 model and shrinks when that model gets worse. The paper's figure 3,
    section 5.2.
    """
    name = role_labels(forks)["low_bit"]
    forks = forks.fillna({"update_phase": ""})
    start, last = forks["fork_step"].iloc[0], forks["step"].max()
    run = audit[audit["step"].between(start, last)]
    with plotting.style():
        figure = Figure(figsize=(PAGE_IN, 6.2))
        grid = figure.add_gridspec(
            3, 2, height_ratios=(1.6, 1.2, 0.7), hspace=0.3, wspace=0.34,
            left=0.085, right=0.925, bottom=0.065, top=0.90,
        )  # fmt: skip
        gap = figure.add_subplot(grid[0, :])
        low_ppl = figure.add_subplot(grid[1, 0], sharex=gap)
        fp32_ppl = figure.add_subplot(grid[1, 1], sharex=gap, sharey=low_ppl)
        rate = figure.add_subplot(grid[2, :], sharex=gap)
        gap.set_xlim(start, last)

        drawn = [(gap, "low_bit", "gap_pct"), (low_ppl, "low_bit", "ppl"),
                 (fp32_ppl, "fp32", "ppl")]  # fmt: skip
        words = {
            axes: plotting.choose_scale(axes.yaxis, forks.loc[forks["role"] == role, column])
            for axes, role, column in drawn[:2]
        }
        words[fp32_ppl] = words[low_ppl]
        ends = {
            axes: _draw_forks(axes, forks[forks["role"] == role], run[run["role"] == role], column)
            for axes, role, column in drawn
        }
        for axes in ends:
            plotting.end_labels(axes, ends[axes])
        for axes, label in [
            (gap, f"{name} gap (% of FP32)"),
            (low_ppl, f"{name} perplexity"),
            (fp32_ppl, "FP32 perplexity"),
        ]:
            axes.set_ylabel(label + (f"\n{words[axes]}" if words[axes] else ""))
        _draw_learning_rate(rate, forks[forks["role"] == "fp32"])
        for axes in figure.axes:
            plotting.step_axis(axes)
        for axes in (low_ppl, fp32_ppl):
            axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
        gap.set_xlabel("")
        low_ppl.set_xlabel("")
        fp32_ppl.set_xlabel("")
        _explain(figure, forks)
        figure.suptitle(
            f"{suite['label']}: forks from step {start:,} under three learning-rate schedules",
            x=0.085, ha="left", y=0.985,
        )  # fmt: skip
        figure.align_ylabels([gap, low_ppl, rate])
    return figure


def _draw_forks(
    axes: Axes, forks: pd.DataFrame, run: pd.DataFrame, column: str
) -> list[tuple[str, float, str]]:
    """Draw one quantity; returns the labels of its curves' ends."""
    axes.plot(run["step"], run[column], color=GREY, lw=1.6, alpha=0.7, zorder=1)
    axes.plot(run["step"].iloc[:1], run[column].iloc[:1], "D", color=GREY, ms=4, clip_on=False)
    ends = [("audit", run[column].iloc[-1], GREY)]
    for schedule, part in forks.groupby("schedule"):
        look = LOOKS[schedule]
        for _, one in part.groupby("seed"):
            axes.plot(one["step"], one[column], color=look.color, lw=0.5, alpha=0.45, zorder=2)
        mean = part.groupby(["step", "update_phase"])[column].mean().reset_index()
        axes.plot(mean["step"], mean[column], color=look.color, ls=look.linestyle, lw=1.5, zorder=3)
        _draw_probes(axes, mean, column, schedule)
        ends.append((SCHEDULES[schedule], mean[column].iloc[-1], look.color))
    return ends


def _draw_probes(axes: Axes, mean: pd.DataFrame, column: str, schedule: str) -> None:
    """Markers at the probes; those whose last update was a bump are hollow."""
    look = LOOKS[schedule]
    bump = mean["update_phase"] == "bump"
    for probes, face in [(mean[~bump], look.color), (mean[bump], "white")]:
        axes.plot(
            probes["step"], probes[column], ls="", marker=look.marker, mec=look.color, mfc=face,
            mew=0.8, zorder=4, clip_on=False,
        )  # fmt: skip


def _draw_learning_rate(axes: Axes, probes: pd.DataFrame) -> None:
    ends = []
    for schedule, part in probes.groupby("schedule"):
        look = LOOKS[schedule]
        one = part[part["seed"] == part["seed"].min()].sort_values("step")
        one = one.assign(lr_pct=100 * one["lr_fraction_last_update"])
        axes.plot(one["step"], one["lr_pct"], color=look.color, ls=look.linestyle, lw=0.9)
        _draw_probes(axes, one, "lr_pct", schedule)
        ends.append((SCHEDULES[schedule], one["lr_pct"].iloc[-1], look.color))
    axes.set_ylim(0, None)
    axes.set_ylabel("LR before the\nprobe (% of max)")
    plotting.end_labels(axes, ends)


def _explain(figure: Figure, forks: pd.DataFrame) -> None:
    """What thin lines, filled and hollow markers mean, in one line above the panels."""
    color = LOOKS["oli"].color
    probe = {"ls": "", "marker": LOOKS["oli"].marker, "mec": color, "mew": 0.8}
    handles = [
        Line2D([], [], color=GREY, lw=1.5, label="mean over seeds"),
        Line2D([], [], color=GREY, lw=0.5, label=f"one seed ({forks['seed'].nunique()} each)"),
        Line2D([], [], color=GREY, ls="", marker="D", ms=4, label="fork point"),
        Line2D([], [], mfc=color, **probe, label="OLI, last update cool"),
        Line2D([], [], mfc="white", **probe, label="OLI, last update a bump"),
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.075, 0.965), ncols=len(handles),
        frameon=False, handlelength=1.6, columnspacing=1.6,
    )  # fmt: skip
