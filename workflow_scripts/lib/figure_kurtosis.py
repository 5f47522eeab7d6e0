"""Figure 2: weight excess kurtosis along training, and against the low-bit gap."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from workflow_scripts.lib import plotting
from workflow_scripts.lib.labels import role_labels
from workflow_scripts.lib.plotting import GREY, PAGE_IN, Look

SUMMARIES = {"mean_over_tensors": "mean over\ntensors", "pooled": "pooled\nweights"}
_LOOKS = {
    "mean_over_tensors": Look("black", "-", "o"),
    "pooled": Look("black", (0, (4, 1.5)), "s"),
}


def draw(kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, *, suite: dict) -> Figure:
    """Excess kurtosis over steps, and beside it the gap against it in the last phase.

    The tables are kurtosis.csv, audit.csv and phases.json of ``suite`` (key ``label``).
    The last phase is phase 3 wherever an onset was found; where none was, the panel says
    which phase it shows. The paper's figure 2, section 4.5.
    """
    with plotting.style():
        figure = Figure(figsize=(PAGE_IN, 3.1))
        grid = figure.add_gridspec(
            1, 2, width_ratios=(1.5, 1), wspace=0.55,
            left=0.075, right=0.985, bottom=0.135, top=0.79,
        )  # fmt: skip
        course, relation = grid.subplots()
        course.set_xlim(0, kurtosis["step"].max())
        plotting.draw_phases([course], phases["segments"])
        _draw_course(course, kurtosis)
        _draw_relation(relation, kurtosis, audit, phases)
        figure.suptitle(
            f"{suite['label']}: excess kurtosis of the weights", x=0.075, ha="left", y=0.975
        )
    return figure


def _draw_course(axes: Axes, kurtosis: pd.DataFrame) -> None:
    words = plotting.choose_scale(axes.yaxis, kurtosis["excess_kurtosis"], unit=1.0, span=100.0)
    tensors = kurtosis[kurtosis["statistic"] == "per_tensor"]
    for _, part in tensors.groupby("tensor"):
        axes.plot(part["step"], part["excess_kurtosis"], color=GREY, lw=0.4, alpha=0.6)
    axes.axhline(0, color=GREY, lw=0.5)
    ends = []
    for statistic, name in SUMMARIES.items():
        part = kurtosis[kurtosis["statistic"] == statistic]
        look = _LOOKS[statistic]
        axes.plot(
            part["step"], part["excess_kurtosis"], color=look.color, ls=look.linestyle, lw=1.6
        )
        ends.append((name, part["excess_kurtosis"].iloc[-1], look.color))
    plotting.end_labels(axes, ends)
    count = tensors["tensor"].nunique()
    widest = tensors.loc[tensors["excess_kurtosis"].idxmax()]
    plotting.place_label(
        axes, widest["step"], widest["excess_kurtosis"], f"each of {count} tensors", color=GREY
    )
    axes.set_ylabel("excess kurtosis (0: normal)" + (f"\n{words}" if words else ""))
    plotting.step_axis(axes)


def _draw_relation(axes: Axes, kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict) -> None:
    segment = phases["segments"][-1]
    low = audit[audit["role"] == "low_bit"]
    low = low[low["step"].between(segment["first_step"], segment["last_step"])]
    words = plotting.choose_scale(axes.yaxis, low["gap_pct"])
    lines = []
    for statistic, name in SUMMARIES.items():
        part = kurtosis[kurtosis["statistic"] == statistic].merge(low, on="step")
        look = _LOOKS[statistic]
        face = look.color if statistic == "mean_over_tensors" else "none"
        axes.plot(
            part["excess_kurtosis"], part["gap_pct"], ls="", marker=look.marker, ms=3,
            mec=look.color, mfc=face, mew=0.8,
        )  # fmt: skip
        r, p = stats.pearsonr(part["excess_kurtosis"], part["gap_pct"])
        chance = f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
        lines.append(f"{name.replace(chr(10), ' ')}: r = {r:.2f}, {chance}".replace("-", "−"))
    missing = "" if phases["onset"]["detected"] else ", no onset"
    title = f"phase {segment['phase']}{missing}: n = {len(part)} checkpoints"
    axes.set_title(title, loc="left", pad=24, color=GREY)
    for row, text in enumerate(reversed(lines)):
        axes.annotate(
            text, (0, 1), (0, 4 + 9 * row), xycoords="axes fraction", textcoords="offset points"
        )
    name = role_labels(audit)["low_bit"]
    axes.set_ylabel(f"{name} gap (% of FP32)" + (f"\n{words}" if words else ""))
    axes.set_xlabel("excess kurtosis")
