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
    audit: pd.DataFrame,
    kurtosis: pd.DataFrame,
    scaling_law: dict,
    table1: pd.DataFrame,
    suite: dict,
) -> Figure:
    """Added loss (nats per token) against tokens per weight of the blocks, both logarithmic.

    ``kurtosis`` has the count of weights, ``table1`` is the paper's. Lines are solid where they
    were fitted and dashed beyond. The bar at the end is the 95 % interval of a new checkpoint.
    """
    low_bit_name = style.role_labels(audit, suite)["low_bit"]
    low_bit = style.even(audit[audit["role"] == "low_bit"], suite["spacing"]).sort_values("step")
    # The pooled kurtosis counts every weight of the blocks once.
    weights = kurtosis.loc[kurtosis["statistic"] == "pooled", "n_weights"].iloc[0]
    figure = style.page(f"{suite['label']}: added loss against its power law", 3.8)
    axes = figure.subplots()
    _draw_run(
        axes,
        label=f"paper's Table 1 ({PAPER_MODEL})",
        color=BLUE,
        marker="s",
        losses=printed_losses(table1),
        law=printed_excess(table1),
        weights=PAPER_WEIGHTS,
    )
    if low_bit["tokens_seen"].notna().all():
        tokens_per_weight = low_bit["tokens_seen"] / weights
        _draw_run(
            axes,
            label="this suite",
            color="black",
            marker="o",
            losses=low_bit.set_index(tokens_per_weight)[LOSS[0]],
            law=scaling_law,
            weights=weights,
        )
    style.log_axis(axes.xaxis, axes.yaxis)
    axes.set_xlabel("tokens seen per weight of the blocks (log scale)")
    axes.set_ylabel(f"loss added by {low_bit_name} (nats/token, log scale)")
    style.legends([axes])
    return figure


def _draw_run(
    axes: Axes,
    *,
    label: str,
    color: str,
    marker: str,
    losses: pd.Series,
    law: Mapping,
    weights: int,
) -> None:
    """The losses of one run by tokens per weight, and the power law that was fitted to them.

    ``law`` is scaling_law.json. Where no law could be fitted, it has a reason instead.
    """
    is_fitted = "exponent" in law
    description = law.get("reason")
    if is_fitted:
        description = (
            f"exponent {law['exponent']:.2f}, at the end {law['excess']:.3g} times the law "
            f"[{law['excess_low']:.2g}, {law['excess_high']:.2g}]"
        )
    axes.plot(
        losses[losses > 0],
        ls="",
        marker=marker,
        color=color,
        mew=0,
        label=f"{label}: {description}",
    )
    if not is_fitted:
        return
    # Solid over the checkpoints that were fitted, dashed where the law is continued.
    start, stop, end = law["tokens_start"], law["tokens_stop"], law["tokens_end"]
    for first, last, linestyle in ((start, stop, "-"), (stop, end, DASHED)):
        tokens = np.array([first, last])
        predicted = law["predicted_nats"] * (tokens / end) ** law["exponent"]
        axes.plot(tokens / weights, predicted, color=color, lw=1.0, ls=linestyle, zorder=1)
    axes.vlines(
        end / weights,
        law["predicted_low_nats"],
        law["predicted_high_nats"],
        color=color,
        lw=2.5,
        alpha=0.35,
        zorder=1,
    )


if __name__ == "__main__":
    style.run(draw, snakemake)
