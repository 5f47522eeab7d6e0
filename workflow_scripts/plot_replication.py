"""Draw figure 13: runs of several widths and seeds, each against its own FP32 minimum."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import DOTTED, GREY, LOSS

SMOOTH = 3  # probes in a running mean, for the eye


@style.style()
def draw(replication_runs: pd.DataFrame, replication: pd.DataFrame, suite: dict) -> Figure:
    """FP32 curves, low-bit losses by distance to the own minimum, growth before and after.

    The tables are replication_runs.csv and replication.csv of ``suite`` (key label). Bars
    are 95 % intervals over sequences.
    """
    widths = sorted(replication["width"].unique())
    colors = style.shades(widths)
    name = style.role_labels(replication_runs, suite)["low_bit"]
    figure, panels = style.row_of_panels(
        f"{suite['label']}: {len(replication)} small runs, widths "
        f"{', '.join(map(str, widths))}, {replication['seed'].nunique()} seeds each",
        ["FP32 loss over its best", f"loss added by {name}", "growth before and after"],
    )
    fp32, losses, growth = panels
    of_run = dict(list(replication_runs.sort_values("step").groupby(["width", "seed"])))
    for row in replication.itertuples():
        own = of_run[row.width, row.seed]
        _draw_run(fp32, losses, own, row.fp32_step, colors[row.width])
    fp32.set_ylabel("nats/token above the run's best")
    losses.set_ylabel("added loss (nats/token)")
    for axes in (fp32, losses):
        axes.set_xlabel("steps after the own minimum")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.axvline(0, color=GREY, lw=0.6, ls=DOTTED, zorder=-5)
    fp32.set_ylim(0, min(1.5, fp32.get_ylim()[1]))
    for width, color in colors.items():
        fp32.plot([], [], color=color, label=f"width {width}")
    losses.axhline(0, color=GREY, lw=0.4, zorder=0)
    _draw_growth(growth, replication, colors)
    style.legends(panels)
    return figure


def _draw_run(fp32: Axes, losses: Axes, own: pd.DataFrame, best: int, color: tuple) -> None:
    full, low = own[own["role"] == "fp32"], style.with_ends(own[own["role"] == "low_bit"])
    nll = full["nll_nats_per_token"]
    fp32.plot(full["step"] - best, nll - nll.min(), color=color, lw=0.8)
    losses.vlines(low["step"] - best, low["low"], low["high"], color=color, lw=0.4, alpha=0.25)
    losses.plot(low["step"] - best, low[LOSS[0]].rolling(SMOOTH, center=True).mean(), color=color,
                lw=0.9)  # fmt: skip


def _draw_growth(axes: Axes, comparison: pd.DataFrame, colors: dict) -> None:
    for width, rows in comparison.dropna(subset=["slope_before", "slope_after"]).groupby("width"):
        (x, across), (y, up) = (
            style.with_bars(rows, [name, f"{name}_low", f"{name}_high"])
            for name in ("slope_before", "slope_after")
        )
        axes.errorbar(x, y, up, across, ls="", marker="o", color=colors[width], elinewidth=0.5)
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    ends = np.array([min(limits), max(limits)])
    axes.plot(ends, ends, color=GREY, lw=0.6, zorder=0)
    axes.set(xlim=ends, ylim=ends)
    found = int(comparison["onset_step"].notna().sum())
    axes.annotate(f"above: faster\nafter it;\nonsets: {found} of {len(comparison)}", (0.97, 0.03),
                  xycoords="axes fraction", ha="right", color=GREY)  # fmt: skip
    axes.locator_params(nbins=4)
    axes.set_xlabel("before the minimum (same unit)")
    axes.set_ylabel("after it (nats/1,000 steps)")


if __name__ == "__main__":
    style.run(draw, snakemake)
