"""Draw figure 10: curvature of the loss along training, and against what rounding adds."""

import pandas as pd
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import GREY, LOSS

TRACE, TOP = ([c, f"{c}_low", f"{c}_high"] for c in ("trace", "top_eigenvalue"))


def draw(curvature: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Trace and largest eigenvalue by step, and the low-bit loss against the trace.

    Intervals are 95 %: of the trace over random vectors, of the eigenvalue over batches,
    of the loss over sequences.
    """
    rows = curvature[curvature["step"] > 0].sort_values("step")
    name = style.role_labels(audit, suite)["low_bit"]
    figure, (trace, top, relation) = style.row_of_panels(
        f"{suite['label']}: how flat is the minimum?",
        ["trace of the Hessian", "largest eigenvalue", f"loss added by {name}"],
    )
    for axes, columns, label in ((trace, TRACE, "trace"), (top, TOP, "eigenvalue")):
        style.band(axes, rows["step"], rows, columns, color="black", marker="o", ms=2.5)
        axes.set(ylabel=f"{label} (nats/token per unit²)", ylim=(0, None))
    style.along_the_run([trace, top], rows["step"].max(), phases)
    loss = style.with_ends(audit[audit["role"] == "low_bit"]).set_index("step")
    loss = loss.reindex(rows["step"])
    relation.plot(rows["trace"], loss[LOSS[0]], color=GREY, lw=0.5, zorder=1)
    (x, across), (y, up) = style.with_bars(rows, TRACE), style.with_bars(loss, LOSS)
    for at, (step, color) in enumerate(style.shades(list(rows["step"])).items()):
        relation.errorbar(x[at], y[at], up[:, [at]], across[:, [at]], marker="o", color=color,
                          elinewidth=0.6,
                          label=f"step {step:,}" if at in (0, len(x) - 1) else None)  # fmt: skip
    relation.set(xlabel="trace; points are steps", ylabel=f"loss added by {name} (nats/token)")
    style.legends(figure.axes)
    return figure


if __name__ == "__main__":
    style.run(draw, snakemake)
