"""The one style of all figures: sizes, palette, scales, phase bands, saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot's global state. Sizes
are in inches at which the figure is printed; text is 7 points there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

PAGE_IN = 7.0
TITLE_END = 0.985  # of the page's width
SMALLEST_POINTS = 5.5
_COLORS = sns.color_palette("colorblind").as_hex()
GREY = "#777777"
BANDS = ("#ffffff", "#eeeeee")


@dataclass(frozen=True)
class Look:
    """How one series looks everywhere: in colour, in greyscale and as a marker."""

    color: str
    linestyle: str | tuple
    marker: str


LOOKS = {
    "fp32": Look("#000000", "-", "o"),
    "low_bit": Look(_COLORS[3], "-", "o"),
    "high_bit": Look(_COLORS[0], (0, (4, 1.5)), "s"),
    "cosine": Look(_COLORS[4], "-", "^"),
    "sgdr": Look(_COLORS[1], (0, (4, 1.5)), "s"),
    "oli": Look(_COLORS[2], (0, (1.2, 1)), "o"),
}

_OTHER_LOOKS = [
    Look(_COLORS[index], (0, (5, 1, 1, 1)), mark) for index, mark in ((9, "D"), (5, "v"))
]


def fork_looks(schedules: Iterable[str]) -> dict[str, Look]:
    """Looks of schedules by name; names beyond the paper's three get looks of their own."""
    names = list(schedules)
    others = [name for name in names if name not in LOOKS]
    spare = dict(zip(others, cycle(_OTHER_LOOKS), strict=False))
    return {name: LOOKS.get(name) or spare[name] for name in names}


_STYLE = (
    sns.axes_style("ticks")
    | sns.plotting_context("paper")
    | {
        "font.family": "DejaVu Sans",
        "font.size": 7,
        "axes.labelsize": 7,
        "axes.titlesize": 7,
        "figure.titlesize": 8,
        "xtick.labelsize": 6.5,
        "ytick.labelsize": 6.5,
        "legend.fontsize": 6.5,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.1,
        "lines.markersize": 3,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "xtick.minor.size": 1.5,
        "ytick.minor.size": 1.5,
        "xtick.minor.width": 0.4,
        "ytick.minor.width": 0.4,
        "axes.formatter.useoffset": False,
        # The same drawing gives the same bytes: SVG ids come from this salt.
        "svg.hashsalt": "figure",
        "pdf.fonttype": 42,
    }
)
_METADATA = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def style() -> mpl.rc_context:
    """Context in which figures are drawn and saved."""
    return mpl.rc_context(_STYLE)


def save(figure: Figure, paths: Iterable[str | Path]) -> None:
    """Write ``figure`` once for each path; the suffix (pdf, svg, png) decides the format.

    Neither dates nor random ids are written, so the bytes depend on the drawing alone.
    Raises ``ValueError`` for another suffix.
    """
    for path in map(Path, paths):
        kind = path.suffix.removeprefix(".")
        if kind not in _METADATA:
            raise ValueError(f"{path}: a figure is written as {', '.join(_METADATA)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with style():
            figure.savefig(path, dpi=300, metadata=_METADATA[kind])


def put_title(figure: Figure, text: str, *, x: float, y: float) -> None:
    """Title from ``x`` to the right (fractions of the page), smaller where it would leave it."""
    title = figure.suptitle(text, x=x, ha="left", y=y)
    room, size = figure.bbox.width * (TITLE_END - x), title.get_fontsize()
    width = title.get_window_extent().width
    if width > room:
        title.set_fontsize(max(size * room / width, SMALLEST_POINTS))


def choose_scale(
    axis: Axis,
    values: Sequence[float],
    *,
    bounds: Sequence[float] = (),
    decisive: Sequence[float] | None = None,
    unit: float | None = None,
    span: float = 30.0,
) -> str:
    """Make ``axis`` linear or logarithmic according to the data, and say which.

    Values that span more than a factor of ``span`` get a logarithmic axis; where some of them
    or of the ``bounds`` of their intervals are zero or negative it is a symmetric one,
    linear around zero, so that they stay visible. ``decisive`` are the values whose span
    counts, by default all. ``unit`` is the smallest size worth telling apart, by default
    the 5 % quantile of the positive values. Returns words for the axis label, empty where
    the axis is linear.
    """
    values = np.asarray(values, dtype=np.float64)
    judged = values if decisive is None else np.asarray(decisive, dtype=np.float64)
    if not (judged > 0).any() or judged.max() <= span * _linear_part(judged, unit):
        return ""
    if min([values.min(), *bounds]) > 0 and unit is None:
        log_axis(axis)
        words = "log scale"
    else:
        threshold = 10.0 ** np.ceil(np.log10(_linear_part(values, unit)) - 1e-9)
        set_scale = axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale
        set_scale("symlog", linthresh=threshold, linscale=0.6)
        words = f"log scale, linear within ±{threshold:g}"
    _plain_numbers(axis)
    return words


def log_axis(axis: Axis) -> None:
    """Make ``axis`` logarithmic; where it spans little it is labelled at 1, 2 and 5 of a decade."""
    set_scale = axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale
    set_scale("log")
    low, high = axis.get_view_interval()
    if high < 200 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    _plain_numbers(axis)


def _plain_numbers(axis: Axis) -> None:
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(ticker.NullFormatter())


def _plain(value: float) -> str:
    """A tick's value without an exponent."""
    return np.format_float_positional(float(f"{value:g}"), trim="-")


def _linear_part(values: np.ndarray, unit: float | None) -> float:
    """How far from zero an axis must be linear: over all that is negative or small."""
    smallest = unit or float(np.quantile(values[values > 0], 0.05, method="lower"))
    return max(smallest, -float(values.min()))


def step_axis(axes: Axes, *, tokens_per_step: float | None = None) -> None:
    """Label the x axis as training steps, with the tokens that one step sees."""
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    each = f" ({tokens_per_step:,.0f} tokens each)" if tokens_per_step else ""
    axes.set_xlabel(f"training step{each}")


def named_segments(phases: dict) -> list[dict]:
    """Segments of phases.json; the name of the last one says so where no onset was found."""
    if phases["onset"]["step"] is not None:
        return phases["segments"]
    *before, last = phases["segments"]
    return [*before, last | {"name": f"{last['name']} (no onset found)"}]


def draw_phases(panels: Sequence[Axes], segments: Sequence[dict]) -> None:
    """Shade the phases behind ``panels`` and name them above the first of them.

    ``segments`` are those of phases.json. A name wider than its phase reaches over the
    next one, whose name then moves aside. Where its phase is too short for that, it
    stands a line higher, with a thin line down to its band.
    """
    left, right = panels[0].get_xlim()
    taken = -np.inf
    for segment in segments:
        # The steps before the first evenly spaced one belong to the first phase.
        first = left if segment is segments[0] else segment["first_step"]
        last = min(segment["last_step"], right)
        for axes in panels:
            axes.axvspan(first, last, color=BANDS[segment["phase"] % 2], lw=0, zorder=-10)
        taken = _name_phase(panels[0], first, last, f"{segment['phase']} {segment['name']}", taken)


def _name_phase(axes: Axes, first: float, last: float, name: str, taken: float) -> float:
    """Write a name over its band; ``taken`` is where the name before it ends, in pixels.

    Returns where the names on the line next to the axes end now.
    """
    options = {
        "xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "color": GREY,
        "va": "bottom", "ha": "center", "annotation_clip": False,
    }  # fmt: skip
    centre, points = ((first + last) / 2, 1), 72 / axes.figure.dpi
    label = axes.annotate(name, centre, (0, 3), **options)
    box, room = label.get_window_extent(), axes.bbox
    moved = max(room.x0 - box.x0, 0) - max(box.x1 - room.x1, 0)
    aside = max(moved, taken + 6 / points - box.x0)
    if aside == moved or box.x1 + aside <= axes.transData.transform((last, 0))[0]:
        label.xyann = (aside * points, 3)
        return box.x1 + aside
    label.remove()
    line = {"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": 0}
    # The line leaves the name straight above the middle of the band.
    line["relpos"] = (0.5 - moved / box.width, 0)
    axes.annotate(name, centre, (moved * points, 13), arrowprops=line, **options)
    return taken
