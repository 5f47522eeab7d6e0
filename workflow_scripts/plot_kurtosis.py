"""Draw figure 2: weight excess kurtosis along training, and against the low-bit gap."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.absent_steps import left_out_words
from flatminima.hypothesis_tests import join_notes
from flatminima.statistics_table import kurtosis_rows, late_checkpoints
from flatminima.style import GREY

# Label and line style of the two statistics of the whole model.
SUMMARIES = {
    "mean_over_tensors": ("mean over tensors", "-"),
    "pooled": ("pooled weights", style.DASHED),
}
# Names of the correlations in print. A common trend raises only the first.
CORRELATIONS = {
    "levels": "series",
    "differences": "changes",
}
_TENSOR_NAME = re.compile(r"(\d+)\.(?:.*\.)?(\w+)\.weight$")  # number of the layer, last name
_STANDS_OUT = 2.0  # times the next highest tensor


def draw(kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Excess kurtosis over steps, and the gap against kurtosis in phase 3.

    Where no onset was found, the relations are those after FP32 convergence. Their x axes span
    the points, and their labels say how small a part of the run's range that is. r and its 95 %
    interval are those of statistics.csv. The paper's figure 2, section 4.5.
    """
    title = f"{suite['label']}: excess kurtosis of the weights"
    figure, (course_axes, *relation_panels) = style.row_of_panels(
        join_notes(title, f"b, c: {_when(phases)}", left_out_words(phases)),
        ["along the run", "mean over tensors", "pooled weights"],
        height=3.6,
    )
    relation_panels[1].sharey(relation_panels[0])
    relation_panels[1].tick_params(labelleft=False)
    _draw_course(course_axes, kurtosis)
    style.shade_phases([course_axes], phases)
    _draw_relations(relation_panels, kurtosis, audit, phases, suite)
    return figure


def _when(phases: dict) -> str:
    """Which checkpoints the relations use."""
    period, _ = late_checkpoints(phases)
    if period == "phase 3":
        return "after the onset"
    return "after FP32 convergence (no onset)"


def _draw_course(axes: Axes, kurtosis: pd.DataFrame) -> None:
    """Kurtosis of each tensor (thin) and of the model (thick) over steps."""
    values = kurtosis["excess_kurtosis"]
    scale_note = style.choose_scale(axes, values, decisive=values.clip(lower=1), span=100)
    by_tensor = kurtosis[kurtosis["statistic"] == "per_tensor"].pivot(
        index="step", columns="tensor", values="excess_kurtosis"
    )
    lines = axes.plot(by_tensor, color=GREY, lw=0.4, alpha=0.6)
    for line in lines:
        line.set_label(None)
    # One entry in the legend stands for all tensors.
    lines[-1].set_label(f"each of {by_tensor.shape[1]} tensors")
    _name_outlier(axes, by_tensor)
    for statistic, (label, linestyle) in SUMMARIES.items():
        curve = kurtosis[kurtosis["statistic"] == statistic]
        axes.plot(
            curve["step"],
            curve["excess_kurtosis"],
            color="black",
            ls=linestyle,
            lw=1.6,
            label=label,
        )
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)
    axes.set_ylabel(f"excess kurtosis (0: normal){scale_note}")
    style.step_axis(axes, kurtosis["step"].max())
    style.legends([axes])


def _name_outlier(axes: Axes, by_tensor: pd.DataFrame) -> None:
    """The name of the tensor that ends far above all others, at the end of its line."""
    last_values = by_tensor.iloc[-1].sort_values()
    if len(last_values) < 2 or last_values.iloc[-1] < _STANDS_OUT * last_values.iloc[-2]:
        return
    name = last_values.index[-1]
    match = _TENSOR_NAME.search(name)
    axes.annotate(
        f"layer {match[1]}\n{match[2]}" if match else name,
        (by_tensor.index[-1], last_values.iloc[-1]),
        (-3, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        color=GREY,
    )


def _draw_relations(
    panels: Sequence[Axes], kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict
) -> None:
    """The low-bit gap against both statistics of kurtosis, at the late checkpoints."""
    spacing = suite["spacing"]
    period, start = late_checkpoints(phases)
    is_late_low_bit = (audit["role"] == "low_bit") & (audit["step"] >= start)
    low_bit = style.even(audit[is_late_low_bit], spacing)
    even_kurtosis = style.even(kurtosis, spacing)
    rows = kurtosis_rows(kurtosis, audit, phases, spacing)
    row_of_test = {(row.comparison, row.test): row for row in rows}
    scale_note = style.choose_scale(panels[0], low_bit["gap_pct"])
    for axes, statistic in zip(panels, SUMMARIES, strict=True):
        over_the_run = even_kurtosis[even_kurtosis["statistic"] == statistic]
        late = over_the_run.merge(low_bit, on="step")
        axes.plot(late["excess_kurtosis"], late["gap_pct"], ls="", marker="o", color="black")
        axes.xaxis.set_major_locator(ticker.MaxNLocator(3))
        share = np.ptp(late["excess_kurtosis"]) / np.ptp(over_the_run["excess_kurtosis"])
        axes.set_xlabel(f"excess kurtosis\n({100 * share:.0f} % of its range over the run)")
        title_lines = [axes.get_title(loc="left")]
        for correlation, printed_name in CORRELATIONS.items():
            comparison = f"kurtosis {statistic} v low_bit gap ({period})"
            row = row_of_test[comparison, f"Pearson r, {correlation}"]
            title_lines.append(f"r, {printed_name} {style.with_interval(row, 2)}")
        axes.set_title("\n".join(title_lines))
    low_bit_name = style.role_labels(audit, suite)["low_bit"]
    panels[0].set_ylabel(f"{low_bit_name} gap (% of FP32){scale_note}")


if __name__ == "__main__":
    style.run(draw, snakemake)
