"""Draw figure 7: which matrix breaks when."""

import re

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from flatminima import style
from flatminima.mechanism.findings import additivity
from flatminima.style import DASHED, DOTTED, GREY, LOSS, RED

SMALLEST = 1e-3  # nats per token: the darkest colour
MOST_ROWS = 15  # matrices that are named one by one


def draw(layers: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Two heat maps of matrices by steps, and the sum of all against all together.

    Evenly spaced steps only. Above is the loss that a matrix adds alone. In the middle is the
    loss that leaving it out removes. Below, with 95 % intervals over sequences, are the loss of
    all matrices together and the sum of the single losses.
    """
    rows = style.even(layers, suite["spacing"])
    last_step = rows["step"].max()
    alone = rows[rows["probe"] == "in"]
    all_but_one = rows[rows["probe"] == "out"]
    height = 5.6 if alone["tensor"].nunique() <= MOST_ROWS else 9
    figure = style.page(f"{suite['label']}: where rounding breaks the model", height)
    alone_axes, left_out_axes, sum_axes = figure.subplots(3, height_ratios=(1.25, 1, 1))

    # One scale for both heat maps, so that their colours can be compared.
    norm = LogNorm(SMALLEST, max(alone[LOSS[0]].max(), 2 * SMALLEST))
    mesh = _draw_heat_map(alone_axes, alone, LOSS[0], norm)
    _draw_heat_map(left_out_axes, all_but_one, "removed_nats", norm)
    color_bar = figure.colorbar(
        mesh, ax=[alone_axes, left_out_axes], extend="min", aspect=40, pad=0.01
    )
    color_bar.set_label("nats/token (log scale)")
    style.log_axis(color_bar.ax.yaxis)
    for axes in (alone_axes, left_out_axes):
        axes.axvline(phases["convergence"]["step"], color="white", lw=0.8, ls=DOTTED)
        style.step_axis(axes, last_step)

    _draw_sum(sum_axes, rows)
    style.along_the_run([sum_axes], last_step, phases)
    alone_axes.set_title("a  loss added by one matrix alone")
    left_out_axes.set_title("b  loss removed by leaving one matrix out")
    sum_axes.set_title("c  do the matrices of the blocks add up?")
    style.legends([sum_axes], [3])
    return figure


def _draw_heat_map(axes: Axes, rows: pd.DataFrame, column: str, norm: LogNorm) -> QuadMesh:
    """Matrices in the order of the table, from the embedding to the head."""
    by_step = rows.pivot(index="tensor", columns="step", values=column)
    by_step = by_step.loc[rows["tensor"].unique()]
    names = [printed_matrix(tensor) for tensor in by_step.index]
    if len(names) > MOST_ROWS:
        # Each block then has one name, at the middle of its matrices.
        names = [name.split()[0] for name in names]
    mesh = axes.pcolormesh(
        by_step.columns,
        range(len(by_step)),
        # Slightly below the scale, so that cells without a cost get the colour for "below".
        by_step.clip(lower=SMALLEST * 0.999),
        norm=norm,
        cmap="magma",
        rasterized=True,
    )
    places = pd.Series(range(len(by_step))).groupby(names, sort=False).mean()
    axes.set_yticks(places, places.index)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    return mesh


def _draw_sum(axes: Axes, rows: pd.DataFrame) -> None:
    """The loss of all matrices together beside the sum of their single losses."""
    together = style.with_ends(rows[rows["probe"] == "all"].sort_values("step"))
    style.band(axes, together["step"], together, LOSS, color=RED, label="all of them together")
    sums = additivity(rows)
    axes.plot(
        sums["step"], sums["sum_in"], color="black", lw=0.8, ls=DASHED, label="sum of each alone"
    )
    axes.set_ylabel("added loss\n(nats/token)")
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)


def printed_matrix(parameter: str) -> str:
    """``0 attention.dense`` for a matrix of block 0; the name of the module for any other."""
    module = parameter.removesuffix(".weight")
    in_block = re.search(r"\.(?:layers|h|blocks)\.(\d+)\.(.+)", module)
    if in_block:
        return f"{in_block[1]} {in_block[2]}"
    return module.rpartition(".")[2]


if __name__ == "__main__":
    style.run(draw, snakemake)
