"""Draw figure 7: which matrix breaks when."""

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from flatminima import style
from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.mechanism.findings import additivity
from flatminima.style import DASHED, DOTTED, GREY, LOSS, RED

SMALLEST = 1e-3  # nats per token: the darkest colour
MOST_ROWS = 15  # that are named one by one


def main(layers: str, phases: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    style.save(draw(pd.read_csv(layers), read_json(phases), suite=suite), outputs)


@style.style()
def draw(layers: pd.DataFrame, phases: dict, *, suite: dict) -> Figure:
    """Two heat maps of matrices by steps, and the sum of all against all together.

    ``layers`` is layers.csv of ``suite`` (keys label and spacing), of which the evenly
    spaced steps are drawn. Above: the loss a matrix adds alone; middle: what leaving it
    out removes; below, with 95 % intervals over sequences, all together and the sum.
    """
    rows = style.even(layers, suite["spacing"])
    single, others = rows[rows["probe"] == "in"], rows[rows["probe"] == "out"]
    figure = Figure(figsize=(style.PAGE_IN, 5.6 if single["tensor"].nunique() <= MOST_ROWS else 9))
    grid = figure.add_gridspec(
        3, 2, width_ratios=(1, 0.015), height_ratios=(1.25, 1, 1), hspace=0.42, wspace=0.03,
        left=0.245, right=0.91, bottom=0.08, top=0.905,
    )  # fmt: skip
    alone, left_out, whole = panels = [figure.add_subplot(grid[row, 0]) for row in range(3)]
    norm = LogNorm(SMALLEST, max(single[LOSS[0]].max(), 2 * SMALLEST))
    mesh = _heat_map(alone, single, LOSS[0], norm)
    _heat_map(left_out, others, "removed_nats", norm)
    bar = figure.colorbar(mesh, cax=figure.add_subplot(grid[0:2, 1]), extend="min")
    bar.set_label("nats/token (log scale)")
    style.log_axis(bar.ax.yaxis)
    alone.set_title("a  loss added by one matrix alone", loc="left")
    left_out.set_title("b  loss removed by leaving one matrix out", loc="left")
    _draw_sum(whole, rows)
    for axes in panels:
        style.step_ticks(axes, int(rows["step"].max()))
    for axes in (alone, left_out):
        axes.set_xlabel("")
        axes.axvline(phases["convergence"]["step"], color="white", lw=0.8, ls=DOTTED)
    style.legend(whole, phases, ncols=3)
    style.put_title(figure, f"{suite['label']}: where rounding breaks the model", x=0.03, y=0.985)
    return figure


def _heat_map(axes: Axes, rows: pd.DataFrame, column: str, norm: LogNorm) -> object:
    """Matrices in the order of the table, from the embedding to the head."""
    wide = rows.pivot(index="tensor", columns="step", values=column)
    wide = wide.loc[rows["tensor"].unique()]
    steps = wide.columns.to_numpy(float)
    middles = (steps[1:] + steps[:-1]) / 2
    edges = np.concatenate([[max(0.0, 2 * steps[0] - middles[0])], middles, [steps[-1]]])
    values = np.clip(wide.to_numpy(), SMALLEST * 0.999, None)
    mesh = axes.pcolormesh(edges, np.arange(len(wide) + 1), values, norm=norm, cmap="magma",
                           rasterized=True)  # fmt: skip
    names = [printed(name) for name in wide.index]
    if len(names) > MOST_ROWS:  # a block has one name, at its middle
        names = [name.split()[0] for name in names]
    places = pd.Series(np.arange(len(wide)) + 0.5).groupby(names, sort=False).mean()
    axes.set_yticks(places, places.index)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    return mesh


def printed(parameter: str) -> str:
    """``0 attention.dense`` for a matrix of block 0; the module's own name elsewhere."""
    module = parameter.removesuffix(".weight")
    found = re.search(r"\.(?:layers|h|blocks)\.(\d+)\.(.+)", module)
    return f"{found[1]} {found[2]}" if found else module.rpartition(".")[2]


def _draw_sum(axes: Axes, rows: pd.DataFrame) -> None:
    whole = style.with_ends(rows[rows["probe"] == "all"].sort_values("step"))
    style.band(axes, whole["step"], whole, LOSS, color=RED, label="all of them together")
    sums = additivity(rows)
    axes.plot(sums["step"], sums["sum_in"], color="black", lw=0.8, ls=DASHED,
              label="sum of each alone")  # fmt: skip
    axes.set_title("c  do the matrices of the blocks add up?", loc="left")
    axes.set_ylabel("added loss\n(nats/token)")
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)


if __name__ == "__main__":
    run(main, snakemake)
