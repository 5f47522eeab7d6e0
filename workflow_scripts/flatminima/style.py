"""How everything is drawn and called: sizes, palette, scales, phase bands, labels, saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot's global state, as wide as
they are printed: a column (``COLUMN_IN``) or a page (``PAGE_IN``), with 8 point text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

COLUMN_IN, PAGE_IN = 3.3, 7.0
TITLE_END = 0.985  # of the page's width
SMALLEST_POINTS = 5.5
_COLORS = sns.color_palette("colorblind").as_hex()
GREY = "#777777"
BANDS = ("#ffffff", "#eeeeee")
# A box behind words that lines and bands would cross.
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}

PAPER_MODEL = "Pythia-160m"
SCHEDULES = {"cosine": "cosine", "sgdr": "SGDR", "oli": "OLI"}


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

_STYLE = (
    sns.axes_style("ticks")
    | sns.plotting_context("paper")
    | {
        "font.family": "DejaVu Sans",
        **dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize"), 8),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7.5),
        "figure.titlesize": 9,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.1,
        "lines.markersize": 3,
        **dict.fromkeys(("xtick.major.width", "ytick.major.width"), 0.6),
        **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
        **dict.fromkeys(("xtick.minor.width", "ytick.minor.width"), 0.4),
        **dict.fromkeys(("xtick.minor.size", "ytick.minor.size"), 1.5),
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


# Names in print.


def role_labels(table: pd.DataFrame, suite: Mapping) -> dict[str, str]:
    """Printed name of each role in a table with the columns ``role`` and ``quantizer``.

    ``suite`` has under ``quantizers`` the printed names of the configuration's names
    (``quantizer_specs.printed_names``); one that it lacks is printed as it is. Raises
    ``ValueError`` where a role belongs to more than one quantizer.
    """
    names = table[["role", "quantizer"]].drop_duplicates()
    if names["role"].duplicated().any():
        role = names.loc[names["role"].duplicated(), "role"].iloc[0]
        found = ", ".join(names.loc[names["role"] == role, "quantizer"])
        raise ValueError(f"role {role}: one quantizer is expected, found {found}")
    printed = suite.get("quantizers", {})
    labels = {role: printed.get(name, name) for role, name in names.itertuples(index=False)}
    return labels | {"fp32": "FP32"}


def fork_looks(schedules: Iterable[str]) -> dict[str, Look]:
    """Looks of schedules by name; names beyond the paper's three get looks of their own."""
    names = list(schedules)
    others = [name for name in names if name not in LOOKS]
    spare = dict(zip(others, cycle(_OTHER_LOOKS), strict=False))
    return {name: LOOKS.get(name) or spare[name] for name in names}


def shades(count: int) -> list:
    """Colours of an ordered series, dark to light."""
    return list(mpl.colormaps["viridis"](np.linspace(0.0, 0.85, count)))


# The page: its title and its panels.


def put_title(figure: Figure, text: str, *, x: float, y: float) -> None:
    """Title from ``x`` to the right (fractions of the page), smaller where it would leave it."""
    title = figure.suptitle(text, x=x, ha="left", y=y)
    room, size = figure.bbox.width * (TITLE_END - x), title.get_fontsize()
    width = title.get_window_extent().width
    if width > room:
        title.set_fontsize(max(size * room / width, SMALLEST_POINTS))


def row_of_panels(
    title: str, names: Sequence[str], *, height: float = 2.9, **layout: object
) -> tuple[Figure, list[Axes]]:
    """A figure with one row of panels, lettered and named; call inside ``style()``."""
    figure = Figure(figsize=(PAGE_IN, height))
    grid = {"left": 0.08, "right": 0.985, "bottom": 0.16, "top": 0.80, "wspace": 0.42} | layout
    panels = list(np.ravel(figure.subplots(1, len(names), gridspec_kw=grid)))
    for letter, axes, name in zip("abcdef", panels, names, strict=False):
        axes.set_title(f"{letter}  {name}", loc="left")
    put_title(figure, title, x=grid["left"], y=0.975)
    return figure, panels


# Axes.


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
        _set_scale(axis, "symlog", linthresh=threshold, linscale=0.6)
        words = f"log scale, linear within ±{threshold:g}"
    _plain_numbers(axis)
    return words


def log_axis(axis: Axis) -> None:
    """Make ``axis`` logarithmic; where it spans little it is labelled at 1, 2 and 5 of a decade."""
    _set_scale(axis, "log")
    low, high = axis.get_view_interval()
    if high < 200 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    _plain_numbers(axis)


def _set_scale(axis: Axis, kind: str, **options: float) -> None:
    of_axes = axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale
    of_axes(kind, **options)


def _plain_numbers(axis: Axis) -> None:
    """Ticks without exponents."""
    axis.set_major_formatter(
        lambda value, _: np.format_float_positional(float(f"{value:g}"), trim="-")
    )
    axis.set_minor_formatter(ticker.NullFormatter())


def _linear_part(values: np.ndarray, unit: float | None) -> float:
    """How far from zero an axis must be linear: over all that is negative or small."""
    smallest = unit or float(np.quantile(values[values > 0], 0.05, method="lower"))
    return max(smallest, -float(values.min()))


def step_axis(axes: Axes, *, tokens_per_step: float | None = None) -> None:
    """Label the x axis as training steps, with the tokens that one step sees."""
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    each = f" ({tokens_per_step:,.0f} tokens each)" if tokens_per_step else ""
    axes.set_xlabel(f"training step{each}")


def step_ticks(axes: Axes, last: int) -> None:
    """A step axis from 0 to the end with few ticks."""
    step_axis(axes)
    axes.set_xlim(0, last)
    axes.locator_params(axis="x", nbins=4)


# What is drawn in more than one figure.


def band(
    axes: Axes, x: pd.Series, table: pd.DataFrame, columns: Sequence[str], **look: object
) -> None:
    """A curve with its interval: ``columns`` are value, low and high; bars where points are few."""
    value, low, high = (table[column].to_numpy(float) for column in columns)
    color = look.get("color", "black")
    if len(table) < 8:
        errors = np.clip([value - low, high - value], 0, None)
        axes.errorbar(x, value, errors, lw=look.pop("lw", 1.1), elinewidth=0.7, capsize=1.5,
                      marker=look.pop("marker", "o"), **look)  # fmt: skip
        return
    axes.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    axes.plot(x, value, **look)


def mark_best(axes: Axes, phases: Mapping, *, name: bool = False, top: float = 1.0) -> None:
    """A thin line at FP32 convergence, with its interval as a grey band.

    Its ``name`` hangs beside the line from the height ``top``, a fraction of the axes.
    """
    best = phases["convergence"]
    axes.axvspan(best["step_low"], best["step_high"], color=BANDS[1], lw=0, zorder=-10)
    axes.axvline(best["step"], color=GREY, lw=0.6, ls=(0, (2, 1.5)), zorder=-5)
    if name:
        axes.annotate("best FP32", (best["step"], top), (2, -2), color=GREY, va="top",
                      xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                      rotation=90)  # fmt: skip


def legend(axes: Axes, **options: object) -> None:
    """A legend that the line and the band of the best step do not cross."""
    box = axes.legend(frameon=True, borderpad=0.15, borderaxespad=0.8, **options).get_frame()
    box.set(boxstyle="square", linewidth=0, **PAPER)


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
    axes.annotate(name, centre, (moved * points, 14), arrowprops=line, **options)
    return taken


# Direct labels that keep clear of each other and of the curves.


def end_labels(axes: Axes, labels: Sequence[tuple[str, float, str]]) -> None:
    """Write each (text, y, colour) to the right of the axes, moved apart where they collide."""
    texts = [
        axes.annotate(
            text, (1, y), (5, 0), xycoords=axes.get_yaxis_transform(), color=color,
            textcoords="offset points", va="center", annotation_clip=False,
        )
        for text, y, color in sorted(labels, key=lambda label: label[1])
    ]  # fmt: skip
    axes.get_ylim()  # settles the limits, which positions depend on
    points = 72 / axes.figure.dpi
    boxes = [text.get_window_extent() for text in texts]
    wanted = [points * (box.y0 + box.y1) / 2 for box in boxes]
    moved = _spread(wanted, [points * box.height for box in boxes])
    for text, old, new in zip(texts, wanted, moved, strict=True):
        text.xyann = (5, new - old)


def _spread(centres: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Move rising ``centres`` apart until no two labels overlap, around their common middle."""
    groups: list[tuple[list[float], list[float]]] = []

    def bottom(group: tuple[list[float], list[float]]) -> float:
        return float(np.mean(group[0])) - sum(group[1]) / 2

    for centre, height in zip(centres, heights, strict=True):
        groups.append(([centre], [height]))
        while len(groups) > 1 and bottom(groups[-2]) + sum(groups[-2][1]) > bottom(groups[-1]):
            above = groups.pop()
            groups[-1] = (groups[-1][0] + above[0], groups[-1][1] + above[1])
    placed = []
    for group in groups:
        tops = bottom(group) + np.cumsum(group[1])
        placed += list(tops - np.array(group[1]) / 2)
    return placed


def place_label(axes: Axes, x: float, y: float, text: str, *, color: str) -> Text:
    """Write ``text`` beside the point (x, y), where it covers the least of curves and text."""
    axes.get_xlim(), axes.get_ylim()  # settles the limits, which positions depend on
    label = axes.annotate(text, (x, y), (0, 0), textcoords="offset points", color=color, zorder=10)
    curves = np.concatenate([_pixels(line) for line in axes.get_lines()] or [np.empty((0, 2))])
    others = [other.get_window_extent() for other in axes.texts if other is not label]
    best = None
    for distance in (6, 12, 20, 30, 45, 65):
        for right, up in [(1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0)]:
            label.xyann = (right * distance, up * distance)
            label.set_ha({1: "left", -1: "right", 0: "center"}[right])
            label.set_va({1: "bottom", -1: "top", 0: "center"}[up])
            cost = _cover(label.get_window_extent().padded(2), curves, others, axes.bbox)
            if best is None or cost < best[0]:
                best = (cost, label.xyann, label.get_ha(), label.get_va())
    _, label.xyann, ha, va = best
    label.set(ha=ha, va=va)
    return label


def lead_line(axes: Axes, x: float, y: float, label: Text, *, near: float = 3.0) -> None:
    """A thin line from the point (x, y) to ``label``, where that is over ``near`` points away."""
    box, point = label.get_window_extent(), axes.transData.transform((x, y))
    end = np.clip(point, (box.x0, box.y0), (box.x1, box.y1))
    if np.hypot(*(end - point)) * 72 / axes.figure.dpi > near:
        ends = axes.transData.inverted().transform([point, end])
        axes.plot(*ends.T, color=label.get_color(), lw=0.4, zorder=2)


def _pixels(line: Line2D) -> np.ndarray:
    """Points on a drawn line, at most two pixels apart."""
    path = line.get_transform().transform_path(line.get_path())
    corners = path.vertices[np.isfinite(path.vertices).all(axis=1)]
    along = np.r_[0.0, np.cumsum(np.hypot(*np.diff(corners, axis=0).T))]
    at = np.arange(0.0, along[-1] + 2.0, 2.0)
    return np.column_stack([np.interp(at, along, corners[:, axis]) for axis in (0, 1)])


def _cover(box: Bbox, curves: np.ndarray, others: list[Bbox], room: Bbox) -> float:
    outside = box.x0 < room.x0 or box.x1 > room.x1 or box.y0 < room.y0 or box.y1 > room.y1
    return box.count_contains(curves) + 100 * box.count_overlaps(others) + 1000 * outside
