"""How everything is drawn and named: sizes, palette, scales, legends, saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot's global state. They are as wide
as a printed page and have 8 point text. Matplotlib's constrained layout finds room for titles
and legends. Legends are outside the axes, so they hide nothing.
"""

import io
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

from flatminima.absent_steps import even_steps
from flatminima.files import atomic_path
from flatminima.jobs import arguments, logged

PAGE_IN = 7.0  # width of a page, inches
MOST_WITH_BARS = 8  # points of a curve; one with as many or more has a band
BLUE, ORANGE, GREEN, RED = sns.color_palette("colorblind", 4).as_hex()
GREY = "#6e6e6e"
BANDS = ("#ffffff", "#eeeeee")  # phases, in turn
INTERVAL_BAND = "#fbf1d3"  # of a step
DASHED = (0, (4, 1.5))
DOTTED = (0, (1, 1))
# Columns of the added loss and of its interval, see ``with_ends``.
LOSS = ["delta_nll_nats_per_token", "low", "high"]

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

# A user's own matplotlibrc may ask for LaTeX, other fonts or other sizes. Figures here ignore it.
_DEFAULTS = {
    name: value
    for name, value in mpl.rcParamsDefault.items()
    if not name.startswith("backend")  # changing it is not free of side effects
}
_STYLE = (
    _DEFAULTS
    | sns.axes_style("ticks")
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
    # The layout differs in its last digits from run to run. So the page is laid out once, and
    # positions are rounded and kept.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        # A ten-thousandth of a page is far below what can be seen.
        axes.set_position(np.round(axes.get_position().bounds, 4))
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    for path in map(Path, paths):
        # Into memory first: a full disk then leaves no part of a file, and no error of matplotlib.
        drawing = io.BytesIO()
        options = {"format": path.suffix[1:], "metadata": undated.get(path.suffix)}
        figure.savefig(drawing, dpi=300, **options)
        with atomic_path(path) as temporary:
            temporary.write_bytes(drawing.getvalue())


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

    ``suite["quantizers"]`` maps names of the configuration to printed names
    (``quantizer_specs.printed_names``). A name that it lacks is printed unchanged. Raises
    ``ValueError`` where a role belongs to more than one quantizer.
    """
    printed_names = suite.get("quantizers", {})
    labels = {}
    for role, names in table.groupby("role")["quantizer"].unique().items():
        if len(names) > 1:
            raise ValueError(f"role {role}: one quantizer is expected, not {', '.join(names)}")
        labels[role] = printed_names.get(names[0], names[0])
    return labels | {"fp32": "FP32"}


def fork_looks(schedules: Iterable[str]) -> dict[str, Look]:
    """Looks of schedules by name; names beyond the paper's three get looks of their own."""
    other_looks = cycle(_OTHER_LOOKS)
    return {name: LOOKS.get(name) or next(other_looks) for name in schedules}


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
    """The value of a ``hypothesis_tests.Row`` in print, with its interval if it has one."""
    if pd.isna(row.value):
        return "none"
    printed = f"{row.value:.{digits}f}"
    if not pd.isna(row.interval_low):
        printed += f" [{row.interval_low:.{digits}f}, {row.interval_high:.{digits}f}]"
    return printed.replace("-", "−")


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


def legends(panels: Sequence[Axes], columns: Sequence[int] = (), *, of_page: bool = False) -> None:
    """A legend for each panel, between its title and its axes, with ``columns`` or one column.

    With ``of_page`` each legend lists the curves of all panels of the page.
    """
    rows_by_panel = []
    for axes, column_count in zip_longest(panels, columns, fillvalue=1):
        handles = []
        labels = []
        listed_panels = axes.figure.axes if of_page else [axes]
        for listed in listed_panels:
            source_handles, source_labels = listed.get_legend_handles_labels()
            handles += source_handles
            labels += source_labels
        rows_by_panel.append(-(-len(labels) // column_count))  # rounded up
        if labels:
            axes.legend(
                handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=column_count
            )
    # All titles of a row of panels get the same distance, so that they are on one line.
    for axes in panels:
        axes.set_title(axes.get_title(loc="left"), pad=4 + 11.5 * max(rows_by_panel))


# Axes.


def choose_scale(
    axes: Axes, values: pd.Series, *, decisive: pd.Series | None = None, span: float = 30.0
) -> str:
    """Make the y axis linear or logarithmic according to the data, and return a note on it.

    Values that span more than a factor of ``span`` get a logarithmic axis. If some of them are
    zero or negative, the axis is linear around zero, so that they stay visible. ``decisive`` are
    the values whose span counts, by default all. The note is a line for the axis label; it is
    empty for a linear axis.
    """
    if decisive is None:
        decisive = values
    if not (decisive > 0).any() or decisive.max() <= span * _linear_part(decisive):
        return ""
    if values.min() > 0:
        log_axis(axes.yaxis)
        return "\nlog scale"
    # The next power of ten; the small number keeps an exact power of ten as it is.
    threshold = 10.0 ** np.ceil(np.log10(_linear_part(values)) - 1e-9)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.6)
    plain_numbers(axes.yaxis)
    return f"\nlog scale, linear within ±{threshold:g}"


def _linear_part(values: pd.Series) -> float:
    """The distance from zero up to which an axis must be linear: negative and small values."""
    return max(values[values > 0].quantile(0.05, interpolation="lower"), -values.min())


def log_axis(*axes: Axis) -> None:
    """Make axes logarithmic; a short axis has ticks at 1, 2 and 5 of each decade."""
    for axis in axes:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        low, high = axis.get_view_interval()
        if high < 200 * low:
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        plain_numbers(axis)


def plain_numbers(axis: Axis) -> None:
    """Ticks without exponents, with thousands set apart."""

    def plain(value: float, _: int) -> str:
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return np.format_float_positional(float(f"{value:g}"), trim="-")

    axis.set_major_formatter(plain)
    axis.set_minor_formatter(ticker.NullFormatter())


def step_axis(axes: Axes, last: int, *, ticks: int = 4) -> None:
    """Label the x axis as training steps from 0 to ``last``."""
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="training step", xlim=(0, last))
    axes.locator_params(axis="x", nbins=ticks)


# What is drawn in more than one figure.


def with_bars(table: pd.DataFrame, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Values, and the distances to both ends of their intervals, as ``Axes.errorbar`` takes them.

    ``columns`` are value, low and high. The distances are ``[2, rows]``.
    """
    value, low, high = table[list(columns)].to_numpy(float).T
    return value, np.clip([value - low, high - value], 0, None)


def band(
    axes: Axes, x: pd.Series, table: pd.DataFrame, columns: Sequence[str], **look: object
) -> None:
    """A curve with its interval; ``columns`` are value, low and high.

    A curve of few points has bars, a longer one has a band.
    """
    value, bars = with_bars(table, columns)
    if table.empty:
        return
    # Bars at many points run into each other.
    if len(table) < MOST_WITH_BARS:
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
    """A line at FP32 convergence, in a band of its interval, both named in the legend."""
    best = phases["convergence"]
    axes.axvline(best["step"], color=GREY, lw=0.7, ls=DOTTED, zorder=-5, label="FP32 minimum")
    if best["step_low"] is not None:
        ends = best["step_low"], best["step_high"]
        axes.axvspan(*ends, color=INTERVAL_BAND, lw=0, zorder=-10, label="its 95 % interval")


def shade_phases(panels: Iterable[Axes], phases: Mapping) -> str:
    """Shade the phases behind ``panels``, white and grey in turn; return what their names are."""
    sentences = []
    first_step = 0
    for segment in phases["segments"]:
        last_step = segment["last_step"]
        color = BANDS[segment["phase"] % 2]
        for axes in panels:
            axes.axvspan(first_step, last_step, color=color, lw=0, zorder=-10)
        shade = "Grey" if segment["phase"] % 2 else "White"
        # The last phase ends with the run, which the axis shows.
        is_last = segment is phases["segments"][-1]
        until = "" if is_last else f", to step {last_step:,}"
        sentences.append(f"{shade}: {segment['name']}{until}.")
        first_step = last_step
    if phases["onset"]["step"] is None:
        # What comes after rapid learning then has no name of its own.
        sentences[-1] = "No onset found."
    return " ".join(sentences)
