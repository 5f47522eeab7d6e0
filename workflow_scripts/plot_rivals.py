"""Draw figure 8: low-bit perplexity against FP32 perplexity of every condition at its end."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.quantizer_specs import FP32, LOW_BIT
from flatminima.style import GREY, LOOKS, SCHEDULES, role_labels

ISO_GAPS_PCT = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Colour, marker and name of each group of conditions.
GROUPS = {
    "paper": (LOOKS["low_bit"].color, "o", "the paper's schedules"),
    "rival": (LOOKS["high_bit"].color, "s", "other training"),
    "average": (LOOKS["oli"].color, "D", "averages, no training"),
}
# If the best and the worst FP32 model differ by more than this factor, axes are logarithmic.
_WIDE = 2.0


def compare(rivals: pd.DataFrame) -> pd.DataFrame:
    """One row per condition, phase and seed: fp32_ppl and low_bit_ppl side by side, and gap_pct."""
    keys = ["group", "schedule", "update_phase", "seed"]
    rivals = rivals.astype({"update_phase": object}).fillna({"update_phase": ""})
    fp32 = rivals.loc[rivals["role"] == FP32, [*keys, "ppl"]].rename(columns={"ppl": "fp32_ppl"})
    low_bit = rivals.loc[rivals["role"] == LOW_BIT, [*keys, "ppl", "gap_pct"]]
    low_bit = low_bit.rename(columns={"ppl": "low_bit_ppl"})
    return fp32.merge(low_bit, on=keys, how="left", validate="one_to_one")


def draw(rivals: pd.DataFrame, suite: dict) -> Figure:
    """Every condition's end in the plane of the two perplexities, and their ranking.

    A marker is the mean over seeds, dots are seeds. A schedule that oscillates counts at the
    last end of a cool phase. Grey lines join equal relative gaps: the gap is only how far a
    point is above the diagonal, while lower is better on both axes. The second panel has both
    perplexities of each condition, the best low-bit one first, and its gap.
    """
    low_bit_name = role_labels(rivals, suite)["low_bit"]
    ends = compare(rivals)
    # A bump ends on purpose with a high loss. Nobody would ship that checkpoint.
    ends = ends[ends["update_phase"] != "bump"]
    by_condition = ends.groupby(["group", "schedule"], sort=False)
    means = by_condition[["fp32_ppl", "low_bit_ppl", "gap_pct"]].mean().reset_index()
    # A stable sort keeps the order of the configuration where two means are equal.
    ranking = means.sort_values("low_bit_ppl", kind="stable")
    figure, (plane_axes, ranking_axes) = style.row_of_panels(
        f"{suite['label']}: {len(ranking)} ways to continue from one checkpoint",
        [f"{low_bit_name} against FP32; grey: equal gaps", f"best {low_bit_name} first, with gap"],
        height=4.8,
        width_ratios=(1.3, 1),
    )
    for group, group_means in ranking.groupby("group", sort=False):
        color, marker, label = GROUPS[group]
        seeds = ends[ends["group"] == group]
        plane_axes.plot(
            seeds["fp32_ppl"], seeds["low_bit_ppl"], ".", ms=2.5, color=color, alpha=0.6
        )
        plane_axes.plot(
            group_means["fp32_ppl"],
            group_means["low_bit_ppl"],
            marker,
            ms=4.5,
            color=color,
            zorder=4,
            label=label,
        )
    if ends["fp32_ppl"].max() > _WIDE * ends["fp32_ppl"].min():
        style.log_axis(plane_axes.xaxis, plane_axes.yaxis, ranking_axes.xaxis)
    _draw_iso_gaps(plane_axes)
    plane_axes.set(
        xlabel="FP32 perplexity at the end", ylabel=f"{low_bit_name} perplexity at the end"
    )
    _draw_ranking(ranking_axes, ranking.reset_index(drop=True), low_bit_name)
    style.legends([plane_axes, ranking_axes])
    return figure


def _draw_iso_gaps(axes: Axes) -> None:
    """Lines of equal relative gap, each named where it leaves the axes."""
    left, right = axes.get_xlim()
    bottom, top = axes.get_ylim()
    for gap in ISO_GAPS_PCT:
        ratio = 1 + gap / 100
        # The line leaves the axes either at the right edge or at the top.
        end = min(right, top / ratio)
        is_inside = end > left and end * ratio > bottom
        if not is_inside:
            continue
        axes.plot([left, end], [left * ratio, end * ratio], color=GREY, lw=0.5, alpha=0.6, zorder=1)
        axes.annotate(
            f"{gap} %",
            (end, end * ratio),
            (3, 1),
            textcoords="offset points",
            color=GREY,
            annotation_clip=False,
        )
    axes.set(xlim=(left, right), ylim=(bottom, top))


def _draw_ranking(axes: Axes, ranking: pd.DataFrame, low_bit_name: str) -> None:
    """A line per condition from its FP32 perplexity (hollow) to its low-bit one (filled)."""
    for row in ranking.itertuples():
        color, marker, _ = GROUPS[row.group]
        axes.plot([row.fp32_ppl, row.low_bit_ppl], [row.Index] * 2, color=color, lw=0.8)
        axes.plot(row.fp32_ppl, row.Index, marker, color=color, mfc="white", ms=4)
        axes.plot(row.low_bit_ppl, row.Index, marker, color=color, ms=4)
    for label, face in (("FP32", "white"), (low_bit_name, GREY)):
        axes.plot([], [], "o", color=GREY, mfc=face, ms=4, label=label)
    names = ranking["schedule"].map(lambda key: SCHEDULES.get(key, key.replace("_", " ")))
    axes.set_yticks(ranking.index, names + ranking["gap_pct"].map(": {:.1f} %".format))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("perplexity at the end")


if __name__ == "__main__":
    style.run(draw, snakemake)
