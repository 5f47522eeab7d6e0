"""Draw figure 15: added loss against the tokens that a weight has seen, by width and decay."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_MODEL
from flatminima.scaling_law import printed_losses
from flatminima.style import BLUE, LOSS

RUN_KEYS = ["width", "weight_decay", "seed"]
SMOOTH = 5  # probes in a running mean, for the eye


def draw(replication_runs: pd.DataFrame, table1: pd.DataFrame, suite: dict) -> Figure:
    """Added loss and FP32 loss over tokens per weight of the blocks, one line per run.

    ``table1`` is the paper's; its gaps are drawn as losses.
    """
    color_of_width = style.shades(sorted(replication_runs["width"].unique()))
    dashes_of_decay = style.dash_patterns(sorted(replication_runs["weight_decay"].unique()))
    low_bit_name = style.role_labels(replication_runs, suite)["low_bit"]
    figure, (loss_axes, fp32_axes) = style.row_of_panels(
        f"{suite['label']}: tokens seen, width and loss",
        [f"loss added by {low_bit_name}", "FP32 loss above the run's best"],
        height=3.2,
    )
    for (width, decay, _), run in replication_runs.sort_values("step").groupby(RUN_KEYS):
        look = {"color": color_of_width[width], "ls": dashes_of_decay[decay], "lw": 0.9}
        by_tokens = run.set_index("tokens_per_weight")
        added_loss = _smoothed(by_tokens.loc[by_tokens["role"] == "low_bit", LOSS[0]])
        fp32_loss = _smoothed(by_tokens.loc[by_tokens["role"] == "fp32", "nll_nats_per_token"])
        loss_axes.plot(added_loss.where(added_loss > 0), **look)
        fp32_axes.plot(fp32_loss - fp32_loss.min(), **look)
    for width, color in color_of_width.items():
        # Empty curves: the legend names widths once, not every run.
        loss_axes.plot([], [], color=color, label=f"width {width}")
    style.explain_dashes(loss_axes, dashes_of_decay, "weight decay")
    loss_axes.plot(
        printed_losses(table1),
        "s",
        ms=3.5,
        mew=0,
        color=BLUE,
        label=f"paper's Table 1 ({PAPER_MODEL})",
    )
    fp32_axes.set(ylim=(0, min(1.0, fp32_axes.get_ylim()[1])), ylabel="nats/token")
    loss_axes.set_ylabel("nats/token (log)")
    style.log_axis(loss_axes.yaxis, loss_axes.xaxis, fp32_axes.xaxis)
    for axes in (loss_axes, fp32_axes):
        axes.set_xlabel("tokens seen per weight of the blocks (log)")
    style.legends(figure.axes, [2])
    return figure


def _smoothed(losses: pd.Series) -> pd.Series:
    return losses.rolling(SMOOTH, center=True, min_periods=1).mean()


if __name__ == "__main__":
    style.run(draw, snakemake)
