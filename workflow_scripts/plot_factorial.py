"""Draw figure 6: what bits, symmetry and granularity do to the loss, and one line through all."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_LAYERS
from flatminima.style import BLUE, GREY, LOSS, RED

# Colour and marker of each term of the analysis of variance.
_TERMS = {
    "bits": ("black", "o"),
    "granularity": (BLUE, "s"),
    "symmetry": (RED, "^"),
    "interactions": (GREY, "v"),
}
_MARKER_OF_FORMAT = {"nf4": "D", "mxfp4": "P", "nvfp4": "X"}
_SYMMETRIC_LINE = (0, (2, 1))


def draw(factorial: pd.DataFrame, factors: pd.DataFrame, suite: dict) -> Figure:
    """Losses by bits at the last step, shares of variance by step, prediction against all cells.

    Whiskers are 95 % intervals over the validation sequences, where there is one.
    """
    cells = style.with_ends(factorial[factorial["role"] == "variant"])
    last_step = cells["step"].max()
    figure, (loss_axes, share_axes, prediction_axes) = style.row_of_panels(
        f"{suite['label']}: which property of the grid costs what",
        [
            f"loss by bits, step {last_step:,}",
            "share of the variance",
            "sensitivity × (grid step)²",
        ],
        height=3.8,
    )
    _draw_losses(loss_axes, cells[cells["step"] == last_step])
    of_added_loss = factors[factors["response"] == "added_loss"]
    _draw_shares(share_axes, of_added_loss[of_added_loss["analysis"] == "variance"])
    is_prediction = of_added_loss["analysis"] == "prediction"
    over_all_layers = of_added_loss["term"] == "all layer sets"
    prediction = of_added_loss[is_prediction & over_all_layers]
    _draw_prediction(
        prediction_axes, cells, prediction.pivot(index="step", columns="measure", values="value")
    )
    style.legends(figure.axes, [2])  # two columns in the first panel
    return figure


def _draw_losses(axes: Axes, cells: pd.DataFrame) -> None:
    """Added loss by bits: a line per granularity and symmetry, a marker per 4-bit format."""
    integer_cells = cells[(cells["layers"] == PAPER_LAYERS) & (cells["format"] == "int")]
    granularities = list(integer_cells["granularity"].unique())
    # A loss whose interval reaches zero has no place on a logarithmic axis.
    positive = integer_cells[integer_cells["low"] > 0].sort_values("bits")
    for granularity, color in style.shades(granularities).items():
        in_groups = granularity.startswith("g")
        label = f"group of {granularity[1:]}" if in_groups else f"per {granularity}"
        of_granularity = positive[positive["granularity"] == granularity]
        for symmetric, rows in of_granularity.groupby("symmetric"):
            look = {"ls": _SYMMETRIC_LINE} if symmetric else {"label": label}
            style.band(axes, rows["bits"], rows, LOSS, color=color, ms=2.5, **look)
    for name, marker in _MARKER_OF_FORMAT.items():
        # Formats are probed on the paper's layers only.
        rows = cells[cells["format"] == name]
        axes.plot(
            # Beside the integer cells of the same width, not on top of them.
            rows["bits"] + 0.25,
            rows[LOSS[0]],
            ls="",
            marker=marker,
            color=RED,
            ms=5,
            mew=0,
            label=name.upper(),
        )
    axes.plot([], [], color=GREY, ls=_SYMMETRIC_LINE, label="symmetric")
    style.log_axis(axes.yaxis)
    axes.set_xticks(sorted(integer_cells["bits"].astype(int).unique()))
    axes.set(xlabel="bits per weight", ylabel="added loss (nats/token, log scale)")


def _draw_shares(axes: Axes, variance: pd.DataFrame) -> None:
    """Share of each term in the variance of the logarithm of the added loss, by step.

    The interactions are a sum of several terms. The sum has no interval: the ends of the
    intervals of its terms do not add up to one.
    """
    is_main_term = variance["term"].isin(list(_TERMS))
    rows = variance.assign(term=variance["term"].where(is_main_term, "interactions"))
    steps = sorted(rows["step"].unique())
    for index, (term, (color, marker)) in enumerate(_TERMS.items()):
        shares = rows[rows["term"] == term].groupby("step")[["value", "low", "high"]].sum()
        if term == "interactions":
            shares[["low", "high"]] = np.nan
        places = np.arange(len(steps)) + 0.1 * index - 0.15  # side by side around each tick
        style.band(
            axes,
            places,
            100 * shares.reindex(steps),
            shares.columns,
            color=color,
            marker=marker,
            ms=3.5,
            ls="",
            label=term,
        )
    axes.set_xticks(range(len(steps)), [f"{step:,}" for step in steps], rotation=90)
    axes.set(xlabel="training step", ylabel="% of the variance of log added loss", ylim=(-2, 100))


def _draw_prediction(axes: Axes, cells: pd.DataFrame, prediction: pd.DataFrame) -> None:
    """Measured against predicted loss of every cell.

    ``prediction`` has the columns sensitivity, r2 and factor, by step.
    """
    usable = cells[(cells["format"] == "int") & (cells["low"] > 0)]
    look = {"ls": "", "marker": "o", "ms": 1.6, "mew": 0, "elinewidth": 0.3, "alpha": 0.8}
    for step, color in style.shades(sorted(cells["step"].unique())).items():
        rows = usable[usable["step"] == step]
        # At an early step no loss may be clearly above zero. Then nothing was fitted.
        if step in prediction.index and len(rows):
            predicted = prediction.loc[step, "sensitivity"] * rows["step_variance"]
            axes.errorbar(predicted, *style.with_bars(rows, LOSS), color=color, **look)
    style.log_axis(axes.xaxis, axes.yaxis)
    diagonal = np.array(axes.get_xlim())
    axes.plot(diagonal, diagonal, color=GREY, lw=0.7, zorder=0)
    low, high = prediction.min(), prediction.max()
    axes.annotate(
        f"R² {low['r2']:.2f} to {high['r2']:.2f},\noff by a factor of\n"
        f"{low['factor']:.1f} to {high['factor']:.1f} (1 sd)",
        (0.99, 0.03),
        xycoords="axes fraction",
        ha="right",
        color=GREY,
    )
    axes.set(xlabel="predicted (nats/token);\nlight: late steps", ylabel="measured (nats/token)")


if __name__ == "__main__":
    style.run(draw, snakemake)
