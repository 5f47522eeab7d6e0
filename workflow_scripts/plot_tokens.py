"""Draw figure 15: added loss against the tokens that a weight has seen, by width and decay."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_MODEL
from flatminima.scaling_law import printed_losses
from flatminima.style import BLUE, LOSS

SMOOTH = 5  # probes in a running mean, for the eye


def draw(replication_runs: pd.DataFrame, table1: pd.DataFrame, suite: dict) -> Figure:
    """Added loss and FP32 loss over tokens per weight of the blocks, a line per run.

    ``table1`` is the paper's, whose gaps are drawn as losses.
    """
    widths, decays = (sorted(replication_runs[key].unique()) for key in ("width", "weight_decay"))
    colors = style.shades(widths)
    dashes = style.dash_patterns(decays)
    name = style.role_labels(replication_runs, suite)["low_bit"]
    figure, (added, fp32) = style.row_of_panels(
        f"{suite['label']}: tokens seen, width and loss",
        [f"loss added by {name}", "FP32 loss above the run's best"],
        height=3.2,
    )
    runs = ["width", "weight_decay", "seed"]
    for (width, decay, _), own in replication_runs.sort_values("step").groupby(runs):
        look = {"color": colors[width], "ls": dashes[decay], "lw": 0.9}
        own = own.set_index("tokens_per_weight")
        low = own.loc[own["role"] == "low_bit", LOSS[0]]
        full = own.loc[own["role"] == "fp32", "nll_nats_per_token"]
        low, full = (c.rolling(SMOOTH, center=True, min_periods=1).mean() for c in (low, full))
        added.plot(low.where(low > 0), **look)
        fp32.plot(full - full.min(), **look)
    for width, color in colors.items():
        added.plot([], [], color=color, label=f"width {width}")
    style.explain_dashes(added, dashes, "weight decay")
    added.plot(printed_losses(table1), "s", ms=3.5, mew=0, color=BLUE,
               label=f"paper's Table 1 ({PAPER_MODEL})")  # fmt: skip
    fp32.set(ylim=(0, min(1.0, fp32.get_ylim()[1])), ylabel="nats/token")
    added.set_ylabel("nats/token (log)")
    style.log_axis(added.yaxis, added.xaxis, fp32.xaxis)
    for axes in (added, fp32):
        axes.set_xlabel("tokens seen per weight of the blocks (log)")
    style.legends(figure.axes, [2])
    return figure


if __name__ == "__main__":
    style.run(draw, snakemake)
