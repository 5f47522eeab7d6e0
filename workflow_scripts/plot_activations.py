"""Draw figure 12: activations beside weights: kurtosis, rounded activations, anisotropy."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import BLUE, DASHED, DOTTED, GREY, RED

_VALUE_AND_INTERVAL = ["value", "low", "high"]
MOST_NAMED_STATES = 5  # of more hidden states only the first and the last are in the legend
# Label, colour and line style of each name in activations.csv.
_LOSSES = {
    "W": ("weights", RED, "-"),
    "A": ("activations", BLUE, DASHED),
    "W+A": ("both", "black", "-"),
}
_COSINES = {
    "head": ("head", "black", "-"),
    "embed_in": ("embedding", GREY, DOTTED),
    "last state": ("last hidden state", BLUE, DASHED),
}


def draw(
    activations: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, suite: dict, bits: int
) -> Figure:
    """Kurtosis of hidden states beside that of weights, losses of W, A and both, cosines.

    ``bits`` are those of a rounded activation. Bands are 95 % intervals over sequences.
    """
    figure, (kurtosis_axes, loss_axes, cosine_axes) = style.row_of_panels(
        f"{suite['label']}: activations beside weights",
        ["excess kurtosis", f"rounding to {bits} bits", "mean cosine of pairs"],
    )
    by_measure = dict(list(activations.sort_values("step").groupby("measure")))

    of_states = by_measure["kurtosis"]
    _draw_curves(kurtosis_axes, of_states, _looks_of_states(of_states["name"]))
    of_weights = kurtosis[kurtosis["statistic"] == "mean_over_tensors"].sort_values("step")
    kurtosis_axes.plot(
        of_weights["step"],
        of_weights["excess_kurtosis"],
        color=GREY,
        lw=0.9,
        ls=DASHED,
        label="weights, their mean",
    )
    kurtosis_axes.set_ylabel("excess kurtosis")

    _draw_curves(loss_axes, by_measure["added_loss"], _LOSSES)
    loss_axes.set_ylabel("added loss (nats/token)")
    _draw_curves(cosine_axes, by_measure["mean_cosine"], _COSINES)
    cosine_axes.set_ylabel("mean cosine (0: isotropic)")
    style.along_the_run(figure.axes, activations["step"].max(), phases)
    style.legends(figure.axes)
    return figure


def _looks_of_states(names: pd.Series) -> dict:
    """Label, colour and line style of each hidden state, from the embedding to the last block.

    Colours run from dark to light.
    """
    blocks = sorted(int(name.removeprefix("state")) for name in names.unique())
    named_blocks = blocks if len(blocks) <= MOST_NAMED_STATES else (blocks[0], blocks[-1])
    looks = {}
    for block, color in style.shades(blocks).items():
        label = None
        if block in named_blocks:
            label = f"after block {block}" if block else "embedding"
        looks[f"state{block}"] = (label, color, "-")
    return looks


def _draw_curves(axes: Axes, rows: pd.DataFrame, looks: dict) -> None:
    for name, (label, color, linestyle) in looks.items():
        curve = rows[rows["name"] == name]
        style.band(
            axes, curve["step"], curve, _VALUE_AND_INTERVAL, color=color, ls=linestyle, label=label
        )
    axes.axhline(0, color=GREY, lw=0.4, zorder=0)


if __name__ == "__main__":
    style.run(draw, snakemake)
