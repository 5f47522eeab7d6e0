"""Draw figure 13: runs of several widths and seeds, each against its own FP32 minimum."""

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import DOTTED, GREY, LOSS

RUN_KEYS = ["width", "seed", "weight_decay"]
MARKERS = "os^Dv"  # of weight decays
SMOOTH = 3  # probes in a running mean, for the eye
MOST_SHOWN_NATS = 1.5  # of FP32 loss above the run's best; the first steps are far above


def draw(replication_runs: pd.DataFrame, replication: pd.DataFrame, suite: dict) -> Figure:
    """FP32 curves, low-bit losses by distance to the run's minimum, growth before and after.

    Each run (``RUN_KEYS``) has a line. Bars are 95 % intervals over sequences.
    """
    color_of_width = style.shades(sorted(replication["width"].unique()))
    dashes_of_decay = style.dash_patterns(sorted(replication["weight_decay"].unique()))
    low_bit_name = style.role_labels(replication_runs, suite)["low_bit"]
    figure, (fp32_axes, loss_axes, growth_axes) = style.row_of_panels(
        _title(replication, suite["label"]),
        ["FP32 loss over its best", f"loss added by {low_bit_name}", "growth before and after"],
    )
    rows_of_run = dict(list(replication_runs.sort_values("step").groupby(RUN_KEYS)))
    for run in replication.itertuples():
        rows = rows_of_run[tuple(getattr(run, key) for key in RUN_KEYS)]
        look = {"color": color_of_width[run.width], "ls": dashes_of_decay[run.weight_decay]}
        _draw_run(fp32_axes, loss_axes, rows, run.fp32_step, look)
    fp32_axes.set(
        ylabel="nats/token above the run's best",
        ylim=(0, min(MOST_SHOWN_NATS, fp32_axes.get_ylim()[1])),
    )
    loss_axes.set_ylabel("added loss (nats/token)")
    loss_axes.axhline(0, color=GREY, lw=0.4, zorder=0)
    for axes in (fp32_axes, loss_axes):
        axes.set_xlabel("steps after the run's FP32 minimum")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.axvline(0, color=GREY, lw=0.6, ls=DOTTED, zorder=-5)
    for width, color in color_of_width.items():
        fp32_axes.plot([], [], color=color, label=f"width {width}")
    style.explain_dashes(fp32_axes, dashes_of_decay, "weight decay")
    _draw_growth(growth_axes, replication, color_of_width)
    style.legends(figure.axes)
    return figure


def _title(replication: pd.DataFrame, label: str) -> str:
    widths = ", ".join(map(str, sorted(replication["width"].unique())))
    seeds = replication["seed"].nunique()
    decays = replication["weight_decay"].nunique()
    title = f"{label}: {len(replication)} small runs, widths {widths}, {seeds} seeds each"
    return f"{title}, {decays} weight decays" if decays > 1 else title


def _draw_run(
    fp32_axes: Axes, loss_axes: Axes, rows: pd.DataFrame, fp32_step: int, look: dict
) -> None:
    """One run: its FP32 loss and its added loss, by steps after its FP32 minimum."""
    shifted = rows.assign(steps_after=rows["step"] - fp32_step)
    by_distance = style.with_ends(shifted).set_index("steps_after")
    low_bit = by_distance[by_distance["role"] == "low_bit"]
    fp32_nll = by_distance[by_distance["role"] == "fp32"]["nll_nats_per_token"]
    fp32_axes.plot(fp32_nll - fp32_nll.min(), **look, lw=0.8)
    loss_axes.vlines(
        low_bit.index, low_bit["low"], low_bit["high"], color=look["color"], lw=0.4, alpha=0.25
    )
    loss_axes.plot(low_bit[LOSS[0]].rolling(SMOOTH, center=True).mean(), **look, lw=0.9)


def _draw_growth(axes: Axes, replication: pd.DataFrame, color_of_width: dict) -> None:
    """Growth of the added loss after each run's FP32 minimum against growth before it."""
    decays = sorted(replication["weight_decay"].unique())
    marker_of_decay = dict(zip(decays, cycle(MARKERS)))
    with_both_slopes = replication.dropna(subset=["slope_before", "slope_after"])
    for (width, decay), rows in with_both_slopes.groupby(["width", "weight_decay"]):
        before, before_bars = style.with_bars(
            rows, ["slope_before", "slope_before_low", "slope_before_high"]
        )
        after, after_bars = style.with_bars(
            rows, ["slope_after", "slope_after_low", "slope_after_high"]
        )
        axes.errorbar(
            before,
            after,
            after_bars,
            before_bars,
            ls="",
            marker=marker_of_decay[decay],
            color=color_of_width[width],
            elinewidth=0.5,
        )
    if len(decays) > 1:
        for decay, marker in marker_of_decay.items():
            axes.plot([], [], color=GREY, ls="", marker=marker, label=f"weight decay {decay:g}")
    # Both axes have the same limits, so that the diagonal divides faster from slower.
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    diagonal = np.array([min(limits), max(limits)])
    axes.plot(diagonal, diagonal, color=GREY, lw=0.6, zorder=0)
    axes.set(xlim=diagonal, ylim=diagonal)
    onsets = int(replication["onset_step"].notna().sum())
    axes.annotate(
        f"above: faster\nafter it;\nonsets: {onsets} of {len(replication)}",
        (0.97, 0.03),
        xycoords="axes fraction",
        ha="right",
        color=GREY,
    )
    axes.locator_params(nbins=4)
    axes.set(xlabel="before the minimum (same unit)", ylabel="after it (nats/1,000 steps)")


if __name__ == "__main__":
    style.run(draw, snakemake)
