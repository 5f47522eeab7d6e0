"""Draw figure 11: weights on the grid: misalignment, codes that flip, how far weights walk."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.mechanism.findings import mean_of
from flatminima.style import (
    GREY,
    LOOKS,
    PAPER,
    band,
    legend,
    log_axis,
    mark_best,
    row_of_panels,
    save,
    step_ticks,
    style,
)

MIDPOINTS = 3.0  # the index where every weight sits half-way between grid points
RED = "#d55e00"


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
    with style():
        figure, (index, flips, by_phase, walk) = row_of_panels(
            f"{suite['label']}: weights and the points of the low-bit grid",
            ["misalignment index", "codes that flip", "flips by phase", "a random walk?"],
            wspace=0.58, left=0.065, height=3.2, top=0.81, bottom=0.19,
        )  # fmt: skip
        _draw_index(index, even)
        _draw_flips(flips, even[even["previous_step"] == even["step"] - suite["spacing"]])
        for axes in (index, flips):
            step_ticks(axes, int(drift["step"].max()))
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
    axes.axhline(1, color=RED, lw=0.7, ls=(0, (4, 1.5)))
    axes.axhline(MIDPOINTS, color=GREY, lw=0.7, ls=(0, (1, 1)))
    axes.set_ylim(0, 3.15)
    for text, height, aside, color in (
        ("all weights at\nmidpoints", MIDPOINTS, (0, -4), GREY),
        ("middle 50 and\n90 % of groups", 0.6, (0, 0), GREY),
        ("1: random positions", 1.5, (0, 0), RED),
    ):
        axes.annotate(text, (0.03, height), aside, color=color, va="top",
                      xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                      bbox=PAPER | {"boxstyle": "square,pad=0.1"})  # fmt: skip
    axes.set_ylabel("mean squared error / (step²/12)")


def _draw_flips(axes: Axes, drift: pd.DataFrame) -> None:
    for column, color, dashes, label in (
        ("flipped_own", LOOKS["low_bit"].color, "-", "own grid"),
        ("flipped_fixed", "black", (0, (4, 1.5)), "earlier grid"),
        ("flipped_expected", "#029e73", (0, (1, 1)), "random\npositions"),
    ):
        axes.plot(drift["step"], 100 * drift[column], color=color, ls=dashes, lw=1, label=label)
    axes.set_ylabel("% of codes, between checkpoints")
    axes.set_ylim(0, None)
    legend(axes, loc="upper right", handlelength=1.5, labelspacing=0.25)


def _draw_phases(axes: Axes, flips: pd.DataFrame) -> None:
    baseline = flips["schedule"] == "baseline"
    arms = ((-0.12, ~baseline, LOOKS["oli"].color, "o", "OLI"),
            (0.12, baseline, GREY, "s", "baseline"))  # fmt: skip
    ticks = []
    for place, phase in enumerate(("bump", "cool")):
        inside = flips["phase"] == phase
        for shift, arm, color, mark, name in arms:
            if not (inside & arm).any():
                continue
            share = mean_of(100 * flips.loc[inside & arm, "flipped_own"].to_numpy(), "phases")
            errors = [[share.value - share.low], [share.high - share.value]]
            axes.errorbar([place + shift], [share.value], errors, marker=mark, ms=4, color=color,
                          capsize=2, elinewidth=0.8, label=None if place else name)  # fmt: skip
        updates = int(flips.loc[inside, "updates"].median()) if inside.any() else 0
        ticks.append(f"{phase}\n({updates})")
    axes.set_xticks([0, 1], ticks)
    axes.set_xlabel("phase (updates)")
    axes.set_xlim(-0.5, 1.5)
    axes.set_ylim(0, None)
    axes.set_ylabel("% of codes, over one phase")
    axes.legend(frameon=False, loc="center left", handlelength=1)


def _draw_walk(axes: Axes, table: pd.DataFrame, best: int, spacing: int) -> None:
    late = table[table["step"] - spacing * table["lag"] >= best]
    found = {lag: mean_of(rows["distance"].to_numpy(), "") for lag, rows in late.groupby("lag")}
    if not found:
        return
    lags = np.array(list(found), dtype=float)
    value, low, high = np.array([(v.value, v.low, v.high) for v in found.values()]).T
    axes.errorbar(lags, value, [value - low, high - value], marker="o", color="black", capsize=1.5,
                  elinewidth=0.7)  # fmt: skip
    for power, label, dashes in (
        (0.5, "random walk", (0, (4, 1.5))),
        (1.0, "straight", (0, (1, 1))),
    ):
        axes.plot(lags, value[0] * lags**power, color=GREY, lw=0.8, ls=dashes, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        log_axis(axis)
    axes.set_ylim(0.8 * value.min(), 20 * value.max())
    axes.set_xlabel(f"moves of {spacing} steps")
    axes.set_ylabel("distance, after the best step")
    axes.legend(frameon=False, loc="upper left", handlelength=1.6)


def main(
    *, drift: str, displacement: str, phase_flips: str, phases: str, suite: dict, outputs: list
) -> None:
    """Write the figure (pdf, svg, png)."""
    tables = map(pd.read_csv, (drift, displacement, phase_flips))
    save(draw(*tables, read_json(phases), suite=suite), outputs)


if __name__ == "__main__":
    run(main, snakemake)
