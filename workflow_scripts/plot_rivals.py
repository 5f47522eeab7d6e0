"""Draw figure 8: low-bit perplexity against FP32 perplexity of every condition at its end."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.quantizer_specs import FP32, LOW_BIT
from flatminima.style import GREY, LOOKS, SCHEDULES, role_labels

ISO_GAPS_PCT = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Group: colour, marker and what it is called.
GROUPS = {
    "paper": (LOOKS["low_bit"].color, "o", "the paper's schedules"),
    "rival": (LOOKS["high_bit"].color, "s", "other training"),
    "average": (LOOKS["oli"].color, "D", "averages, no training"),
}
_WIDE = 2.0  # where the best and the worst FP32 model are further apart, axes are logarithmic


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
    last end of a cool phase. Grey lines join equal relative gaps: lower is better on both axes,
    and the gap is only how far a point lies above the diagonal. Beside it both perplexities of
    each condition, the best low-bit one first, and its gap.
    """
    name, table = role_labels(rivals, suite)["low_bit"], compare(rivals)
    table = table[table["update_phase"] != "bump"]
    means = table.groupby(["group", "schedule"], sort=False)[["fp32_ppl", "low_bit_ppl", "gap_pct"]]
    ranking = means.mean().reset_index().sort_values("low_bit_ppl", kind="stable")
    title = f"{suite['label']}: {len(ranking)} ways to go on from one checkpoint"
    names = [f"{name} against FP32; grey: equal gaps", f"the best {name} first, with its gap"]
    figure, panels = style.row_of_panels(title, names, height=4.8, width_ratios=(1.3, 1))
    plane, ranks = panels
    for group, means in ranking.groupby("group", sort=False):
        color, marker, label = GROUPS[group]
        seeds = table[table["group"] == group]
        plane.plot(seeds["fp32_ppl"], seeds["low_bit_ppl"], ".", ms=2.5, color=color, alpha=0.6)
        plane.plot(means["fp32_ppl"], means["low_bit_ppl"], marker, ms=4.5, color=color, zorder=4,
                   label=label)  # fmt: skip
    if table["fp32_ppl"].max() > _WIDE * table["fp32_ppl"].min():
        style.log_axis(plane.xaxis, plane.yaxis, ranks.xaxis)
    _draw_iso_gaps(plane)
    plane.set(xlabel="FP32 perplexity at the end", ylabel=f"{name} perplexity at the end")
    _draw_ranking(ranks, ranking.reset_index(drop=True), name)
    style.legends(panels)
    return figure


def _draw_iso_gaps(axes: Axes) -> None:
    """Lines of equal relative gap, each named where it leaves the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for gap in ISO_GAPS_PCT:
        ratio = 1 + gap / 100
        end = min(right, top / ratio)
        if end > left and end * ratio > bottom:
            axes.plot([left, end], [left * ratio, end * ratio], color=GREY, lw=0.5, alpha=0.6,
                      zorder=1)  # fmt: skip
            axes.annotate(f"{gap} %", (end, end * ratio), (3, 1), textcoords="offset points",
                          color=GREY, annotation_clip=False)  # fmt: skip
    axes.set(xlim=(left, right), ylim=(bottom, top))


def _draw_ranking(axes: Axes, ranking: pd.DataFrame, name: str) -> None:
    """A line per condition from its FP32 perplexity (hollow) to its low-bit one (filled)."""
    for row in ranking.itertuples():
        color, marker, _ = GROUPS[row.group]
        axes.plot([row.fp32_ppl, row.low_bit_ppl], [row.Index] * 2, color=color, lw=0.8)
        axes.plot(row.fp32_ppl, row.Index, marker, color=color, mfc="white", ms=4)
        axes.plot(row.low_bit_ppl, row.Index, marker, color=color, ms=4)
    for label, face in (("FP32", "white"), (name, GREY)):
        axes.plot([], [], "o", color=GREY, mfc=face, ms=4, label=label)
    named = ranking["schedule"].map(lambda key: SCHEDULES.get(key, key.replace("_", " ")))
    axes.set_yticks(ranking.index, named + ranking["gap_pct"].map(": {:.1f} %".format))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("perplexity at the end")


if __name__ == "__main__":
    style.run(draw, snakemake)
