"""Draw figure 12: activations beside weights: kurtosis, rounded activations, anisotropy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import BLUE, DASHED, DOTTED, GREY, RED

_ENDS = ["value", "low", "high"]
_LOSSES = {"W": ("weights", RED, "-"), "A": ("activations", BLUE, DASHED),
           "W+A": ("both", "black", "-")}  # fmt: skip
_COSINES = {"head": ("head", "black", "-"), "embed_in": ("embedding", GREY, DOTTED),
            "last state": ("last hidden state", BLUE, DASHED)}  # fmt: skip


def draw(
    activations: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, suite: dict, bits: int
) -> Figure:
    """Kurtosis of hidden states beside that of weights, losses of W, A and both, cosines.

    ``bits`` are those of a rounded activation. Bands are 95 % intervals over sequences.
    """
    figure, (states, losses, cosines) = style.row_of_panels(
        f"{suite['label']}: activations beside weights",
        ["excess kurtosis", f"rounding to {bits} bits", "mean cosine of pairs"],
    )
    of = dict(list(activations.sort_values("step").groupby("measure")))
    _draw_named(states, of["kurtosis"], _looks_of_states(of["kurtosis"]["name"]))
    mean = kurtosis[kurtosis["statistic"] == "mean_over_tensors"].sort_values("step")
    states.plot(mean["step"], mean["excess_kurtosis"], color=GREY, lw=0.9, ls=DASHED,
                label="weights, their mean")  # fmt: skip
    _draw_named(losses, of["added_loss"], _LOSSES)
    _draw_named(cosines, of["mean_cosine"], _COSINES)
    states.set_ylabel("excess kurtosis")
    losses.set_ylabel("added loss (nats/token)")
    cosines.set_ylabel("mean cosine (0: isotropic)")
    style.along_the_run(figure.axes, activations["step"].max(), phases)
    style.legends(figure.axes)
    return figure


def _looks_of_states(names: pd.Series) -> dict:
    """Hidden states from the embedding to the last block, dark to light; of many two are named."""
    numbers = sorted(int(name.removeprefix("state")) for name in names.unique())
    shown = numbers if len(numbers) <= 5 else (numbers[0], numbers[-1])
    named = {n: f"after block {n}" if n else "embedding" for n in numbers}
    return {
        f"state{n}": (named[n] if n in shown else None, color, "-")
        for n, color in style.shades(numbers).items()
    }


def _draw_named(axes: Axes, rows: pd.DataFrame, looks: dict) -> None:
    for name, (label, color, dashes) in looks.items():
        part = rows[rows["name"] == name]
        style.band(axes, part["step"], part, _ENDS, color=color, ls=dashes, label=label)
    axes.axhline(0, color=GREY, lw=0.4, zorder=0)


if __name__ == "__main__":
    style.run(draw, snakemake)
