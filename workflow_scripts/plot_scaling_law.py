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
from flatminima.style import PAPER_MODEL

BLUE = "#0173b2"


def main(audit: str, kurtosis: str, law: str, paper_table: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` has label and spacing."""
    drawing = draw(
        pd.read_csv(audit), block_weights(pd.read_csv(kurtosis)), read_json(law),
        pd.read_csv(paper_table), suite=suite,
    )  # fmt: skip
    style.save(drawing, outputs)


def block_weights(kurtosis: pd.DataFrame) -> int:
    """Weights of the linear layers whose kurtosis was measured."""
    first = kurtosis[kurtosis["step"] == kurtosis["step"].min()]
    return int(first.loc[first["statistic"] == "pooled", "n_weights"].iloc[0])


def draw(
    audit: pd.DataFrame, weights: int, law: Mapping, paper: pd.DataFrame, *, suite: dict
) -> Figure:
    """Added loss (nats per token) against tokens per weight of the blocks, both logarithmic.

    ``audit`` is audit.csv, ``law`` is scaling_law.json of ``suite`` (keys label, spacing),
    ``paper`` the printed Table 1. Lines are solid where they were fitted and dashed beyond;
    the bar at the end is the 95 % interval of a new checkpoint.
    """
    even = audit[(audit["step"] > 0) & (audit["step"] % suite["spacing"] == 0)]
    own = even[even["role"] == "low_bit"].sort_values("step")
    sides = [
        (f"paper's Table 1 ({PAPER_MODEL})", "s", BLUE,
         paper["step"].to_numpy(float) * PAPER_TOKENS_PER_STEP,
         np.log1p(paper["int4_gap_pct"].to_numpy(float) / 100), PAPER_WEIGHTS,
         printed_excess(paper, PAPER_TOKENS_PER_STEP)),
    ]  # fmt: skip
    if own["tokens_seen"].notna().all():
        sides.append((suite["label"], "o", "black", own["tokens_seen"].to_numpy(float),
                      own["delta_nll_nats_per_token"].to_numpy(float), weights, law))  # fmt: skip
    with style.style():
        figure = Figure(figsize=(style.PAGE_IN, 3.6))
        axes = figure.subplots(
            gridspec_kw={"left": 0.09, "right": 0.985, "bottom": 0.13, "top": 0.88}
        )
        for label, marker, color, tokens, delta, per, found in sides:
            _draw_side(axes, label, marker, color, tokens, delta, per, found)
        axes.set(xscale="log", yscale="log")
        style.log_axis(axes.xaxis)
        style.log_axis(axes.yaxis)
        axes.set_xlabel("tokens seen per weight of the blocks (log scale)")
        axes.set_ylabel("loss added by INT4 (nats/token, log scale)")
        style.legend(axes, loc="upper left", handlelength=1.5)
        style.put_title(
            figure, f"{suite['label']}: added loss against its power law", x=0.09, y=0.975
        )
    return figure


def _draw_side(
    axes: Axes, label: str, marker: str, color: str, tokens: np.ndarray, delta: np.ndarray,
    weights: int, law: Mapping,
) -> None:  # fmt: skip
    axes.plot(tokens[delta > 0] / weights, delta[delta > 0], ls="", marker=marker, ms=3.5,
              color=color, mew=0, label=_words(label, law))  # fmt: skip
    if "exponent" not in law:
        return
    end = law["tokens_end"]
    for first, last, dashes in (
        (law["tokens_start"], law["tokens_stop"], "-"),
        (law["tokens_stop"], end, (0, (4, 1.5))),
    ):
        x = np.array([first, last])
        y = law["predicted_nats"] * (x / end) ** law["exponent"]
        axes.plot(x / weights, y, color=color, lw=1.0, ls=dashes, zorder=1)
    axes.vlines(
        end / weights, law["predicted_low_nats"], law["predicted_high_nats"], color=color, lw=2.5,
        alpha=0.35, zorder=1,
    )  # fmt: skip


def _words(label: str, law: Mapping) -> str:
    if "exponent" not in law:
        return f"{label}: {law['reason']}"
    return (
        f"{label}: exponent {law['exponent']:.2f}, at the end {law['excess']:.3g} times the law "
        f"[{law['excess_low']:.2g}, {law['excess_high']:.2g}]"
    )


if __name__ == "__main__":
    run(main, snakemake)
