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


def draw(replication_runs: pd.DataFrame, replication: pd.DataFrame, suite: dict) -> Figure:
    """FP32 curves, low-bit losses by distance to the own minimum, growth before and after.

    Each run of ``RUN_KEYS`` has a line. Bars are 95 % intervals over sequences.
    """
    colors = style.shades(sorted(replication["width"].unique()))
    dashes = style.dash_patterns(sorted(replication["weight_decay"].unique()))
    name = style.role_labels(replication_runs, suite)["low_bit"]
    figure, (fp32, losses, growth) = style.row_of_panels(
        f"{suite['label']}: {len(replication)} small runs, widths "
        f"{', '.join(map(str, colors))}, {replication['seed'].nunique()} seeds each"
        + (f", {len(dashes)} weight decays" if len(dashes) > 1 else ""),
        ["FP32 loss over its best", f"loss added by {name}", "growth before and after"],
    )
    of_run = dict(list(replication_runs.sort_values("step").groupby(RUN_KEYS)))
    for row in replication.itertuples():
        own = of_run[tuple(getattr(row, key) for key in RUN_KEYS)]
        look = {"color": colors[row.width], "ls": dashes[row.weight_decay]}
        own = style.with_ends(own.assign(after=own["step"] - row.fp32_step)).set_index("after")
        low, nll = own[own["role"] == "low_bit"], own[own["role"] == "fp32"]["nll_nats_per_token"]
        fp32.plot(nll - nll.min(), **look, lw=0.8)
        losses.vlines(low.index, low["low"], low["high"], color=look["color"], lw=0.4, alpha=0.25)
        losses.plot(low[LOSS[0]].rolling(SMOOTH, center=True).mean(), **look, lw=0.9)
    fp32.set(ylabel="nats/token above the run's best", ylim=(0, min(1.5, fp32.get_ylim()[1])))
    losses.set_ylabel("added loss (nats/token)")
    for axes in (fp32, losses):
        axes.set_xlabel("steps after the own minimum")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.axvline(0, color=GREY, lw=0.6, ls=DOTTED, zorder=-5)
    for width, color in colors.items():
        fp32.plot([], [], color=color, label=f"width {width}")
    style.explain_dashes(fp32, dashes, "weight decay")
    losses.axhline(0, color=GREY, lw=0.4, zorder=0)
    _draw_growth(growth, replication, colors)
    style.legends(figure.axes)
    return figure


def _draw_growth(axes: Axes, comparison: pd.DataFrame, colors: dict) -> None:
    decays = sorted(comparison["weight_decay"].unique())
    markers = dict(zip(decays, cycle(MARKERS)))
    both_slopes = comparison.dropna(subset=["slope_before", "slope_after"])
    for (width, decay), rows in both_slopes.groupby(["width", "weight_decay"]):
        (x, across), (y, up) = (
            style.with_bars(rows, [name, f"{name}_low", f"{name}_high"])
            for name in ("slope_before", "slope_after")
        )
        axes.errorbar(x, y, up, across, ls="", marker=markers[decay], color=colors[width],
                      elinewidth=0.5)  # fmt: skip
    if len(decays) > 1:
        for decay, marker in markers.items():
            axes.plot([], [], color=GREY, ls="", marker=marker, label=f"weight decay {decay:g}")
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    ends = np.array([min(limits), max(limits)])
    axes.plot(ends, ends, color=GREY, lw=0.6, zorder=0)
    axes.set(xlim=ends, ylim=ends)
    found = int(comparison["onset_step"].notna().sum())
    axes.annotate(f"above: faster\nafter it;\nonsets: {found} of {len(comparison)}", (0.97, 0.03),
                  xycoords="axes fraction", ha="right", color=GREY)  # fmt: skip
    axes.locator_params(nbins=4)
    axes.set(xlabel="before the minimum (same unit)", ylabel="after it (nats/1,000 steps)")


if __name__ == "__main__":
    style.run(draw, snakemake)
