"""Draw figure 11: weights on the grid: misalignment, codes that flip, how far weights walk."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.typing import SeriesGroupBy

from flatminima import style
from flatminima.mechanism.findings import Value, main_oscillation, mean_of
from flatminima.style import DASHED, DOTTED, GREEN, GREY, LOOKS, RED, SCHEDULES

MIDPOINTS = 3.0  # the index where every weight sits half-way between grid points
_ENDS = ["value", "low", "high"]


def draw(
    drift: pd.DataFrame, displacement: pd.DataFrame, phase_flips: pd.DataFrame, phases: dict,
    suite: dict,
) -> Figure:  # fmt: skip
    """Misalignment index with its distribution, code flips, flips by phase, distances.

    Whiskers and the inner band are 95 % intervals.
    """
    spacing, even = suite["spacing"], drift[drift["step"] % suite["spacing"] == 0]
    figure, (index, flips, by_phase, walk) = style.row_of_panels(
        f"{suite['label']}: weights and the points of the low-bit grid",
        ["misalignment index", "codes that flip", "flips by phase", "a random walk?"],
        height=3.4,
    )
    _draw_index(index, even)
    _draw_flips(flips, even[even["previous_step"] == even["step"] - spacing])
    style.step_axis(index, drift["step"].max())
    style.along_the_run([flips], drift["step"].max(), phases)
    _draw_phases(by_phase, phase_flips)
    _draw_walk(walk, displacement, phases["convergence"]["step"], spacing)
    style.legends(figure.axes)
    return figure


def _draw_index(axes: Axes, drift: pd.DataFrame) -> None:
    for low, high, share, alpha in (("p05", "p95", 90, 0.15), ("p25", "p75", 50, 0.3)):
        axes.fill_between(drift["step"], drift[f"index_{low}"], drift[f"index_{high}"], lw=0,
                          color=GREY, alpha=alpha, label=f"middle {share} % of groups")  # fmt: skip
    style.band(axes, drift["step"], drift, ["index", "index_low", "index_high"], color="black")
    axes.axhline(1, color=RED, lw=0.7, ls=DASHED, label="random positions")
    axes.axhline(MIDPOINTS, color=GREY, lw=0.7, ls=DOTTED, label="all at midpoints")
    axes.set(ylabel="mean squared error / (step²/12)", ylim=(0, 1.05 * MIDPOINTS))


def _draw_flips(axes: Axes, drift: pd.DataFrame) -> None:
    for column, color, dashes, label in (
        ("flipped_own", RED, "-", "own grid"),
        ("flipped_fixed", "black", DASHED, "earlier grid"),
        ("flipped_expected", GREEN, DOTTED, "at random"),
    ):
        axes.plot(drift["step"], 100 * drift[column], color=color, ls=dashes, lw=1, label=label)
    axes.set(ylabel="% of codes, between checkpoints", ylim=(0, None))


def _draw_phases(axes: Axes, flips: pd.DataFrame) -> None:
    main = main_oscillation(flips)  # phases of another OLI schedule have other lengths
    flips = flips[flips["phases_of"] == main]
    looks = {
        SCHEDULES.get(main, main): (-0.12, LOOKS["oli"].color, "o"),
        "baseline": (0.12, GREY, "s"),
    }
    for arm, (shift, color, mark) in looks.items():
        own = flips[(flips["schedule"] == "baseline") == (arm == "baseline")]
        table = _means((100 * own["flipped_own"]).groupby(own["phase"]))
        places = table.index.map({"bump": 0, "cool": 1}) + shift
        style.band(axes, places, table, _ENDS, color=color, marker=mark, ls="", label=arm)
    updates = flips.groupby("phase")["updates"].median().reindex(["bump", "cool"], fill_value=0)
    axes.set_xticks([0, 1], [f"{phase}\n({count:.0f})" for phase, count in updates.items()])
    axes.set(xlim=(-0.5, 1.5), xlabel="phase (updates)")
    axes.set(ylim=(0, None), ylabel="% of codes, over one phase")


def _means(groups: SeriesGroupBy) -> pd.DataFrame:
    """Mean of each group with its 95 % interval: value, low, high."""
    means = {name: mean_of(values, "") for name, values in groups}
    return pd.DataFrame.from_dict(means, orient="index", columns=Value._fields)


def _draw_walk(axes: Axes, table: pd.DataFrame, best: int, spacing: int) -> None:
    late = table[table["step"] - spacing * table["lag"] >= best]
    if late.empty:
        return
    means = _means(late.groupby("lag")["distance"])
    style.band(axes, means.index, means, _ENDS, color="black")
    for power, label, dashes in ((0.5, "random walk", DASHED), (1.0, "straight", DOTTED)):
        line = means["value"].iloc[0] * means.index.to_numpy(float) ** power
        axes.plot(means.index, line, color=GREY, lw=0.8, ls=dashes, label=label)
    style.log_axis(axes.xaxis, axes.yaxis)
    axes.set(xlabel=f"moves of {spacing} steps", ylabel="distance, after the best step")


if __name__ == "__main__":
    style.run(draw, snakemake)
