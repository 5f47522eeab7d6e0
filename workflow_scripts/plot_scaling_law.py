"""Draw figure 14: the low-bit loss against its own power law, beside the paper's ten rows."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.paper import PAPER_MODEL, PAPER_WEIGHTS
from flatminima.scaling_law import printed_excess, printed_losses
from flatminima.style import BLUE, DASHED, LOSS


def draw(
    audit: pd.DataFrame, kurtosis: pd.DataFrame, scaling_law: dict, table1: pd.DataFrame,
    suite: dict,
) -> Figure:  # fmt: skip
    """Added loss (nats per token) against tokens per weight of the blocks, both logarithmic.

    ``kurtosis`` has the count of weights, ``table1`` is the paper's. Lines are solid where they
    were fitted and dashed beyond; the bar at the end is the 95 % interval of a new checkpoint.
    """
    name = style.role_labels(audit, suite)["low_bit"]
    own = style.even(audit[audit["role"] == "low_bit"], suite["spacing"]).sort_values("step")
    weights = kurtosis.loc[kurtosis["statistic"] == "pooled", "n_weights"].iloc[0]
    figure = style.page(f"{suite['label']}: added loss against its power law", 3.8)
    axes = figure.subplots()
    losses, law = printed_losses(table1), printed_excess(table1)
    _draw_side(axes, f"paper's Table 1 ({PAPER_MODEL})", BLUE, "s", losses, law, PAPER_WEIGHTS)
    if own["tokens_seen"].notna().all():
        losses = own.set_index(own["tokens_seen"] / weights)[LOSS[0]]
        _draw_side(axes, "this suite", "black", "o", losses, scaling_law, weights)
    style.log_axis(axes.xaxis, axes.yaxis)
    axes.set_xlabel("tokens seen per weight of the blocks (log scale)")
    axes.set_ylabel(f"loss added by {name} (nats/token, log scale)")
    style.legends([axes])
    return figure


def _draw_side(
    axes: Axes, label: str, color: str, marker: str, losses: pd.Series, law: Mapping, weights: int
) -> None:
    """``losses`` by tokens per weight, and the power law that was fitted to them."""
    fitted, words = "exponent" in law, law.get("reason")
    if fitted:
        words = (
            f"exponent {law['exponent']:.2f}, at the end {law['excess']:.3g} times the law "
            f"[{law['excess_low']:.2g}, {law['excess_high']:.2g}]"
        )
    axes.plot(losses[losses > 0], ls="", marker=marker, color=color, mew=0,
              label=f"{label}: {words}")  # fmt: skip
    if not fitted:
        return
    end, stop = law["tokens_end"], law["tokens_stop"]
    for first, last, dashes in ((law["tokens_start"], stop, "-"), (stop, end, DASHED)):
        x = np.array([first, last])
        y = law["predicted_nats"] * (x / end) ** law["exponent"]
        axes.plot(x / weights, y, color=color, lw=1.0, ls=dashes, zorder=1)
    axes.vlines(end / weights, law["predicted_low_nats"], law["predicted_high_nats"], color=color,
                lw=2.5, alpha=0.35, zorder=1)  # fmt: skip


if __name__ == "__main__":
    style.run(draw, snakemake)
