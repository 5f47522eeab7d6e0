"""Draw figure 2: weight excess kurtosis along training, and against the low-bit gap."""

from collections.abc import Sequence

import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.absent_steps import left_out_words
from flatminima.hypothesis_tests import join_notes
from flatminima.statistics_table import kurtosis_rows, late_checkpoints
from flatminima.style import GREY

SUMMARIES = {"mean_over_tensors": ("mean over tensors", "-"),
             "pooled": ("pooled weights", style.DASHED)}  # fmt: skip
TURNS = ("levels", "detrended", "differences")


def draw(kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict) -> Figure:
    """Excess kurtosis over steps, and beside it the gap against it in phase 3.

    Where no onset was found the relations are those after FP32 convergence. Their axis spans all
    that kurtosis moves over the run, so that a small part of it looks small. r with its 95 %
    interval is that of statistics.csv. The paper's figure 2, section 4.5.
    """
    title = f"{suite['label']}: excess kurtosis of the weights"
    figure = style.page(join_notes(title, left_out_words(phases)), 3.4)
    course, *relations = figure.subplots(1, 3)
    relations[1].sharey(relations[0])
    relations[1].tick_params(labelleft=False)
    _draw_course(course, kurtosis)
    style.shade_phases([course], phases)
    _draw_relations(relations, kurtosis, audit, phases, suite)
    return figure


def _draw_course(axes: Axes, kurtosis: pd.DataFrame) -> None:
    values = kurtosis["excess_kurtosis"]
    words = style.choose_scale(axes, values, decisive=values.clip(lower=1), span=100)
    wide = kurtosis[kurtosis["statistic"] == "per_tensor"].pivot(
        index="step", columns="tensor", values="excess_kurtosis"
    )
    for line in axes.plot(wide, color=GREY, lw=0.4, alpha=0.6):
        line.set_label(None)
    line.set_label(f"each of {wide.shape[1]} tensors")
    for statistic, (name, dashes) in SUMMARIES.items():
        part = kurtosis[kurtosis["statistic"] == statistic]
        axes.plot(part["step"], part["excess_kurtosis"], color="black", ls=dashes, lw=1.6,
                  label=name)  # fmt: skip
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)
    axes.set_ylabel(f"excess kurtosis (0: normal){words}")
    style.step_axis(axes, kurtosis["step"].max())
    style.legends([axes])


def _draw_relations(
    panels: Sequence[Axes], kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict
) -> None:
    label, start = late_checkpoints(phases)
    when = label if label == "phase 3" else f"{label} (no onset)"
    low = audit[(audit["role"] == "low_bit") & (audit["step"] >= start)]
    low, even = (style.even(table, suite["spacing"]) for table in (low, kurtosis))
    rows = kurtosis_rows(kurtosis, audit, phases, suite["spacing"])
    found = {(row.comparison, row.test): row for row in rows}
    words = style.choose_scale(panels[0], low["gap_pct"])
    for axes, (statistic, (name, _)) in zip(panels, SUMMARIES.items(), strict=True):
        whole = even[even["statistic"] == statistic]
        part = whole.merge(low, on="step")
        axes.plot(part["excess_kurtosis"], part["gap_pct"], ls="", marker="o", color="black")
        axes.update_datalim([(x, low["gap_pct"].iloc[0]) for x in whole["excess_kurtosis"]])
        axes.autoscale_view()
        axes.xaxis.set_major_locator(ticker.MaxNLocator(3))
        comparison = f"kurtosis {statistic} v low_bit gap ({label})"
        rows = {turn: found[comparison, f"Pearson r, {turn}"] for turn in TURNS}
        lines = [f"{turn} {style.with_interval(row, 2)}" for turn, row in rows.items()]
        axes.set_title("\n".join([when, f"{name}: r [95 %]", *lines]))
        axes.set_xlabel("excess kurtosis")
    panels[0].set_ylabel(f"{style.role_labels(audit, suite)['low_bit']} gap (% of FP32){words}")


if __name__ == "__main__":
    style.run(draw, snakemake)
