"""Draw figure 14: the low-bit loss against its own power law, beside the paper's ten rows."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.scaling_law import PAPER_TOKENS_PER_STEP, PAPER_WEIGHTS, printed_excess
from flatminima.style import DASHED, LOSS, PAPER_MODEL, Look

OWN, PRINTED = Look("black", "-", "o"), Look(style.BLUE, "-", "s")


def main(
    audit: str, kurtosis: str, scaling_law: str, table1: str, outputs: list, suite: dict
) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` has label and spacing."""
    tables = pd.read_csv(audit), pd.read_csv(kurtosis), read_json(scaling_law)
    style.save(draw(*tables, pd.read_csv(table1), suite=suite), outputs)


@style.style()
def draw(
    audit: pd.DataFrame, kurtosis: pd.DataFrame, law: Mapping, paper: pd.DataFrame, *, suite: dict
) -> Figure:
    """Added loss (nats per token) against tokens per weight of the blocks, both logarithmic.

    ``audit``, ``kurtosis`` (for its count of weights) and ``law`` are audit.csv, kurtosis.csv
    and scaling_law.json of ``suite`` (keys label, spacing), ``paper`` the printed Table 1.
    Lines are solid where they were fitted and dashed beyond; the bar at the end is the 95 %
    interval of a new checkpoint.
    """
    name = style.role_labels(audit, suite)["low_bit"]
    own = style.even(audit[audit["role"] == "low_bit"], suite["spacing"]).sort_values("step")
    pooled = kurtosis.loc[kurtosis["statistic"] == "pooled", "n_weights"]
    figure = Figure(figsize=(style.PAGE_IN, 3.8))
    axes = figure.subplots(gridspec_kw={"left": 0.09, "right": 0.985, "bottom": 0.12, "top": 0.83})
    _draw_side(
        axes, f"paper's Table 1 ({PAPER_MODEL})", PRINTED, paper["step"] * PAPER_TOKENS_PER_STEP,
        np.log1p(paper["int4_gap_pct"] / 100), PAPER_WEIGHTS,
        printed_excess(paper, PAPER_TOKENS_PER_STEP),
    )  # fmt: skip
    if own["tokens_seen"].notna().all():
        _draw_side(axes, "this suite", OWN, own["tokens_seen"], own[LOSS[0]], pooled.iloc[0], law)
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    axes.set_xlabel("tokens seen per weight of the blocks (log scale)")
    axes.set_ylabel(f"loss added by {name} (nats/token, log scale)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), borderaxespad=0)
    title = f"{suite['label']}: added loss against its power law"
    style.put_title(figure, title, x=0.09, y=0.98)
    return figure


def _draw_side(
    axes: Axes, label: str, look: Look, tokens: pd.Series, loss: pd.Series, weights: int,
    law: Mapping,
) -> None:  # fmt: skip
    grown = loss > 0
    axes.plot(tokens[grown] / weights, loss[grown], ls="", marker=look.marker, color=look.color,
              mew=0, label=f"{label}: {_words(law)}")  # fmt: skip
    if "exponent" not in law:
        return
    end, stop = law["tokens_end"], law["tokens_stop"]
    for first, last, dashes in ((law["tokens_start"], stop, "-"), (stop, end, DASHED)):
        x = np.array([first, last])
        y = law["predicted_nats"] * (x / end) ** law["exponent"]
        axes.plot(x / weights, y, color=look.color, lw=1.0, ls=dashes, zorder=1)
    axes.vlines(end / weights, law["predicted_low_nats"], law["predicted_high_nats"],
                color=look.color, lw=2.5, alpha=0.35, zorder=1)  # fmt: skip


def _words(law: Mapping) -> str:
    if "exponent" not in law:
        return law["reason"]
    return (
        f"exponent {law['exponent']:.2f}, at the end {law['excess']:.3g} times the law "
        f"[{law['excess_low']:.2g}, {law['excess_high']:.2g}]"
    )


if __name__ == "__main__":
    run(main, snakemake)
