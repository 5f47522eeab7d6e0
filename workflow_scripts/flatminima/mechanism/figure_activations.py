"""Figure 12: activations beside weights: kurtosis, rounded activations, anisotropy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.plotting import GREY
from flatminima.mechanism.panels import (
    band,
    legend,
    mark_best,
    row_of_panels,
    shades,
    step_ticks,
)

_ENDS = ["value", "low", "high"]
_LOSSES = {"W": ("weights", plotting.LOOKS["low_bit"].color, "-"),
           "A": ("activations", "#0173b2", (0, (4, 1.5))),
           "W+A": ("both", "black", "-")}  # fmt: skip
_COSINES = {"head": ("head", "black"), "embed_in": ("embedding", GREY),
            "last state": ("last hidden state", "#0173b2")}  # fmt: skip


def draw(
    table: pd.DataFrame,
    kurtosis: pd.DataFrame,
    phases: dict,
    *,
    suite: dict,
    bits: int | None = None,
) -> Figure:
    """Kurtosis of hidden states beside that of weights, losses of W, A and both, cosines.

    ``table`` is activations.csv, ``kurtosis`` is kurtosis.csv of ``suite`` (key label);
    ``bits`` of an activation where they are to be named. Bands are 95 % intervals over sequences.
    """
    last = int(table["step"].max())
    rounding = f"rounding to {bits} bits" if bits else "rounding"
    with plotting.style():
        figure, panels = row_of_panels(
            f"{suite['label']}: activations beside weights",
            ["excess kurtosis", rounding, "mean cosine of pairs"],
        )  # fmt: skip
        states, losses, cosines = panels
        _draw_states(states, table[table["measure"] == "kurtosis"], kurtosis)
        _draw_named(losses, table[table["measure"] == "added_loss"], _LOSSES)
        losses.set_ylabel("added loss (nats/token)")
        rows = table[table["measure"] == "mean_cosine"]
        _draw_named(
            cosines, rows, {k: (label, color, "-") for k, (label, color) in _COSINES.items()}
        )
        cosines.set_ylabel("mean cosine (0: isotropic)")
        for axes in panels:
            step_ticks(axes, last)
            mark_best(axes, phases, name=axes is losses)
            legend(axes, loc="upper left", handlelength=1.5, labelspacing=0.25)
            axes.set_ylim(
                axes.get_ylim()[0], axes.get_ylim()[1] * (1.45 if axes is states else 1.25)
            )
    return figure


def _draw_states(axes: Axes, states: pd.DataFrame, kurtosis: pd.DataFrame) -> None:
    names = sorted(states["name"].unique(), key=lambda name: int(name.removeprefix("state")))
    for color, name in zip(shades(len(names)), names, strict=True):
        rows = states[states["name"] == name].sort_values("step")
        number = int(name.removeprefix("state"))
        label = "embedding" if number == 0 else f"after block {number}"
        shown = len(names) <= 5 or number in (0, len(names) - 1)
        band(axes, rows["step"], rows, _ENDS, color=color, label=label if shown else None)
    mean = kurtosis[kurtosis["statistic"] == "mean_over_tensors"].sort_values("step")
    axes.plot(mean["step"], mean["excess_kurtosis"], color=GREY, lw=0.9, ls=(0, (4, 1.5)),
              label="weights (mean of matrices)")  # fmt: skip
    axes.set_ylabel("excess kurtosis")


def _draw_named(axes: Axes, rows: pd.DataFrame, looks: dict) -> None:
    for name, (label, color, style) in looks.items():
        part = rows[rows["name"] == name].sort_values("step")
        if len(part):
            band(axes, part["step"], part, _ENDS, color=color, ls=style, label=label)
    axes.axhline(0, color=GREY, lw=0.4, zorder=0)
