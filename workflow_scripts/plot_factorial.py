"""Draw figure 6: what bits, symmetry and granularity do to the loss, and one line through all."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_LAYERS
from flatminima.style import BLUE, GREY, LOSS, RED

_TERMS = {"bits": ("black", "o"), "granularity": (BLUE, "s"), "symmetry": (RED, "^"),
          "interactions": (GREY, "v")}  # fmt: skip
_FORMATS = {"nf4": "D", "mxfp4": "P", "nvfp4": "X"}
_SYMMETRIC = (0, (2, 1))


def draw(factorial: pd.DataFrame, factors: pd.DataFrame, suite: dict) -> Figure:
    """Losses by bits at the last step, shares of variance by step, prediction against all cells.

    Whiskers are 95 % intervals over the validation sequences.
    """
    cells = style.with_ends(factorial[factorial["role"] == "variant"])
    last, found = cells["step"].max(), factors[factors["response"] == "added_loss"]
    figure, (losses, shares, line) = style.row_of_panels(
        f"{suite['label']}: which property of the grid costs what",
        [f"loss by bits, step {last:,}", "share of the variance", "one sensitivity × step²"],
        height=3.8,
    )
    _draw_losses(losses, cells[cells["step"] == last])
    _draw_shares(shares, found[found["analysis"] == "variance"])
    prediction = found[(found["analysis"] == "prediction") & (found["term"] == "all layer sets")]
    _draw_line(line, cells, prediction.pivot(index="step", columns="measure", values="value"))
    style.legends(figure.axes, [2])
    return figure


def _draw_losses(axes: Axes, cells: pd.DataFrame) -> None:
    plain = cells[(cells["layers"] == PAPER_LAYERS) & (cells["format"] == "int")]
    names = list(plain["granularity"].unique())
    positive = plain[plain["low"] > 0].sort_values("bits")
    for name, color in style.shades(names).items():
        label = f"group of {name[1:]}" if name.startswith("g") else f"per {name}"
        for symmetric, rows in positive[positive["granularity"] == name].groupby("symmetric"):
            look = {"ls": _SYMMETRIC} if symmetric else {"label": label}
            style.band(axes, rows["bits"], rows, LOSS, color=color, ms=2.5, **look)
    for name, mark in _FORMATS.items():
        rows = cells[cells["format"] == name]
        axes.plot(rows["bits"] + 0.25, rows[LOSS[0]], ls="", marker=mark, color=RED, ms=5, mew=0,
                  label=name.upper())  # fmt: skip
    axes.plot([], [], color=GREY, ls=_SYMMETRIC, label="symmetric")
    style.log_axis(axes.yaxis)
    axes.set_xticks(sorted(plain["bits"].astype(int).unique()))
    axes.set(xlabel="bits per weight", ylabel="added loss (nats/token, log scale)")


def _draw_shares(axes: Axes, rows: pd.DataFrame) -> None:
    rows = rows.assign(term=rows["term"].where(rows["term"].isin(list(_TERMS)), "interactions"))
    steps = sorted(rows["step"].unique())
    for shift, (term, (color, mark)) in enumerate(_TERMS.items()):
        parts = rows[rows["term"] == term].groupby("step")[["value", "low", "high"]].sum()
        style.band(axes, np.arange(len(steps)) + 0.1 * shift - 0.15, 100 * parts.reindex(steps),
                   parts.columns, color=color, marker=mark, ms=3.5, ls="", label=term)  # fmt: skip
    axes.set_xticks(range(len(steps)), [f"{step:,}" for step in steps], rotation=90)
    axes.set(xlabel="training step", ylabel="% of the variance of log added loss", ylim=(-2, 100))


def _draw_line(axes: Axes, cells: pd.DataFrame, found: pd.DataFrame) -> None:
    """``found`` has sensitivity, r2 and factor of each step."""
    usable = cells[(cells["format"] == "int") & (cells["low"] > 0)]
    look = {"ls": "", "marker": "o", "ms": 1.6, "mew": 0, "elinewidth": 0.3, "alpha": 0.8}
    for step, color in style.shades(sorted(cells["step"].unique())).items():
        rows = usable[usable["step"] == step]
        if step in found.index and len(rows):
            predicted = found.loc[step, "sensitivity"] * rows["step_variance"]
            axes.errorbar(predicted, *style.with_bars(rows, LOSS), color=color, **look)
    style.log_axis(axes.xaxis, axes.yaxis)
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color=GREY, lw=0.7, zorder=0)
    low, high = found.min(), found.max()
    axes.annotate(
        f"R² {low['r2']:.2f} to {high['r2']:.2f},\noff by a factor of\n{low['factor']:.1f} to "
        f"{high['factor']:.1f} (1 sd)",
        (0.99, 0.03), xycoords="axes fraction", ha="right", color=GREY,
    )  # fmt: skip
    axes.set(xlabel="predicted (nats/token);\nlight: late steps", ylabel="measured (nats/token)")


if __name__ == "__main__":
    style.run(draw, snakemake)
