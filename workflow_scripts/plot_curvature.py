"""Draw figure 10: curvature of the loss along training, and against what rounding adds."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import GREY, LOSS

TRACE = ["trace", "trace_low", "trace_high"]
TOP_EIGENVALUE = ["top_eigenvalue", "top_eigenvalue_low", "top_eigenvalue_high"]


def draw(curvature: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Trace and largest eigenvalue by step, and the low-bit loss against the trace.

    Intervals are 95 %: of the trace over random vectors, of the eigenvalue over batches,
    of the loss over sequences.
    """
    # Random weights have a curvature of their own, which would set the scale of the axis.
    rows = curvature[curvature["step"] > 0].sort_values("step")
    low_bit_name = style.role_labels(audit, suite)["low_bit"]
    figure, (trace_axes, eigenvalue_axes, relation_axes) = style.row_of_panels(
        f"{suite['label']}: how flat is the minimum?",
        ["trace of the Hessian", "largest eigenvalue", f"loss added by {low_bit_name}"],
    )
    for axes, columns, label in (
        (trace_axes, TRACE, "trace"),
        (eigenvalue_axes, TOP_EIGENVALUE, "eigenvalue"),
    ):
        style.band(axes, rows["step"], rows, columns, color="black", marker="o", ms=2.5)
        axes.set(ylabel=f"{label} (nats/token per unit²)", ylim=(0, None))
    style.along_the_run([trace_axes, eigenvalue_axes], rows["step"].max(), phases)

    low_bit = style.with_ends(audit[audit["role"] == "low_bit"]).set_index("step")
    _draw_relation(relation_axes, rows, low_bit.reindex(rows["step"]))
    relation_axes.set(
        xlabel="trace; points are steps", ylabel=f"loss added by {low_bit_name} (nats/token)"
    )
    style.legends(figure.axes)
    return figure


def _draw_relation(axes: Axes, curvature: pd.DataFrame, loss: pd.DataFrame) -> None:
    """The added loss against the trace, a point per step from dark to light."""
    axes.plot(curvature["trace"], loss[LOSS[0]], color=GREY, lw=0.5, zorder=1)
    traces, trace_bars = style.with_bars(curvature, TRACE)
    losses, loss_bars = style.with_bars(loss, LOSS)
    for index, (step, color) in enumerate(style.shades(list(curvature["step"])).items()):
        is_end = index in (0, len(traces) - 1)
        axes.errorbar(
            traces[index],
            losses[index],
            loss_bars[:, [index]],
            trace_bars[:, [index]],
            marker="o",
            color=color,
            elinewidth=0.6,
            label=f"step {step:,}" if is_end else None,
        )


if __name__ == "__main__":
    style.run(draw, snakemake)
