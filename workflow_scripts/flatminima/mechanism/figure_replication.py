"""Figure 13: runs of several widths and seeds, each against its own FP32 minimum."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.plotting import GREY
from flatminima.labels import quantizer_label
from flatminima.mechanism.panels import legend, row_of_panels, shades

_DELTA = "delta_nll_nats_per_token"
SMOOTH = 3  # probes in a running mean, for the eye


def draw(runs: pd.DataFrame, comparison: pd.DataFrame, *, suite: dict) -> Figure:
    """FP32 curves, low-bit losses by distance to the own minimum, growth before and after.

    ``runs`` is replication_runs.csv, ``comparison`` replication.csv of ``suite`` (key
    label). Bars are 95 % intervals over sequences; where a run has an onset it is drawn
    against the run's own minimum.
    """
    widths = sorted(comparison["width"].unique())
    colors = dict(zip(widths, shades(len(widths)), strict=True))
    name = quantizer_label(runs.loc[runs["role"] == "low_bit", "quantizer"].iloc[0])
    with plotting.style():
        figure, (fp32, losses, growth) = row_of_panels(
            f"{suite['label']}: {len(comparison)} small runs, widths "
            f"{', '.join(map(str, widths))}, {comparison['seed'].nunique()} seeds each",
            ["FP32 loss over its best", f"loss added by {name}", "growth before and after"],
            right=0.97,
        )  # fmt: skip
        for row in comparison.itertuples():
            own = runs[(runs["width"] == row.width) & (runs["seed"] == row.seed)]
            _draw_run(fp32, losses, own, row.fp32_step, colors[row.width])
        fp32.set_ylabel("nats/token above the run's best")
        losses.set_ylabel("added loss (nats/token)")
        for axes in (fp32, losses):
            axes.set_xlabel("steps after the own FP32 minimum")
            axes.axvline(0, color=GREY, lw=0.6, ls=(0, (2, 1.5)), zorder=-5)
        fp32.set_ylim(0, min(1.5, fp32.get_ylim()[1]))
        for width, color in colors.items():
            fp32.plot([], [], color=color, label=f"width {width}")
        legend(fp32, loc="upper right", handlelength=0.8, labelspacing=0.2)
        losses.axhline(0, color=GREY, lw=0.4, zorder=0)
        _draw_growth(growth, comparison, colors)
    return figure


def _draw_run(fp32: Axes, losses: Axes, own: pd.DataFrame, best: int, color: tuple) -> None:
    full = own[own["role"] == "fp32"].sort_values("step")
    low = own[own["role"] == "low_bit"].sort_values("step")
    nll = full["nll_nats_per_token"]
    fp32.plot(full["step"] - best, nll - nll.min(), color=color, lw=0.8)
    low = low.assign(low=np.log1p(low["gap_low_pct"] / 100),
                     high=np.log1p(low["gap_high_pct"] / 100))  # fmt: skip
    losses.vlines(low["step"] - best, low["low"], low["high"], color=color, lw=0.4, alpha=0.25)
    losses.plot(low["step"] - best, low[_DELTA].rolling(SMOOTH, center=True).mean(), color=color,
                lw=0.9)  # fmt: skip


def _draw_growth(axes: Axes, comparison: pd.DataFrame, colors: dict) -> None:
    for row in comparison.itertuples():
        before, after = row.slope_before, row.slope_after
        if np.isnan(before) or np.isnan(after):
            continue
        spread = np.clip(
            [[before - row.slope_before_low], [row.slope_before_high - before]], 0, None
        )
        errors = np.clip([[after - row.slope_after_low], [row.slope_after_high - after]], 0, None)
        axes.errorbar([before], [after], errors, spread, marker="o", ms=3, color=colors[row.width],
                      elinewidth=0.5)  # fmt: skip
    ends = np.array([min(axes.get_xlim()[0], axes.get_ylim()[0]),
                     max(axes.get_xlim()[1], axes.get_ylim()[1])])  # fmt: skip
    axes.plot(ends, ends, color=GREY, lw=0.6, zorder=0)
    axes.set(xlim=ends, ylim=ends)
    found = int(comparison["onset_step"].notna().sum())
    axes.annotate(f"above the line:\nfaster after it;\nonsets: {found} of "
                  f"{len(comparison)}", (0.97, 0.03), xycoords="axes fraction", ha="right",
                  color=GREY)  # fmt: skip
    axes.locator_params(nbins=4)
    axes.set_xlabel("before it (nats/1,000 steps)")
    axes.set_ylabel("after the minimum (nats/1,000 steps)")
