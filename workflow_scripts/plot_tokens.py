"""Draw figure 15: added loss against the tokens that a weight has seen, by width and decay."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.scaling_law import PAPER_TOKENS_PER_STEP, PAPER_WEIGHTS
from flatminima.style import BLUE, DASHED, DOTTED, GREY, LOSS, PAPER_MODEL

SMOOTH = 5  # probes in a running mean, for the eye
DASHES = ("-", DASHED, DOTTED)


@style.style()
def draw(replication_runs: pd.DataFrame, table1: pd.DataFrame, suite: dict) -> Figure:
    """Added loss and FP32 loss over tokens per weight of the blocks, a line per run.

    ``replication_runs`` is a table of ``suite`` (key label), ``table1`` the paper's, whose gaps
    are drawn as losses, ln(1 + gap).
    """
    widths, decays = (sorted(replication_runs[key].unique()) for key in ("width", "weight_decay"))
    colors = style.shades(widths)
    dashes = dict(zip(decays, DASHES, strict=False))
    name = style.role_labels(replication_runs, suite)["low_bit"]
    figure, panels = style.row_of_panels(
        f"{suite['label']}: tokens seen, width and loss",
        [f"loss added by {name}", "FP32 loss above the run's best"],
        height=3.2,
    )
    added, fp32 = panels
    groups = replication_runs.sort_values("step").groupby(["width", "weight_decay", "seed"])
    for (width, decay, _), own in groups:
        _draw_run(added, fp32, own, {"color": colors[width], "ls": dashes[decay], "lw": 0.9})
    for width, color in colors.items():
        added.plot([], [], color=color, label=f"width {width}")
    for decay in decays if len(decays) > 1 else ():
        added.plot([], [], color=GREY, ls=dashes[decay], label=f"weight decay {decay:g}")
    seen = table1["step"] * PAPER_TOKENS_PER_STEP / PAPER_WEIGHTS
    added.plot(seen, np.log1p(table1["int4_gap_pct"] / 100), "s", ms=3.5, mew=0, color=BLUE,
               label=f"paper's Table 1 ({PAPER_MODEL})")  # fmt: skip
    fp32.set_ylim(0, min(1.0, fp32.get_ylim()[1]))
    fp32.set_ylabel("nats/token")
    added.set_ylabel("nats/token (log)")
    style.log_axis(added.yaxis)
    for axes in panels:
        style.log_axis(axes.xaxis)
        axes.set_xlabel("tokens seen per weight of the blocks (log scale)")
    style.legends(panels, [2])
    return figure


def _draw_run(added: Axes, fp32: Axes, own: pd.DataFrame, look: dict) -> None:
    low, full = (own[own["role"] == role] for role in ("low_bit", "fp32"))
    smooth = low[LOSS[0]].rolling(SMOOTH, center=True, min_periods=1).mean()
    added.plot(low["tokens_per_weight"], smooth.where(smooth > 0), **look)
    nll = full["nll_nats_per_token"].rolling(SMOOTH, center=True, min_periods=1).mean()
    fp32.plot(full["tokens_per_weight"], nll - nll.min(), **look)


if __name__ == "__main__":
    style.run(draw, snakemake)
