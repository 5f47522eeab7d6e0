"""Draw figure 11: weights on the grid: misalignment, codes that flip, how far weights walk."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.typing import SeriesGroupBy

from flatminima import style
from flatminima.mechanism.findings import Value, main_oscillation, mean_of
from flatminima.style import DASHED, DOTTED, GREEN, GREY, LOOKS, RED, SCHEDULES

ALL_AT_MIDPOINTS = 3.0  # the index where every weight is half-way between grid points
_VALUE_AND_INTERVAL = ["value", "low", "high"]


def draw(
    drift: pd.DataFrame,
    displacement: pd.DataFrame,
    phase_flips: pd.DataFrame,
    phases: dict,
    suite: dict,
) -> Figure:
    """Misalignment index with its distribution, code flips, flips by phase, distances.

    Whiskers and the inner band are 95 % intervals.
    """
    spacing = suite["spacing"]
    last_step = drift["step"].max()
    even = drift[drift["step"] % spacing == 0]
    # Flips between other steps would be over more or fewer updates.
    of_one_spacing = even[even["previous_step"] == even["step"] - spacing]
    figure, (index_axes, flips_axes, phase_axes, walk_axes) = style.row_of_panels(
        f"{suite['label']}: weights and the points of the low-bit grid",
        ["misalignment index", "codes that flip", "flips by phase", "a random walk?"],
        height=3.4,
    )
    _draw_index(index_axes, even)
    style.step_axis(index_axes, last_step)
    _draw_flips(flips_axes, of_one_spacing)
    style.along_the_run([flips_axes], last_step, phases)
    _draw_flips_by_phase(phase_axes, phase_flips)
    _draw_walk(walk_axes, displacement, phases["convergence"]["step"], spacing)
    style.legends(figure.axes)
    return figure


def _draw_index(axes: Axes, drift: pd.DataFrame) -> None:
    for low, high, percent, alpha in (("p05", "p95", 90, 0.15), ("p25", "p75", 50, 0.3)):
        axes.fill_between(
            drift["step"],
            drift[f"index_{low}"],
            drift[f"index_{high}"],
            lw=0,
            color=GREY,
            alpha=alpha,
            label=f"middle {percent} % of groups",
        )
    style.band(axes, drift["step"], drift, ["index", "index_low", "index_high"], color="black")
    axes.axhline(1, color=RED, lw=0.7, ls=DASHED, label="random positions")
    axes.axhline(ALL_AT_MIDPOINTS, color=GREY, lw=0.7, ls=DOTTED, label="all at midpoints")
    axes.set(ylabel="mean squared error / (step²/12)", ylim=(0, 1.05 * ALL_AT_MIDPOINTS))


def _draw_flips(axes: Axes, drift: pd.DataFrame) -> None:
    for column, color, linestyle, label in (
        ("flipped_own", RED, "-", "own grid"),
        ("flipped_fixed", "black", DASHED, "earlier grid"),
        ("flipped_expected", GREEN, DOTTED, "at random"),
    ):
        percent = 100 * drift[column]
        axes.plot(drift["step"], percent, color=color, ls=linestyle, lw=1, label=label)
    axes.set(ylabel="% of codes, between checkpoints", ylim=(0, None))


def _draw_flips_by_phase(axes: Axes, flips: pd.DataFrame) -> None:
    """Codes that flip over a bump and a cool phase, and over as many updates of the baseline."""
    main_schedule = main_oscillation(flips)
    # The phases of another OLI schedule have other lengths.
    flips = flips[flips["phases_of"] == main_schedule]
    is_baseline = flips["schedule"] == "baseline"
    for rows, name, shift, color, marker in (
        (
            flips[~is_baseline],
            SCHEDULES.get(main_schedule, main_schedule),
            -0.12,
            LOOKS["oli"].color,
            "o",
        ),
        (flips[is_baseline], "baseline", 0.12, GREY, "s"),
    ):
        percent = 100 * rows["flipped_own"]
        means = _means(percent.groupby(rows["phase"]))
        places = means.index.map({"bump": 0, "cool": 1}) + shift
        style.band(
            axes, places, means, _VALUE_AND_INTERVAL, color=color, marker=marker, ls="", label=name
        )
    # All seeds and cycles of a phase have the same number of updates, which the median picks. A
    # phase without a row was not reached by the cycles that were followed.
    updates = flips.groupby("phase")["updates"].median().reindex(["bump", "cool"], fill_value=0)
    axes.set_xticks([0, 1], [f"{phase}\n({count:.0f})" for phase, count in updates.items()])
    axes.set(xlim=(-0.5, 1.5), xlabel="phase (updates)")
    axes.set(ylim=(0, None), ylabel="% of codes, over one phase")


def _means(groups: SeriesGroupBy) -> pd.DataFrame:
    """Mean of each group with its 95 % interval: value, low, high."""
    means = {name: mean_of(values, "") for name, values in groups}
    return pd.DataFrame.from_dict(means, orient="index", columns=Value._fields)


def _draw_walk(axes: Axes, displacement: pd.DataFrame, best_step: int, spacing: int) -> None:
    """Distance after a number of moves that all lie after the best step, beside two laws."""
    first_steps = displacement["step"] - spacing * displacement["lag"]
    late = displacement[first_steps >= best_step]
    if late.empty:
        return
    means = _means(late.groupby("lag")["distance"])
    style.band(axes, means.index, means, _VALUE_AND_INTERVAL, color="black")
    for power, label, linestyle in ((0.5, "random walk", DASHED), (1.0, "straight", DOTTED)):
        line = means["value"].iloc[0] * means.index.to_numpy(float) ** power
        axes.plot(means.index, line, color=GREY, lw=0.8, ls=linestyle, label=label)
    style.log_axis(axes.xaxis, axes.yaxis)
    axes.set(xlabel=f"moves of {spacing} steps", ylabel="distance, after the best step")


if __name__ == "__main__":
    style.run(draw, snakemake)
