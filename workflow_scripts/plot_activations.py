"""Draw figure 12: activations beside weights: kurtosis, rounded activations, anisotropy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.style import BLUE, DASHED, DOTTED, GREY, RED

_ENDS = ["value", "low", "high"]
_LOSSES = {"W": ("weights", RED, "-"), "A": ("activations", BLUE, DASHED),
           "W+A": ("both", "black", "-")}  # fmt: skip
_COSINES = {"head": ("head", "black", "-"), "embed_in": ("embedding", GREY, DOTTED),
            "last state": ("last hidden state", BLUE, DASHED)}  # fmt: skip


def main(
    activations: str, kurtosis: str, phases: str, suite: dict, bits: int, outputs: list
) -> None:
    """Write the figure (pdf, svg, png)."""
    tables = pd.read_csv(activations), pd.read_csv(kurtosis)
    style.save(draw(*tables, read_json(phases), suite=suite, bits=bits), outputs)


@style.style()
def draw(
    activations: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, *, suite: dict, bits: int
) -> Figure:
    """Kurtosis of hidden states beside that of weights, losses of W, A and both, cosines.

    The tables are activations.csv and kurtosis.csv of ``suite`` (key label); ``bits`` of an
    activation. Bands are 95 % intervals over sequences.
    """
    figure, panels = style.row_of_panels(
        f"{suite['label']}: activations beside weights",
        ["excess kurtosis", f"rounding to {bits} bits", "mean cosine of pairs"],
    )
    states, losses, cosines = panels
    of = dict(list(activations.groupby("measure")))
    _draw_states(states, of["kurtosis"], kurtosis)
    _draw_named(losses, of["added_loss"], _LOSSES)
    _draw_named(cosines, of["mean_cosine"], _COSINES)
    states.set_ylabel("excess kurtosis")
    losses.set_ylabel("added loss (nats/token)")
    cosines.set_ylabel("mean cosine (0: isotropic)")
    for axes in panels:
        style.step_ticks(axes, int(activations["step"].max()))
        style.legend(axes, phases, best=axes is losses)
    return figure


def _draw_states(axes: Axes, states: pd.DataFrame, kurtosis: pd.DataFrame) -> None:
    numbers = sorted(int(name.removeprefix("state")) for name in states["name"].unique())
    for color, number in zip(style.shades(len(numbers)), numbers, strict=True):
        rows = states[states["name"] == f"state{number}"].sort_values("step")
        label = f"after block {number}" if number else "embedding"
        shown = len(numbers) <= 5 or number in (0, numbers[-1])
        style.band(axes, rows["step"], rows, _ENDS, color=color, label=label if shown else None)
    mean = kurtosis[kurtosis["statistic"] == "mean_over_tensors"].sort_values("step")
    axes.plot(mean["step"], mean["excess_kurtosis"], color=GREY, lw=0.9, ls=DASHED,
              label="weights, their mean")  # fmt: skip


def _draw_named(axes: Axes, rows: pd.DataFrame, looks: dict) -> None:
    for name, (label, color, dashes) in looks.items():
        part = rows[rows["name"] == name].sort_values("step")
        if len(part):
            style.band(axes, part["step"], part, _ENDS, color=color, ls=dashes, label=label)
    axes.axhline(0, color=GREY, lw=0.4, zorder=0)


if __name__ == "__main__":
    run(main, snakemake)
