"""Draw figure 15: added loss against the tokens that a weight has seen, by width and decay."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.jobs import run
from flatminima.scaling_law import PAPER_TOKENS_PER_STEP, PAPER_WEIGHTS
from flatminima.style import BLUE, DASHED, DOTTED, GREY, PAPER_MODEL

SMOOTH = 5  # probes in a running mean, for the eye
DASHES = ("-", DASHED, DOTTED)


def main(replication_runs: str, table1: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    style.save(draw(pd.read_csv(replication_runs), pd.read_csv(table1), suite=suite), outputs)


@style.style()
def draw(runs: pd.DataFrame, paper: pd.DataFrame, *, suite: dict) -> Figure:
    """Added loss and FP32 loss over tokens per weight of the blocks, a line per run.

    ``runs`` is replication_runs.csv of ``suite`` (key label), ``paper`` the printed Table 1,
    whose gaps are drawn as losses, ln(1 + gap).
    """
    colors = dict(
        zip(widths := sorted(runs["width"].unique()), style.shades(len(widths)), strict=True)
    )
    dashes = dict(zip(decays := sorted(runs["weight_decay"].unique()), DASHES, strict=False))
    name = style.role_labels(runs, suite)["low_bit"]
    figure, (added, fp32) = style.row_of_panels(
        f"{suite['label']}: tokens seen, width and loss",
        [f"loss added by {name}", "FP32 loss above the run's best"],
        left=0.1,
        wspace=0.25,
    )
    for (width, decay, _), own in runs.groupby(["width", "weight_decay", "seed"]):
        look = {"color": colors[width], "ls": dashes[decay], "lw": 0.9}
        _draw_run(added, fp32, own.sort_values("step"), look)
    for width, color in colors.items():
        added.plot([], [], color=color, label=f"width {width}")
    for decay in decays if len(decays) > 1 else ():
        added.plot([], [], color=GREY, ls=dashes[decay], label=f"weight decay {decay:g}")
    seen = paper["step"].to_numpy(float) * PAPER_TOKENS_PER_STEP / PAPER_WEIGHTS
    gaps = np.log1p(paper["int4_gap_pct"].to_numpy(float) / 100)
    added.plot(seen, gaps, "s", ms=3.5, mew=0, color=BLUE,
               label=f"paper's Table 1 ({PAPER_MODEL})")  # fmt: skip
    added.set(xscale="log", yscale="log", ylabel="nats/token (log)")
    fp32.set(xscale="log", ylabel="nats/token")
    fp32.set_ylim(0, min(1.0, fp32.get_ylim()[1]))
    style.log_axis(added.yaxis)
    for axes in (added, fp32):
        style.log_axis(axes.xaxis)
        axes.set_xlabel("tokens seen per weight of the blocks (log scale)")
    added.set_ylim(top=30)  # room for the legend
    added.legend(loc="upper left")
    return figure


def _draw_run(added: Axes, fp32: Axes, own: pd.DataFrame, look: dict) -> None:
    low, full = (own[own["role"] == role] for role in ("low_bit", "fp32"))
    smooth = low["delta_nll_nats_per_token"].rolling(SMOOTH, center=True, min_periods=1).mean()
    added.plot(low["tokens_per_weight"], smooth.where(smooth > 0), **look)
    nll = full["nll_nats_per_token"].rolling(SMOOTH, center=True, min_periods=1).mean()
    fp32.plot(full["tokens_per_weight"], nll - nll.min(), **look)


if __name__ == "__main__":
    run(main, snakemake)
