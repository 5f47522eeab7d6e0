"""Draw figure 13: runs of several widths and seeds, each against its own FP32 minimum."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.jobs import run
from flatminima.style import DOTTED, GREY, LOSS

SMOOTH = 3  # probes in a running mean, for the eye


def main(replication_runs: str, replication: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    style.save(draw(pd.read_csv(replication_runs), pd.read_csv(replication), suite=suite), outputs)


@style.style()
def draw(runs: pd.DataFrame, comparison: pd.DataFrame, *, suite: dict) -> Figure:
    """FP32 curves, low-bit losses by distance to the own minimum, growth before and after.

    ``runs`` is replication_runs.csv, ``comparison`` replication.csv of ``suite`` (key
    label). Bars are 95 % intervals over sequences.
    """
    widths = sorted(comparison["width"].unique())
    colors = dict(zip(widths, style.shades(len(widths)), strict=True))
    name = style.role_labels(runs, suite)["low_bit"]
    figure, (fp32, losses, growth) = style.row_of_panels(
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
        style.step_axis(axes)
        axes.set_xlabel("steps after the own minimum")
        axes.axvline(0, color=GREY, lw=0.6, ls=DOTTED, zorder=-5)
    fp32.set_ylim(0, min(1.5, fp32.get_ylim()[1]))
    for width, color in colors.items():
        fp32.plot([], [], color=color, label=f"width {width}")
    fp32.legend(loc="upper right", bbox_to_anchor=(1.12, 1), handlelength=0.7)
    losses.axhline(0, color=GREY, lw=0.4, zorder=0)
    _draw_growth(growth, comparison, colors)
    return figure


def _draw_run(fp32: Axes, losses: Axes, own: pd.DataFrame, best: int, color: tuple) -> None:
    full = own[own["role"] == "fp32"].sort_values("step")
    low = style.with_ends(own[own["role"] == "low_bit"].sort_values("step"))
    nll = full["nll_nats_per_token"]
    fp32.plot(full["step"] - best, nll - nll.min(), color=color, lw=0.8)
    losses.vlines(low["step"] - best, low["low"], low["high"], color=color, lw=0.4, alpha=0.25)
    losses.plot(low["step"] - best, low[LOSS[0]].rolling(SMOOTH, center=True).mean(), color=color,
                lw=0.9)  # fmt: skip


def _draw_growth(axes: Axes, comparison: pd.DataFrame, colors: dict) -> None:
    for row in comparison.dropna(subset=["slope_before", "slope_after"]).to_dict("records"):
        before, after = (
            np.clip([[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]], 0, None)
            for name in ("slope_before", "slope_after")
        )
        axes.errorbar([row["slope_before"]], [row["slope_after"]], after, before, marker="o", ms=3,
                      color=colors[row["width"]], elinewidth=0.5)  # fmt: skip
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
    run(main, snakemake)
