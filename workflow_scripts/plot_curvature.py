"""Draw figure 10: curvature of the loss along training, and against what rounding adds."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.style import GREY, LOSS


def main(curvature: str, audit: str, phases: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    tables = pd.read_csv(curvature), pd.read_csv(audit)
    style.save(draw(*tables, read_json(phases), suite=suite), outputs)


@style.style()
def draw(curvature: pd.DataFrame, audit: pd.DataFrame, phases: dict, *, suite: dict) -> Figure:
    """Trace and largest eigenvalue by step, and the low-bit loss against the trace.

    ``curvature`` is curvature.csv, ``audit`` is audit.csv of ``suite`` (key label).
    Intervals are 95 %: of the trace over random vectors, of the eigenvalue over batches,
    of the loss over sequences.
    """
    rows = curvature[curvature["step"] > 0].sort_values("step")
    name = style.role_labels(audit, suite)["low_bit"]
    figure, (trace, top, relation) = style.row_of_panels(
        f"{suite['label']}: how flat is the minimum?",
        ["trace of the Hessian", "largest eigenvalue", f"loss added by {name}"],
    )
    for axes, column, label in ((trace, "trace", "trace"), (top, "top_eigenvalue", "eigenvalue")):
        style.band(axes, rows["step"], rows, [column, f"{column}_low", f"{column}_high"],
                   color="black", marker="o", ms=2.5, clip_on=False)  # fmt: skip
        axes.set_ylabel(f"{label} (nats/token per unit²)")
        axes.set_ylim(0, 1.05 * rows[f"{column}_high"].max())
        style.step_ticks(axes, int(rows["step"].max()))
        style.legend(axes, phases, best=axes is trace)
    low = style.with_ends(audit[audit["role"] == "low_bit"])
    _draw_relation(relation, rows, low.set_index("step").reindex(rows["step"]))
    relation.set_ylabel(f"loss added by {name} (nats/token)")
    return figure


def _draw_relation(axes: Axes, rows: pd.DataFrame, loss: pd.DataFrame) -> None:
    x, x_low, x_high = rows[["trace", "trace_low", "trace_high"]].to_numpy().T
    y, y_low, y_high = loss[LOSS].to_numpy().T
    across, up = (np.clip(ends, 0, None) for ends in ([x - x_low, x_high - x],
                                                      [y - y_low, y_high - y]))  # fmt: skip
    axes.plot(x, y, color=GREY, lw=0.5, zorder=1)
    for place, color in enumerate(style.shades(len(x))):
        axes.errorbar(x[place], y[place], up[:, [place]], across[:, [place]], marker="o",
                      color=color, elinewidth=0.6)  # fmt: skip
    for place, aside, side in ((0, (-3, 6), "left"), (-1, (-5, 3), "right")):
        axes.annotate(f"{rows['step'].iloc[place]:,}", (x[place], y[place]), aside,
                      textcoords="offset points", color=GREY, ha=side)  # fmt: skip
    axes.set_xlabel("trace; points are steps")


if __name__ == "__main__":
    run(main, snakemake)
