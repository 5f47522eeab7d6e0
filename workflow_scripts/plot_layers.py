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
MOST_ROWS = 15  # that are named one by one


def draw(layers: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Two heat maps of matrices by steps, and the sum of all against all together.

    Of the evenly spaced steps. Above: the loss a matrix adds alone; middle: what leaving it
    out removes; below, with 95 % intervals over sequences, all together and the sum.
    """
    rows = style.even(layers, suite["spacing"])
    single, others = rows[rows["probe"] == "in"], rows[rows["probe"] == "out"]
    few = single["tensor"].nunique() <= MOST_ROWS
    figure = style.page(f"{suite['label']}: where rounding breaks the model", 5.6 if few else 9)
    alone, left_out, whole = figure.subplots(3, height_ratios=(1.25, 1, 1))
    norm = LogNorm(SMALLEST, max(single[LOSS[0]].max(), 2 * SMALLEST))
    mesh = _heat_map(alone, single, LOSS[0], norm)
    _heat_map(left_out, others, "removed_nats", norm)
    bar = figure.colorbar(mesh, ax=[alone, left_out], extend="min", aspect=40, pad=0.01)
    bar.set_label("nats/token (log scale)")
    style.log_axis(bar.ax.yaxis)
    for axes in (alone, left_out):
        axes.axvline(phases["convergence"]["step"], color="white", lw=0.8, ls=DOTTED)
        style.step_axis(axes, rows["step"].max())
    together = style.with_ends(rows[rows["probe"] == "all"].sort_values("step"))
    style.band(whole, together["step"], together, LOSS, color=RED, label="all of them together")
    sums = additivity(rows)
    whole.plot(sums["step"], sums["sum_in"], color="black", lw=0.8, ls=DASHED,
               label="sum of each alone")  # fmt: skip
    whole.set_ylabel("added loss\n(nats/token)")
    whole.axhline(0, color=GREY, lw=0.5, zorder=0)
    style.along_the_run([whole], rows["step"].max(), phases)
    alone.set_title("a  loss added by one matrix alone")
    left_out.set_title("b  loss removed by leaving one matrix out")
    whole.set_title("c  do the matrices of the blocks add up?")
    style.legends([whole], [3])
    return figure


def _heat_map(axes: Axes, rows: pd.DataFrame, column: str, norm: LogNorm) -> QuadMesh:
    """Matrices in the order of the table, from the embedding to the head."""
    wide = rows.pivot(index="tensor", columns="step", values=column).loc[rows["tensor"].unique()]
    names = list(map(printed, wide.index))
    if len(names) > MOST_ROWS:  # a block has one name, at its middle
        names = [name.split()[0] for name in names]
    mesh = axes.pcolormesh(wide.columns, range(len(wide)), wide.clip(lower=SMALLEST * 0.999),
                           norm=norm, cmap="magma", rasterized=True)  # fmt: skip
    places = pd.Series(range(len(wide))).groupby(names, sort=False).mean()
    axes.set_yticks(places, places.index)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    return mesh


def printed(parameter: str) -> str:
    """``0 attention.dense`` for a matrix of block 0; the module's own name elsewhere."""
    module = parameter.removesuffix(".weight")
    found = re.search(r"\.(?:layers|h|blocks)\.(\d+)\.(.+)", module)
    return f"{found[1]} {found[2]}" if found else module.rpartition(".")[2]


if __name__ == "__main__":
    style.run(draw, snakemake)
