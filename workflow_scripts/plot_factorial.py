"""Draw figure 6: what bits, symmetry and granularity do to the loss, and one line through all."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from flatminima import style
from flatminima.jobs import run
from flatminima.mechanism.factors import PAPER_LAYERS
from flatminima.style import BLUE, GREY, LOSS, RED

_TERMS = {"bits": ("black", "o"), "granularity": (BLUE, "s"), "symmetry": (RED, "^"),
          "interactions": (GREY, "v")}  # fmt: skip
_FORMATS = {"nf4": "D", "mxfp4": "P", "nvfp4": "X"}


def main(factorial: str, factors: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    style.save(draw(pd.read_csv(factorial), pd.read_csv(factors), suite=suite), outputs)


@style.style()
def draw(factorial: pd.DataFrame, factors: pd.DataFrame, *, suite: dict) -> Figure:
    """Losses by bits at the last step, shares of variance by step, prediction against all cells.

    The tables are factorial.csv and factors.csv of ``suite`` (key label). Whiskers are 95 %
    intervals over the validation sequences.
    """
    cells = style.with_ends(factorial[factorial["role"] == "variant"])
    last = int(cells["step"].max())
    figure, (losses, shares, line) = style.row_of_panels(
        f"{suite['label']}: which property of the grid costs what",
        [f"loss by bits, step {last:,}", "share of the variance", "one sensitivity × step²"],
        height=3.5, top=0.86, bottom=0.145, left=0.095, wspace=0.45,
    )  # fmt: skip
    _draw_losses(losses, cells[cells["step"] == last])
    _draw_shares(shares, factors)
    _draw_line(line, cells, factors)
    return figure


def _draw_losses(axes: Axes, cells: pd.DataFrame) -> None:
    plain = cells[(cells["layers"] == PAPER_LAYERS) & (cells["format"] == "int")]
    names = list(plain["granularity"].unique())
    positive = plain[plain["low"] > 0]
    for color, name in zip(style.shades(len(names)), names, strict=True):
        for symmetric, dashes in ((False, "-"), (True, (0, (2, 1)))):
            rows = positive[(positive["granularity"] == name)
                            & (positive["symmetric"].astype(str) == str(symmetric))]  # fmt: skip
            label = f"group of {name[1:]}" if name.startswith("g") else f"per {name}"
            rows = rows.sort_values("bits")
            style.band(axes, rows["bits"], rows, LOSS, color=color, ls=dashes, ms=2.5,
                       label=None if symmetric else label)  # fmt: skip
    style.log_axis(axes.yaxis)
    axes.add_artist(axes.legend(loc="upper right", handlelength=1.2))
    formats = []
    for name, mark in _FORMATS.items():
        rows = cells[cells["format"] == name]
        formats += axes.plot(rows["bits"] + 0.25, rows[LOSS[0]], ls="", marker=mark, color=RED,
                             ms=5, mew=0, label=name.upper())  # fmt: skip
    formats.append(Line2D([], [], color=GREY, ls=(0, (2, 1)), label="symmetric"))
    axes.legend(handles=formats, loc="lower left", handlelength=1.2)
    axes.set_xticks(sorted(plain["bits"].astype(int).unique()))
    axes.set_xlabel("bits per weight")
    axes.set_ylabel("added loss (nats/token, log scale)")


def _draw_shares(axes: Axes, factors: pd.DataFrame) -> None:
    rows = factors[(factors["analysis"] == "variance") & (factors["response"] == "added_loss")]
    rows = rows.assign(term=rows["term"].where(rows["term"].isin(list(_TERMS)), "interactions"))
    steps = sorted(rows["step"].unique())
    for shift, (term, (color, mark)) in zip((-0.15, -0.05, 0.05, 0.15), _TERMS.items(),
                                            strict=True):  # fmt: skip
        parts = rows[rows["term"] == term].groupby("step")[["value", "low", "high"]].sum()
        style.band(axes, np.arange(len(steps)) + shift, 100 * parts.reindex(steps),
                   ["value", "low", "high"], color=color, marker=mark, ms=3.5, ls="",
                   label=term)  # fmt: skip
    axes.set_xticks(range(len(steps)), [f"{step:,}" for step in steps], rotation=30)
    axes.set_ylim(-2, 100)
    axes.set_xlabel("training step")
    axes.set_ylabel("% of the variance of log added loss")
    style.legend(axes, ncols=2, handlelength=0.8)


def _draw_line(axes: Axes, cells: pd.DataFrame, factors: pd.DataFrame) -> None:
    found = factors[(factors["analysis"] == "prediction") & (factors["response"] == "added_loss")
                    & (factors["term"] == "all layer sets")]  # fmt: skip
    by_step = found.pivot(index="step", columns="measure", values="value")
    steps = sorted(cells["step"].unique())
    usable = cells[(cells["format"] == "int") & (cells["low"] > 0)]
    for color, step in zip(style.shades(len(steps)), steps, strict=True):
        rows = usable[usable["step"] == step]
        if step not in by_step.index or rows.empty:
            continue
        loss, low, high = (rows[column] for column in LOSS)
        axes.errorbar(by_step.loc[step, "sensitivity"] * rows["step_variance"], loss,
                      [loss - low, high - loss], ls="", marker="o", ms=1.6, mew=0, elinewidth=0.3,
                      color=color, alpha=0.8, label=f"step {step:,}")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        style.log_axis(axis)
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color=GREY, lw=0.7, zorder=0)
    r2, factor = (by_step[name] for name in ("r2", "factor"))
    axes.annotate(
        f"R² {r2.min():.2f} to {r2.max():.2f},\noff by a factor of\n{factor.min():.1f} to "
        f"{factor.max():.1f} (1 sd)",
        (0.99, 0.03), xycoords="axes fraction", ha="right", color=GREY,
    )  # fmt: skip
    axes.set_xlabel("predicted (nats/token)")
    axes.set_ylabel("measured (nats/token)")
    axes.legend(loc="upper left", handlelength=0.8, markerscale=2.5)


if __name__ == "__main__":
    run(main, snakemake)
