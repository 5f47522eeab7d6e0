"""How everything is drawn and called: sizes, palette, scales, legends, saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot's global state, as wide as the
page on which they are printed, with 8 point text. Matplotlib's constrained layout finds room
for titles and legends, which stand outside the axes and so hide nothing.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, zip_longest
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from flatminima.jobs import arguments, logged
from flatminima.missing import even_steps

PAGE_IN = 7.0
BLUE, ORANGE, GREEN, RED = sns.color_palette("colorblind", 4).as_hex()
GREY = "#6e6e6e"
BANDS = ("#ffffff", "#eeeeee")
DASHED, DOTTED = (0, (4, 1.5)), (0, (1, 1))
LOSS = ["delta_nll_nats_per_token", "low", "high"]  # of ``with_ends``

PAPER_MODEL = "Pythia-160m"
SCHEDULES = {"cosine": "cosine", "sgdr": "SGDR", "oli": "OLI"}


class Look(NamedTuple):
    """How one series looks everywhere: in colour, in greyscale and as a marker."""

    color: str
    linestyle: str | tuple
    marker: str


LOOKS = {
    "fp32": Look("#000000", "-", "o"),
    "low_bit": Look(RED, "-", "o"),
    "high_bit": Look(BLUE, DASHED, "s"),
    # Dark, light and between, so that they differ without colour as well.
    "cosine": Look("#5b3794", "-", "^"),
    "sgdr": Look(ORANGE, DASHED, "s"),
    "oli": Look(GREEN, DOTTED, "o"),
}
_OTHER_LOOKS = [Look("#56b4e9", (0, (5, 1, 1, 1)), "D"), Look("#ca9161", (0, (5, 1, 1, 1)), "v")]

_STYLE = (
    sns.axes_style("ticks")
    | sns.plotting_context("paper")
    | dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize"), 8)
    | dict.fromkeys(("ytick.labelsize", "legend.fontsize", "figure.titlesize"), 8)
    | dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6)
    | dict.fromkeys(("xtick.minor.width", "ytick.minor.width"), 0.4)
    | dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5)
    | dict.fromkeys(("xtick.minor.size", "ytick.minor.size"), 1.5)
    | {
        "font.family": "DejaVu Sans",
        "figure.titleweight": "normal",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.formatter.useoffset": False,
        "lines.linewidth": 1.1,
        "lines.markersize": 3,
        "legend.frameon": False,
        "legend.handlelength": 1.6,
        "legend.labelspacing": 0.25,
        "legend.columnspacing": 0.9,
        "legend.borderaxespad": 0.2,
        # The same drawing gives the same bytes: SVG ids come from this salt.
        "svg.hashsalt": "figure",
        "pdf.fonttype": 42,
    }
)


def style() -> mpl.rc_context:
    """What figures are drawn and saved in: a context, or a decorator of what draws."""
    return mpl.rc_context(_STYLE)


@style()
def save(figure: Figure, paths: Iterable[str | Path]) -> None:
    """Write ``figure`` once for each path; the suffix (pdf, svg, png) decides the format.

    Neither dates nor random ids are written, so the bytes depend on the drawing alone.
    """
    figure.draw_without_rendering()  # lays the page out, with last digits that differ by the run
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position().bounds, 4))
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=300, metadata=undated.get(path.suffix))


def run(draw: Callable[..., Figure], snakemake: object) -> None:
    """Run the script of a figure: ``draw`` gets what its rule declares, as in ``jobs.run``."""
    with logged(snakemake.log[0]), style():
        save(draw(**arguments(draw, snakemake)), snakemake.output)


# What is drawn, and its names in print.


def even(table: pd.DataFrame, spacing: int) -> pd.DataFrame:
    """Rows of the evenly spaced steps."""
    return table[table["step"].isin(even_steps(table["step"], spacing))]


def with_ends(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with the 95 % interval of the added loss (nats per token) as ``low``, ``high``."""
    ends = {end: np.log1p(table[f"gap_{end}_pct"] / 100) for end in ("low", "high")}
    return table.assign(**ends)


def role_labels(table: pd.DataFrame, suite: Mapping) -> dict[str, str]:
    """Printed name of each role in a table with the columns ``role`` and ``quantizer``.

    ``suite`` has under ``quantizers`` the printed names of the configuration's names
    (``quantizer_specs.printed_names``); one that it lacks is printed as it is. Raises
    ``ValueError`` where a role belongs to more than one quantizer.
    """
    printed, labels = suite.get("quantizers", {}), {}
    for role, names in table.groupby("role")["quantizer"].unique().items():
        if len(names) > 1:
            raise ValueError(f"role {role}: one quantizer is expected, found {', '.join(names)}")
        labels[role] = printed.get(names[0], names[0])
    return labels | {"fp32": "FP32"}


def fork_looks(schedules: Iterable[str]) -> dict[str, Look]:
    """Looks of schedules by name; names beyond the paper's three get looks of their own."""
    spare = cycle(_OTHER_LOOKS)
    return {name: LOOKS.get(name) or next(spare) for name in schedules}


def shades(names: Sequence) -> dict:
    """Colours of an ordered series, dark to light."""
    colors = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(names)))
    return dict(zip(names, map(tuple, colors), strict=True))


def dash_patterns(names: Sequence) -> dict:
    """Line styles of a series of any length, no two alike."""
    patterns = ["-", DASHED, DOTTED]
    for dots in range(1, len(names) - 2):
        patterns.append((0, (5, 1.5) + (1, 1.5) * dots))
    return dict(zip(names, patterns, strict=False))


def explain_dashes(axes: Axes, dashes: Mapping, name: str) -> None:
    """Name the line styles of ``dash_patterns`` in a legend where there is more than one."""
    if len(dashes) < 2:
        return
    for value, pattern in dashes.items():
        axes.plot([], [], color=GREY, ls=pattern, label=f"{name} {value:g}")


def with_interval(row: object, digits: int) -> str:
    """What is printed of a ``hypothesis_tests.Row``: its value and its interval, if any."""
    if pd.isna(row.value):
        return "none"
    ends = f" [{row.interval_low:.{digits}f}, {row.interval_high:.{digits}f}]"
    return f"{row.value:.{digits}f}{'' if pd.isna(row.interval_low) else ends}".replace("-", "−")


# The page: its title, its panels and their legends.


def page(title: str, height: float) -> Figure:
    """A page of this height (inches) with a title that may take two lines."""
    figure = Figure(figsize=(PAGE_IN, height), layout="constrained")
    figure.suptitle(textwrap.fill(title, 105), x=0.01, ha="left")
    return figure


def row_of_panels(
    title: str, names: Sequence[str], *, height: float = 3.0, **layout: object
) -> tuple[Figure, list[Axes]]:
    """A figure with one row of panels, lettered and named; ``layout`` is of ``subplots``."""
    figure = page(title, height)
    panels = list(np.ravel(figure.subplots(1, len(names), **layout)))
    for letter, axes, name in zip("abcdef", panels, names, strict=False):
        axes.set_title(f"{letter}  {name}")
    return figure, panels


def legends(panels: Sequence[Axes], columns: Sequence[int] = (), *, whole: bool = False) -> None:
    """What is drawn in each panel, in ``columns`` or one, between its name and its axes.

    ``whole`` lists what is drawn on the whole page.
    """
    rows = []
    for axes, count in zip_longest(panels, columns, fillvalue=1):
        drawn = [a.get_legend_handles_labels() for a in (axes.figure.axes if whole else [axes])]
        handles, labels = (sum(part, []) for part in zip(*drawn, strict=True))
        rows.append(-(-len(labels) // count))
        if labels:
            axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=count)
    for axes in panels:
        axes.set_title(axes.get_title(loc="left"), pad=4 + 11.5 * max(rows))


# Axes.


def choose_scale(
    axes: Axes, values: pd.Series, *, decisive: pd.Series | None = None, span: float = 30.0
) -> str:
    """Make the y axis linear or logarithmic according to the data, and say which.

    Values that span more than a factor of ``span`` get a logarithmic axis; where some of them
    are zero or negative it is a symmetric one, linear around zero, so that they stay visible.
    ``decisive`` are the values whose span counts, by default all. Returns a line for the axis
    label, empty where the axis is linear.
    """
    judged = values if decisive is None else decisive
    if not (judged > 0).any() or judged.max() <= span * _linear_part(judged):
        return ""
    if values.min() > 0:
        log_axis(axes.yaxis)
        return "\nlog scale"
    threshold = 10.0 ** np.ceil(np.log10(_linear_part(values)) - 1e-9)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.6)
    plain_numbers(axes.yaxis)
    return f"\nlog scale, linear within ±{threshold:g}"


def _linear_part(values: pd.Series) -> float:
    """How far from zero an axis must be linear: over all that is negative or small."""
    return max(values[values > 0].quantile(0.05, interpolation="lower"), -values.min())


def log_axis(*axes: Axis) -> None:
    """Make axes logarithmic; where one spans little it is labelled at 1, 2 and 5 of a decade."""
    for axis in axes:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        low, high = axis.get_view_interval()
        if high < 200 * low:
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        plain_numbers(axis)


def plain_numbers(axis: Axis) -> None:
    """Ticks without exponents, with thousands set apart."""
    axis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if abs(value) >= 1000
        else np.format_float_positional(float(f"{value:g}"), trim="-")
    )  # fmt: skip
    axis.set_minor_formatter(ticker.NullFormatter())


def step_axis(axes: Axes, last: int, *, ticks: int = 4) -> None:
    """Label the x axis as training steps from 0 to ``last``."""
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="training step", xlim=(0, last))
    axes.locator_params(axis="x", nbins=ticks)


# What is drawn in more than one figure.


def with_bars(table: pd.DataFrame, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Value, and how far its interval reaches to both sides, as ``Axes.errorbar`` takes them."""
    value, low, high = table[list(columns)].to_numpy(float).T
    return value, np.clip([value - low, high - value], 0, None)


def band(
    axes: Axes, x: pd.Series, table: pd.DataFrame, columns: Sequence[str], **look: object
) -> None:
    """A curve with its interval, if any: ``columns`` are value, low and high; few have bars."""
    value, bars = with_bars(table, columns)
    if table.empty:
        return
    if len(table) < 8:
        axes.errorbar(x, value, bars, **{"marker": "o", "elinewidth": 0.7, "capsize": 1.5} | look)
        return
    axes.fill_between(x, value - bars[0], value + bars[1], color=look["color"], alpha=0.18, lw=0)
    axes.plot(x, value, **look)


def along_the_run(panels: Iterable[Axes], last: int, phases: Mapping) -> None:
    """Training steps along the x axes, and FP32 convergence marked."""
    for axes in panels:
        step_axis(axes, last)
        mark_best(axes, phases)


def mark_best(axes: Axes, phases: Mapping) -> None:
    """A line at FP32 convergence, in the grey band of its interval."""
    best = phases["convergence"]
    axes.axvline(best["step"], color=GREY, lw=0.7, ls=DOTTED, zorder=-5, label="best FP32")
    if best["step_low"] is not None:
        axes.axvspan(best["step_low"], best["step_high"], color=BANDS[1], lw=0, zorder=-10)


def shade_phases(panels: Iterable[Axes], phases: Mapping) -> str:
    """Shade the phases behind ``panels``, white and grey in turn; returns their names."""
    said, first = [], 0
    for segment in phases["segments"]:
        number, last = segment["phase"], segment["last_step"]
        for axes in panels:
            axes.axvspan(first, last, color=BANDS[number % 2], lw=0, zorder=-10)
        said.append(f"{number} {segment['name']} to step {last:,}")
        first = last
    lacking = " (no onset found)" if phases["onset"]["step"] is None else ""
    return f"phases: {', '.join(said)}{lacking}"
