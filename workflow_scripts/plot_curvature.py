"""Draw figure 10: curvature of the loss along training, and against what rounding adds."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.style import GREY, LOSS


@style.style()
def draw(curvature: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Trace and largest eigenvalue by step, and the low-bit loss against the trace.

    ``curvature`` is curvature.csv, ``audit`` is audit.csv of ``suite`` (key label).
    Intervals are 95 %: of the trace over random vectors, of the eigenvalue over batches,
    of the loss over sequences.
    """
    rows = curvature[curvature["step"] > 0].sort_values("step")
    name = style.role_labels(audit, suite)["low_bit"]
    figure, panels = style.row_of_panels(
        f"{suite['label']}: how flat is the minimum?",
        ["trace of the Hessian", "largest eigenvalue", f"loss added by {name}"],
    )
    for axes, column, label in zip(
        panels, ("trace", "top_eigenvalue"), ("trace", "eigenvalue"), strict=False
    ):
        style.band(axes, rows["step"], rows, _ends(column), color="black", marker="o", ms=2.5)
        style.mark_best(axes, phases)
        axes.set_ylabel(f"{label} (nats/token per unit²)")
        axes.set_ylim(bottom=0)
        style.step_axis(axes, rows["step"].max())
    low = style.with_ends(audit[audit["role"] == "low_bit"]).set_index("step")
    _draw_relation(panels[2], rows, low.reindex(rows["step"]))
    panels[2].set_ylabel(f"loss added by {name} (nats/token)")
    style.legends(panels)
    return figure


def _ends(column: str) -> list[str]:
    return [column, f"{column}_low", f"{column}_high"]


def _draw_relation(axes: Axes, rows: pd.DataFrame, loss: pd.DataFrame) -> None:
    (x, across), (y, up) = style.with_bars(rows, _ends("trace")), style.with_bars(loss, LOSS)
    axes.plot(x, y, color=GREY, lw=0.5, zorder=1)
    for place, color in style.shades(range(len(x))).items():
        step = rows["step"].iloc[place]
        axes.errorbar(x[place], y[place], up[:, [place]], across[:, [place]], marker="o",
                      color=color, elinewidth=0.6,
                      label=f"step {step:,}" if place in (0, len(x) - 1) else None)  # fmt: skip
    axes.set_xlabel("trace; points are steps")


if __name__ == "__main__":
    style.run(draw, snakemake)
