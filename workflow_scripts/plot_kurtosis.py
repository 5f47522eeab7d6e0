"""Draw figure 2: weight excess kurtosis along training, and against the low-bit gap."""

from collections.abc import Sequence

import pandas as pd
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.comparisons import kurtosis_rows
from flatminima.files import read_json
from flatminima.hypothesis_tests import Row, join_notes
from flatminima.jobs import run
from flatminima.missing import missing_words
from flatminima.style import GREY

SUMMARIES = {
    "mean_over_tensors": ("mean over\ntensors", "-"),
    "pooled": ("pooled\nweights", style.DASHED),
}
TURNS = ("levels", "detrended", "differences")


def main(kurtosis: str, audit: str, phases: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` has the keys label and spacing."""
    drawing = draw(pd.read_csv(kurtosis), pd.read_csv(audit), read_json(phases), suite=suite)
    style.save(drawing, outputs)


@style.style()
def draw(kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, *, suite: dict) -> Figure:
    """Excess kurtosis over steps, and beside it the gap against it in phase 3.

    The gap stands against each definition of kurtosis in a panel of its own. Where no onset
    was found these panels show the checkpoints after FP32 convergence and say so. Their axis
    spans all that kurtosis moves over the run, so that a small part of it looks small. r with
    its 95 % interval is that of statistics.csv. The paper's figure 2, section 4.5.
    """
    figure = Figure(figsize=(style.PAGE_IN, 3.4))
    grid = figure.add_gridspec(
        1, 2, width_ratios=(1, 1.6), wspace=0.48, left=0.07, right=0.985, bottom=0.13, top=0.7
    )
    course = figure.add_subplot(grid[0])
    course.set_xlim(0, kurtosis["step"].max())
    style.draw_phases([course], style.named_segments(phases))
    _draw_course(course, kurtosis)
    relations = grid[1].subgridspec(1, len(SUMMARIES), wspace=0.14).subplots(sharey=True)
    _draw_relations(relations, kurtosis, audit, phases, suite)
    title = join_notes(f"{suite['label']}: excess kurtosis of the weights", missing_words(phases))
    style.put_title(figure, title, x=0.07, y=0.975)
    return figure


def _draw_course(axes: Axes, kurtosis: pd.DataFrame) -> None:
    words = style.choose_scale(axes.yaxis, kurtosis["excess_kurtosis"], unit=1.0, span=100.0)
    tensors = kurtosis[kurtosis["statistic"] == "per_tensor"]
    for _, part in tensors.groupby("tensor"):
        axes.plot(part["step"], part["excess_kurtosis"], color=GREY, lw=0.4, alpha=0.6)
    axes.axhline(0, color=GREY, lw=0.5, zorder=0)
    ends = []
    for statistic, (name, look) in SUMMARIES.items():
        part = kurtosis[kurtosis["statistic"] == statistic]
        axes.plot(part["step"], part["excess_kurtosis"], color="black", ls=look, lw=1.6)
        ends.append((name, part["excess_kurtosis"].iloc[-1], "black"))
    style.end_labels(axes, ends)
    widest = tensors.loc[tensors["excess_kurtosis"].idxmax()]
    style.place_label(
        axes, widest["step"], widest["excess_kurtosis"],
        f"each of {tensors['tensor'].nunique()} tensors", color=GREY,
    )  # fmt: skip
    axes.set_ylabel("excess kurtosis (0: normal)" + (f"\n{words}" if words else ""))
    style.step_axis(axes)
    axes.locator_params(axis="x", nbins=3)


def _draw_relations(
    panels: Sequence[Axes], kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, suite: dict
) -> None:
    # The selection of kurtosis_rows, whose correlations are printed.
    start, label, title = phases["onset"]["step"], "phase 3", "phase 3"
    if start is None:
        start, label = phases["convergence"]["step"], "after convergence"
        title = "after FP32 convergence (no onset found)"
    low = style.even(
        audit[(audit["role"] == "low_bit") & (audit["step"] >= start)], suite["spacing"]
    )
    rows = kurtosis_rows(kurtosis, audit, phases, suite["spacing"])
    found = {(row.comparison, row.test): row for row in rows}
    even = style.even(kurtosis, suite["spacing"])
    words = style.choose_scale(panels[0].yaxis, low["gap_pct"])
    for axes, (statistic, (name, _)) in zip(panels, SUMMARIES.items(), strict=True):
        part = kurtosis[kurtosis["statistic"] == statistic].merge(low, on="step")
        axes.plot(part["excess_kurtosis"], part["gap_pct"], ls="", marker="o", color="black")
        whole = even.loc[even["statistic"] == statistic, "excess_kurtosis"]
        spare = 0.06 * (whole.max() - whole.min() or 1.0)
        axes.set_xlim(whole.min() - spare, whole.max() + spare)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(3))
        comparison = f"kurtosis {statistic} v low_bit gap ({label})"
        lines = [f"{name.replace(chr(10), ' ')}: r [95 %]"] + [
            f"{turn} {_correlation(found[comparison, f'Pearson r, {turn}'])}" for turn in TURNS
        ]
        axes.annotate("\n".join(lines), (0, 1), (0, 4), xycoords="axes fraction",
                      textcoords="offset points")  # fmt: skip
        axes.set_xlabel("excess kurtosis")
    panels[0].set_title(title, loc="left", pad=50, color=GREY)
    name = style.role_labels(audit, suite)["low_bit"]
    panels[0].set_ylabel(f"{name} gap (% of FP32)" + (f"\n{words}" if words else ""))


def _correlation(row: Row) -> str:
    """What is printed of one correlation."""
    if pd.isna(row.value):
        return "none"
    ends = f"[{row.interval_low:.1f}, {row.interval_high:.1f}]"
    return f"{row.value:.2f} {ends}".replace("-", "−")


if __name__ == "__main__":
    run(main, snakemake)
