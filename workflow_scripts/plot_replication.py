"""Draw figure 13: runs of several widths and seeds, each against its own FP32 minimum."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.jobs import run
from flatminima.style import GREY, legend, role_labels, row_of_panels, save, shades, style

_DELTA = "delta_nll_nats_per_token"
SMOOTH = 3  # probes in a running mean, for the eye


def draw(runs: pd.DataFrame, comparison: pd.DataFrame, *, suite: dict) -> Figure:
    """FP32 curves, low-bit losses by distance to the own minimum, growth before and after.

    ``runs`` is replication_runs.csv, ``comparison`` replication.csv of ``suite`` (key
    label). Bars are 95 % intervals over sequences.
    """
    widths = sorted(comparison["width"].unique())
    colors = dict(zip(widths, shades(len(widths)), strict=True))
    name = role_labels(runs, suite)["low_bit"]
    with style():
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
            axes.set_xlabel("steps after the own minimum")
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
    ends = (np.log1p(low[f"gap_{end}_pct"] / 100) for end in ("low", "high"))
    losses.vlines(low["step"] - best, *ends, color=color, lw=0.4, alpha=0.25)
    losses.plot(low["step"] - best, low[_DELTA].rolling(SMOOTH, center=True).mean(), color=color,
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


def main(*, runs: str, comparison: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    save(draw(pd.read_csv(runs), pd.read_csv(comparison), suite=suite), outputs)


if __name__ == "__main__":
    run(main, snakemake)
