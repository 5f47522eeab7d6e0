"""Figure 11: weights on the grid: misalignment, codes that flip, and how far weights walk."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.plotting import GREY
from flatminima.mechanism.estimates import mean_of
from flatminima.mechanism.panels import (
    PAPER,
    band,
    legend,
    mark_best,
    row_of_panels,
    step_ticks,
)

MIDPOINTS = 3.0  # the index where every weight sits half-way between grid points
_BEHIND = PAPER | {"boxstyle": "square,pad=0.1"}


def draw(
    drift: pd.DataFrame,
    displacement: pd.DataFrame,
    phase_flips: pd.DataFrame,
    phases: dict,
    *,
    suite: dict,
) -> Figure:
    """Misalignment index with its distribution, code flips, flips by phase, distances.

    The tables are drift.csv, displacement.csv and phase_flips.csv of ``suite`` (keys label
    and spacing). Whiskers and the inner band are 95 % intervals.
    """
    even = drift[drift["step"] % suite["spacing"] == 0]
    last = int(drift["step"].max())
    with plotting.style():
        figure, panels = row_of_panels(
            f"{suite['label']}: weights and the points of the low-bit grid",
            ["misalignment index", "codes that flip", "flips by phase", "a random walk?"],
            wspace=0.55, left=0.065,
        )  # fmt: skip
        index, flips, by_phase, walk = panels
        _draw_index(index, even)
        _draw_flips(flips, even[even["previous_step"] == even["step"] - suite["spacing"]])
        for axes in (index, flips):
            step_ticks(axes, last)
            axes.locator_params(axis="x", nbins=3)
            mark_best(axes, phases, name=axes is index, top=0.88)
        _draw_phases(by_phase, phase_flips)
        _draw_walk(walk, displacement, phases["convergence"]["step"], suite["spacing"])
    return figure


def _draw_index(axes: Axes, drift: pd.DataFrame) -> None:
    for low, high, alpha in (("p05", "p95", 0.15), ("p25", "p75", 0.3)):
        axes.fill_between(drift["step"], drift[f"index_{low}"], drift[f"index_{high}"],
                          color=GREY, alpha=alpha, lw=0)  # fmt: skip
    band(axes, drift["step"], drift, ["index", "index_low", "index_high"], color="black", lw=0.9)
    axes.axhline(1, color="#d55e00", lw=0.7, ls=(0, (4, 1.5)))
    axes.set_ylim(0, 3.15)
    axes.axhline(MIDPOINTS, color=GREY, lw=0.7, ls=(0, (1, 1)))
    axes.annotate("all weights at midpoints", (0.03, MIDPOINTS), (0, -4), color=GREY, va="top",
                  xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                  bbox=_BEHIND)  # fmt: skip
    axes.annotate("middle 50 and\n90 % of groups", (0.03, 0.6), color=GREY, va="top", bbox=_BEHIND,
                  xycoords=axes.get_yaxis_transform())  # fmt: skip
    axes.annotate("1: random positions", (0.03, 1.3), color="#d55e00", bbox=_BEHIND,
                  xycoords=axes.get_yaxis_transform())  # fmt: skip
    axes.set_ylabel("mean squared error / (step²/12)")


def _draw_flips(axes: Axes, drift: pd.DataFrame) -> None:
    for column, color, style, label in (
        ("flipped_own", plotting.LOOKS["low_bit"].color, "-", "own grid"),
        ("flipped_fixed", "black", (0, (4, 1.5)), "earlier grid"),
        ("flipped_expected", "#029e73", (0, (1, 1)), "random\npositions"),
    ):
        axes.plot(drift["step"], 100 * drift[column], color=color, ls=style, lw=1, label=label)
    axes.set_ylabel("% of codes, between checkpoints")
    axes.set_ylim(0, None)
    legend(axes, loc="upper right", handlelength=1.5, labelspacing=0.25)


def _draw_phases(axes: Axes, flips: pd.DataFrame) -> None:
    ticks, names = [], {False: "OLI", True: "baseline"}
    for place, phase in enumerate(("bump", "cool")):
        rows = flips[flips["phase"] == phase]
        for shift, baseline, color, mark in ((-0.12, False, plotting.LOOKS["oli"].color, "o"),
                                             (0.12, True, GREY, "s")):  # fmt: skip
            part = rows[(rows["schedule"] == "baseline") == baseline]
            if part.empty:
                continue
            share = mean_of(100 * part["flipped_own"].to_numpy(), "phases")
            errors = [[share.value - share.low], [share.high - share.value]]
            axes.errorbar([place + shift], [share.value], errors, marker=mark, ms=4, color=color,
                          capsize=2, elinewidth=0.8,
                          label=names[baseline] if place == 0 else None)  # fmt: skip
        updates = int(rows["updates"].median()) if len(rows) else 0
        ticks.append(f"{phase}\n{updates} updates")
    axes.set_xticks([0, 1], ticks)
    axes.set_xlim(-0.5, 1.5)
    axes.set_ylim(0, None)
    axes.set_ylabel("% of codes, over one phase")
    axes.legend(frameon=False, loc="lower right", handlelength=1)


def _draw_walk(axes: Axes, table: pd.DataFrame, best: int, spacing: int) -> None:
    late = table[table["step"] - spacing * table["lag"] >= best]
    found = {lag: mean_of(rows["distance"].to_numpy(), "") for lag, rows in late.groupby("lag")}
    if not found:
        return
    lags = np.array(list(found), dtype=float)
    value, low, high = (np.array([getattr(v, name) for v in found.values()])
                        for name in ("value", "low", "high"))  # fmt: skip
    axes.errorbar(lags, value, [value - low, high - value], marker="o", color="black", capsize=1.5,
                  elinewidth=0.7)  # fmt: skip
    for power, label, style in (
        (0.5, "random walk", (0, (4, 1.5))),
        (1.0, "straight", (0, (1, 1))),
    ):
        axes.plot(lags, value[0] * lags**power, color=GREY, lw=0.8, ls=style, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        plotting.log_axis(axis)
    axes.set_ylim(0.8 * value.min(), 6 * value.max())
    axes.set_xlabel(f"moves of {spacing} steps")
    axes.set_ylabel("distance, after the best step")
    axes.legend(frameon=False, loc="upper left", handlelength=1.6)
