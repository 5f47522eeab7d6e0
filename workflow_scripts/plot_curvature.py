"""Draw figure 10: curvature of the loss along training, and against what rounding adds."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.files import read_json
from flatminima.jobs import run
from flatminima.style import (
    GREY,
    band,
    mark_best,
    role_labels,
    row_of_panels,
    save,
    shades,
    step_ticks,
    style,
)


def draw(curvature: pd.DataFrame, audit: pd.DataFrame, phases: dict, *, suite: dict) -> Figure:
    """Trace and largest eigenvalue by step, and the low-bit loss against the trace.

    ``curvature`` is curvature.csv, ``audit`` is audit.csv of ``suite`` (key label).
    Intervals are 95 %: of the trace over random vectors, of the eigenvalue over batches,
    of the loss over sequences.
    """
    rows = curvature[curvature["step"] > 0].sort_values("step")
    name = role_labels(audit, suite)["low_bit"]
    with style():
        figure, (trace, top, relation) = row_of_panels(
            f"{suite['label']}: how flat is the minimum?",
            ["trace of the Hessian", "largest eigenvalue", f"loss added by {name}"],
        )  # fmt: skip
        for axes, column, label in (
            (trace, "trace", "trace (nats/token per unit²)"),
            (top, "top_eigenvalue", "eigenvalue (nats/token per unit²)"),
        ):
            band(axes, rows["step"], rows, [column, f"{column}_low", f"{column}_high"],
                 color="black", marker="o", ms=2.5)  # fmt: skip
            axes.set_ylabel(label)
            axes.set_ylim(0, 1.08 * rows[f"{column}_high"].max())
            step_ticks(axes, int(rows["step"].max()))
            mark_best(axes, phases, name=axes is trace, top=0.34)
        _draw_relation(relation, rows, audit, name)
    return figure


def _draw_relation(axes: Axes, rows: pd.DataFrame, audit: pd.DataFrame, name: str) -> None:
    low = audit[audit["role"] == "low_bit"].set_index("step").reindex(rows["step"])
    value = low["delta_nll_nats_per_token"].to_numpy()
    bounds = [np.log1p(low[f"gap_{end}_pct"].to_numpy() / 100) for end in ("low", "high")]
    horizontal = rows["trace"].to_numpy()
    spread = np.clip([horizontal - rows["trace_low"], rows["trace_high"] - horizontal], 0, None)
    errors = np.clip([value - bounds[0], bounds[1] - value], 0, None)
    axes.plot(horizontal, value, color=GREY, lw=0.5, zorder=1)
    for place, (x, y, color) in enumerate(zip(horizontal, value, shades(len(value)), strict=True)):
        axes.errorbar(x, y, errors[:, [place]], spread[:, [place]], marker="o", ms=3, color=color,
                      elinewidth=0.6)  # fmt: skip
    for place, aside, side in ((0, (-3, 6), "left"), (-1, (-5, 3), "right")):
        axes.annotate(f"{rows['step'].iloc[place]:,}", (horizontal[place], value[place]), aside,
                      textcoords="offset points", color=GREY, ha=side)  # fmt: skip
    axes.set_xlabel("trace; points are steps, in order")
    axes.set_ylabel(f"loss added by {name} (nats/token)")


def main(*, curvature: str, audit: str, phases: str, suite: dict, outputs: list) -> None:
    """Write the figure (pdf, svg, png)."""
    tables = pd.read_csv(curvature), pd.read_csv(audit)
    save(draw(*tables, read_json(phases), suite=suite), outputs)


if __name__ == "__main__":
    run(main, snakemake)
