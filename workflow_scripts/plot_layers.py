"""Draw figure 7: which matrix breaks when."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.mechanism.findings import additivity
from flatminima.mechanism.visits import in_order, short_name
from flatminima.style import (
    GREY,
    LOOKS,
    PAGE_IN,
    band,
    mark_best,
    put_title,
    save,
    step_ticks,
    style,
)

_DELTA = "delta_nll_nats_per_token"
SMALLEST = 1e-3  # nats per token: the lightest colour


def draw(layers: pd.DataFrame, phases: dict, *, suite: dict) -> Figure:
    """Two heat maps of matrices by steps, and the sum of all against all together.

    ``layers`` is layers.csv of ``suite`` (keys label and spacing), of which the evenly
    spaced steps are drawn. Above: the loss a matrix adds alone; middle: what leaving it
    out removes; below, with 95 % intervals over sequences, all together and the sum.
    """
    even = layers[(layers["step"] > 0) & (layers["step"] % suite["spacing"] == 0)]
    with style():
        figure = Figure(figsize=(PAGE_IN, 5.6))
        grid = figure.add_gridspec(
            3, 2, width_ratios=(1, 0.015), height_ratios=(1.25, 1, 1), hspace=0.42, wspace=0.03,
            left=0.235, right=0.91, bottom=0.08, top=0.895,
        )  # fmt: skip
        alone, bar = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0:2, 1])
        left_out, whole = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[2, 0])
        single = even[even["probe"] == "in"]
        norm = LogNorm(SMALLEST, max(single[_DELTA].max(), 2 * SMALLEST))
        mesh = _heat_map(alone, single, _DELTA, norm)
        _heat_map(left_out, even[even["probe"] == "out"], "removed_nats", norm)
        figure.colorbar(mesh, cax=bar, extend="min").set_label("nats/token (log scale)")
        alone.set_title("a  loss added by one matrix alone", loc="left")
        left_out.set_title("b  loss removed by leaving one matrix out", loc="left")
        _draw_sum(whole, even)
        for axes in (alone, left_out, whole):
            step_ticks(axes, int(even["step"].max()))
        for axes in (alone, left_out):
            axes.set_xlabel("")
            axes.axvline(phases["convergence"]["step"], color="white", lw=0.8, ls=(0, (2, 1.5)))
        mark_best(whole, phases, name=True)
        put_title(figure, f"{suite['label']}: where rounding breaks the model", x=0.235, y=0.985)
    return figure


def _heat_map(axes: Axes, rows: pd.DataFrame, column: str, norm: LogNorm) -> object:
    wide = rows.pivot(index="tensor", columns="step", values=column)
    wide = wide.loc[in_order(list(rows["tensor"].unique()))]
    steps = wide.columns.to_numpy(float)
    middles = (steps[1:] + steps[:-1]) / 2
    edges = np.concatenate([[max(0.0, 2 * steps[0] - middles[0])], middles, [steps[-1]]])
    values = np.clip(wide.to_numpy(), SMALLEST * 0.999, None)
    mesh = axes.pcolormesh(edges, np.arange(len(wide) + 1), values, norm=norm, cmap="magma",
                           rasterized=True)  # fmt: skip
    axes.set_yticks(np.arange(len(wide)) + 0.5, [short_name(name) for name in wide.index])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    return mesh


def _draw_sum(axes: Axes, even: pd.DataFrame) -> None:
    whole = even[even["probe"] == "all"].sort_values("step")
    whole = whole.assign(low=np.log1p(whole["gap_low_pct"] / 100),
                         high=np.log1p(whole["gap_high_pct"] / 100))  # fmt: skip
    band(axes, whole["step"], whole, [_DELTA, "low", "high"], color=LOOKS["low_bit"].color,
         label="all of them together")  # fmt: skip
    sums = additivity(even)
    axes.plot(sums["step"], sums["sum_in"], color="black", lw=0.8, ls=(0, (4, 1.5)),
              label="sum of each alone")  # fmt: skip
    axes.set_title("c  do the matrices of the blocks add up?", loc="left")
    axes.set_ylabel("added loss\n(nats/token)")
    axes.legend(frameon=False, loc="upper left")
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)
    axes.set_ylim(axes.get_ylim()[0], 1.25 * axes.get_ylim()[1])


def main(*, layers: str, phases: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    save(draw(pd.read_csv(layers), read_json(phases), suite=suite), outputs)


if __name__ == "__main__":
    run(main, snakemake)
