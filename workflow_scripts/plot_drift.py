"""Draw figure 11: weights on the grid: misalignment, codes that flip, how far weights walk."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.mechanism.findings import mean_of
from flatminima.style import DASHED, DOTTED, GREEN, GREY, LOOKS, RED

MIDPOINTS = 3.0  # the index where every weight sits half-way between grid points


def main(
    drift: str, displacement: str, phase_flips: str, phases: str, suite: dict, outputs: list
) -> None:
    """Write the figure (pdf, svg, png)."""
    tables = map(pd.read_csv, (drift, displacement, phase_flips))
    style.save(draw(*tables, read_json(phases), suite=suite), outputs)


@style.style()
def draw(
    drift: pd.DataFrame, displacement: pd.DataFrame, phase_flips: pd.DataFrame, phases: dict, *,
    suite: dict,
) -> Figure:  # fmt: skip
    """Misalignment index with its distribution, code flips, flips by phase, distances.

    The tables are drift.csv, displacement.csv and phase_flips.csv of ``suite`` (keys label
    and spacing). Whiskers and the inner band are 95 % intervals.
    """
    spacing, even = suite["spacing"], drift[drift["step"] % suite["spacing"] == 0]
    figure, (index, flips, by_phase, walk) = style.row_of_panels(
        f"{suite['label']}: weights and the points of the low-bit grid",
        ["misalignment index", "codes that flip", "flips by phase", "a random walk?"],
        wspace=0.6, left=0.07, height=3.2, top=0.85, bottom=0.19,
    )  # fmt: skip
    _draw_index(index, even)
    _draw_flips(flips, even[even["previous_step"] == even["step"] - spacing])
    for axes in (index, flips):
        style.step_ticks(axes, int(drift["step"].max()))
        axes.locator_params(axis="x", nbins=3)
    style.legend(flips, phases)
    _draw_phases(by_phase, phase_flips)
    _draw_walk(walk, displacement, phases["convergence"]["step"], spacing)
    return figure


def _draw_index(axes: Axes, drift: pd.DataFrame) -> None:
    for low, high, alpha in (("p05", "p95", 0.15), ("p25", "p75", 0.3)):
        axes.fill_between(drift["step"], drift[f"index_{low}"], drift[f"index_{high}"],
                          color=GREY, alpha=alpha, lw=0)  # fmt: skip
    style.band(axes, drift["step"], drift, ["index", "index_low", "index_high"], color="black")
    axes.axhline(1, color=RED, lw=0.7, ls=DASHED)
    axes.axhline(MIDPOINTS, color=GREY, lw=0.7, ls=DOTTED)
    axes.set_ylim(0, 3.15)
    for text, height, color in (
        ("all weights at\nmidpoints", 2.94, GREY),
        ("1: random positions", 1.45, RED),
        ("middle 50 and\n90 % of groups", 0.65, GREY),
    ):
        axes.annotate(text, (0.03, height), color=color, va="top",
                      xycoords=axes.get_yaxis_transform())  # fmt: skip
    axes.set_ylabel("mean squared error / (step²/12)")


def _draw_flips(axes: Axes, drift: pd.DataFrame) -> None:
    for column, color, dashes, label in (
        ("flipped_own", RED, "-", "own grid"),
        ("flipped_fixed", "black", DASHED, "earlier grid"),
        ("flipped_expected", GREEN, DOTTED, "at random"),
    ):
        axes.plot(drift["step"], 100 * drift[column], color=color, ls=dashes, lw=1, label=label)
    axes.set_ylabel("% of codes, between checkpoints")
    axes.set_ylim(0, None)


def _draw_phases(axes: Axes, flips: pd.DataFrame) -> None:
    baseline, ticks = flips["schedule"] == "baseline", []
    arms = ((-0.12, ~baseline, LOOKS["oli"].color, "o", "OLI"),
            (0.12, baseline, GREY, "s", "baseline"))  # fmt: skip
    for place, phase in enumerate(("bump", "cool")):
        inside = flips["phase"] == phase
        for shift, arm, color, mark, name in arms:
            if not (inside & arm).any():
                continue
            mean = mean_of(100 * flips.loc[inside & arm, "flipped_own"], "phases")
            axes.errorbar([place + shift], [mean.value],
                          [[mean.value - mean.low], [mean.high - mean.value]], ls="", marker=mark,
                          ms=4, color=color, capsize=2, elinewidth=0.8,
                          label=None if place else name)  # fmt: skip
        updates = int(flips.loc[inside, "updates"].median()) if inside.any() else 0
        ticks.append(f"{phase}\n({updates})")
    axes.set_xticks([0, 1], ticks)
    axes.set(xlim=(-0.5, 1.5), ylim=(0, None), xlabel="phase (updates)")
    axes.set_ylabel("% of codes, over one phase")
    style.legend(axes)


def _draw_walk(axes: Axes, table: pd.DataFrame, best: int, spacing: int) -> None:
    late = table[table["step"] - spacing * table["lag"] >= best]
    found = {lag: mean_of(rows["distance"], "") for lag, rows in late.groupby("lag")}
    if not found:
        return
    lags = np.array(list(found), dtype=float)
    value, low, high = np.array([(v.value, v.low, v.high) for v in found.values()]).T
    axes.errorbar(lags, value, [value - low, high - value], marker="o", color="black", capsize=1.5,
                  elinewidth=0.7)  # fmt: skip
    for power, label, dashes in ((0.5, "random walk", DASHED), (1.0, "straight", DOTTED)):
        axes.plot(lags, value[0] * lags**power, color=GREY, lw=0.8, ls=dashes, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        style.log_axis(axis)
    axes.set_xlabel(f"moves of {spacing} steps")
    axes.set_ylabel("distance, after the best step")
    style.legend(axes)


if __name__ == "__main__":
    run(main, snakemake)
