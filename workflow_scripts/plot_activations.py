"""Draw figure 12: activations beside weights: kurtosis, rounded activations, anisotropy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.style import (
    GREY,
    LOOKS,
    band,
    legend,
    mark_best,
    row_of_panels,
    save,
    shades,
    step_ticks,
    style,
)

_ENDS = ["value", "low", "high"]
BLUE, DASHED = "#0173b2", (0, (4, 1.5))
_LOSSES = {"W": ("weights", LOOKS["low_bit"].color, "-"), "A": ("activations", BLUE, DASHED),
           "W+A": ("both", "black", "-")}  # fmt: skip
_COSINES = {"head": ("head", "black", "-"), "embed_in": ("embedding", GREY, "-"),
            "last state": ("last hidden state", BLUE, "-")}  # fmt: skip


def draw(
    table: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, *, suite: dict, bits: int
) -> Figure:
    """Kurtosis of hidden states beside that of weights, losses of W, A and both, cosines.

    ``table`` is activations.csv, ``kurtosis`` is kurtosis.csv of ``suite`` (key label);
    ``bits`` of an activation. Bands are 95 % intervals over sequences.
    """
    with style():
        figure, panels = row_of_panels(
            f"{suite['label']}: activations beside weights",
            ["excess kurtosis", f"rounding to {bits} bits", "mean cosine of pairs"],
        )
        states, losses, cosines = panels
        _draw_states(states, table[table["measure"] == "kurtosis"], kurtosis)
        _draw_named(losses, table[table["measure"] == "added_loss"], _LOSSES)
        _draw_named(cosines, table[table["measure"] == "mean_cosine"], _COSINES)
        losses.set_ylabel("added loss (nats/token)")
        cosines.set_ylabel("mean cosine (0: isotropic)")
        for axes in panels:
            step_ticks(axes, int(table["step"].max()))
            mark_best(axes, phases, name=axes is losses)
            legend(axes, loc="upper left", handlelength=1.5, labelspacing=0.25)
            low, high = axes.get_ylim()
            axes.set_ylim(low, high * (1.5 if axes is states else 1.25))
    return figure


def _draw_states(axes: Axes, states: pd.DataFrame, kurtosis: pd.DataFrame) -> None:
    numbers = sorted(int(name.removeprefix("state")) for name in states["name"].unique())
    for color, number in zip(shades(len(numbers)), numbers, strict=True):
        rows = states[states["name"] == f"state{number}"].sort_values("step")
        label = f"after block {number}" if number else "embedding"
        shown = len(numbers) <= 5 or number in (0, numbers[-1])
        band(axes, rows["step"], rows, _ENDS, color=color, label=label if shown else None)
    mean = kurtosis[kurtosis["statistic"] == "mean_over_tensors"].sort_values("step")
    axes.plot(mean["step"], mean["excess_kurtosis"], color=GREY, lw=0.9, ls=DASHED,
              label="weights, their mean")  # fmt: skip
    axes.set_ylabel("excess kurtosis")


def _draw_named(axes: Axes, rows: pd.DataFrame, looks: dict) -> None:
    for name, (label, color, dashes) in looks.items():
        part = rows[rows["name"] == name].sort_values("step")
        if len(part):
            band(axes, part["step"], part, _ENDS, color=color, ls=dashes, label=label)
    axes.axhline(0, color=GREY, lw=0.4, zorder=0)


def main(
    *, activations: str, kurtosis: str, phases: str, suite: dict, bits: int, outputs: list
) -> None:
    """Write the figure (pdf, svg, png)."""
    tables = pd.read_csv(activations), pd.read_csv(kurtosis)
    save(draw(*tables, read_json(phases), suite=suite, bits=bits), outputs)


if __name__ == "__main__":
    run(main, snakemake)
