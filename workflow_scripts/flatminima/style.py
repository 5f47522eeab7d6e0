"""How everything is drawn and called: sizes, palette, scales, phase bands, labels, saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot's global state, as wide as the
page on which they are printed, with 8 point text.
"""

import textwrap
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

from flatminima.missing import even_steps

PAGE_IN = 7.0
BLUE, ORANGE, GREEN, RED = sns.color_palette("colorblind", 4).as_hex()
GREY = "#6e6e6e"
BANDS = ("#ffffff", "#eeeeee")
DASHED, DOTTED = (0, (4, 1.5)), (0, (1, 1))
LOSS = ["delta_nll_nats_per_token", "low", "high"]  # of ``with_ends``

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
    | {
        "font.family": "DejaVu Sans",
        **dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize"), 8),
        **dict.fromkeys(("ytick.labelsize", "legend.fontsize", "figure.titlesize"), 8),
        "figure.titleweight": "normal",
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
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=300, metadata=undated.get(path.suffix))


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
    """Title from ``x`` to the right edge (fractions of the page), on two lines where it must."""
    title = figure.suptitle(text, x=x, ha="left", y=y)
    room = figure.bbox.width * (0.99 - x) / title.get_window_extent().width
    if room < 1:
        title.set_text(textwrap.fill(text, int(0.97 * room * len(text))))


def row_of_panels(
    title: str, names: Sequence[str], *, height: float = 2.9, **layout: object
) -> tuple[Figure, list[Axes]]:
    """A figure with one row of panels, lettered and named."""
    figure = Figure(figsize=(PAGE_IN, height))
    grid = {"left": 0.08, "right": 0.985, "bottom": 0.16, "top": 0.83, "wspace": 0.42} | layout
    panels = list(np.ravel(figure.subplots(1, len(names), gridspec_kw=grid)))
    for letter, axes, name in zip("abcdef", panels, names, strict=False):
        axes.set_title(f"{letter}  {name}", loc="left")
    put_title(figure, title, x=grid["left"], y=0.985)
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
    plain_numbers(axis)
    return words


def log_axis(axis: Axis) -> None:
    """Make ``axis`` logarithmic; where it spans little it is labelled at 1, 2 and 5 of a decade."""
    _set_scale(axis, "log")
    low, high = axis.get_view_interval()
    if high < 200 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    plain_numbers(axis)


def _set_scale(axis: Axis, kind: str, **options: float) -> None:
    of_axes = axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale
    of_axes(kind, **options)


def plain_numbers(axis: Axis) -> None:
    """Ticks without exponents, with thousands set apart."""
    axis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if abs(value) >= 1000
        else np.format_float_positional(float(f"{value:g}"), trim="-")
    )  # fmt: skip
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
    if len(table) < 8:
        bars = {"marker": "o", "elinewidth": 0.7, "capsize": 1.5}
        axes.errorbar(x, value, np.clip([value - low, high - value], 0, None), **bars | look)
        return
    axes.fill_between(x, low, high, color=look["color"], alpha=0.18, lw=0)
    axes.plot(x, value, **look)


def legend(
    axes: Axes, phases: Mapping | None = None, *, best: bool = True, **options: object
) -> None:
    """A legend over all that is drawn: the axis grows, so that nothing lies under it.

    With ``phases`` a thin line at FP32 convergence and its interval as a grey band end below
    it; ``best`` says whether the legend names them.
    """
    if phases:
        found, name = phases["convergence"], "best FP32" if best else None
        (line,) = axes.plot([found["step"]] * 2, [0, 1], color=GREY, lw=0.7, ls=DOTTED, zorder=-5,
                            transform=axes.get_xaxis_transform(), label=name)  # fmt: skip
    edge = 1.0
    if axes.get_legend_handles_labels()[1]:
        axes.get_ylim()  # settles the limits, which positions depend on
        shown = axes.legend(**{"loc": "upper left"} | options)
        edge = axes.transAxes.inverted().transform(shown.get_window_extent())[0, 1] - 0.02
        scale = axes.yaxis.get_transform()
        low, high = scale.transform(axes.get_ylim())
        axes.set_ylim(top=scale.inverted().transform(low + (high - low) / edge))
    if phases:
        line.set_ydata([0, edge])
        axes.axvspan(found["step_low"], found["step_high"], ymax=edge, color=BANDS[1], lw=0,
                     zorder=-10)  # fmt: skip


def named_segments(phases: dict) -> list[dict]:
    """Segments of phases.json; the name of the last one says so where no onset was found."""
    if phases["onset"]["step"] is not None:
        return phases["segments"]
    *before, last = phases["segments"]
    return [*before, last | {"name": f"{last['name']} (no onset found)"}]


def draw_phases(panels: Sequence[Axes], segments: Sequence[dict]) -> None:
    """Shade the phases behind ``panels`` and name them above the first of them.

    ``segments`` are those of phases.json. A name starts with its phase, or inside it after the
    name before; where that leaves too little room it stands on a higher line.
    """
    top, ends = panels[0], []
    left, right = top.get_xlim()
    pixels, points = top.transData.transform, 72 / top.figure.dpi
    for segment in segments:
        # The steps before the first evenly spaced one belong to the first phase.
        first = left if segment is segments[0] else segment["first_step"]
        last = min(segment["last_step"], right)
        for axes in panels:
            axes.axvspan(first, last, color=BANDS[segment["phase"] % 2], lw=0, zorder=-10)
        name = top.annotate(
            f"{segment['phase']} {segment['name']}", (left, 1), (0, 3), color=GREY,
            xycoords=top.get_xaxis_transform(), textcoords="offset points",
            annotation_clip=False,
        )  # fmt: skip
        width, (origin, _) = name.get_window_extent().width, pixels((left, 0))
        (start, _), (end, _) = pixels((first, 0)), pixels((last, 0))
        start = max(min(start, top.bbox.x1 - width), origin)
        aside = max([start, *(taken + 6 / points for taken in ends[:1])])
        if aside + width <= end:
            line, start = 0, aside
        else:
            line = next((k for k, taken in enumerate(ends) if taken <= start), len(ends))
        ends[line : line + 1] = [start + width]
        name.xyann = ((start - origin) * points, 3 + 11 * line)


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
    boxes = [text.get_window_extent() for text in texts]
    at = np.array([(box.y0 + box.y1) / 2 for box in boxes])
    height = np.array([box.height for box in boxes])
    moved, apart = at.copy(), (height[1:] + height[:-1]) / 2
    for _ in range(300):
        push = np.clip(apart - np.diff(moved), 0, None) / 2
        moved[:-1] -= push
        moved[1:] += push
    for text, up in zip(texts, (moved - at) * 72 / axes.figure.dpi, strict=True):
        text.xyann = (5, up)


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
