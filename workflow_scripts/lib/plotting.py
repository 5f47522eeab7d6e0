"""The one style of all figures: sizes, palette, scales, phase bands, labels, saving.

Figures are ``matplotlib.figure.Figure`` objects without pyplot's global state. Sizes
are in inches at which the figure is printed; text is 7 points there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

PAGE_IN = 7.0
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
        "ytick.minor.size": 1.5,
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


def choose_scale(
    axis: Axis,
    values: Sequence[float],
    *,
    bounds: Sequence[float] = (),
    unit: float | None = None,
    span: float = 30.0,
) -> str:
    """Make ``axis`` linear or logarithmic according to the data, and say which.

    Values that span more than a factor of ``span`` get a logarithmic axis; where some of them
    or of the ``bounds`` of their intervals are zero or negative it is a symmetric one,
    linear around zero, so that they stay visible. ``unit`` is the smallest size worth
    telling apart; by default the 5 % quantile of the positive values. Returns words for
    the axis label, empty where the axis is linear.
    """
    values = np.asarray(values, dtype=np.float64)
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if not len(positive):
        return ""
    smallest = unit or np.quantile(positive, 0.05)
    if np.abs(values).max() <= span * smallest:
        return ""
    set_scale = axis.axes.set_yscale if axis.axis_name == "y" else axis.axes.set_xscale
    if min([values.min(), *bounds]) > 0 and unit is None:
        set_scale("log")
        words = "log scale"
    else:
        # The linear part holds everything that lies below zero.
        edge = max(smallest, -values.min())
        threshold = 10.0 ** np.ceil(np.log10(edge) - 1e-9)
        set_scale("symlog", linthresh=threshold, linscale=0.6)
        words = f"log scale, linear within ±{threshold:g}"
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
    return words


def step_axis(axes: Axes, *, tokens_per_step: float | None = None) -> None:
    """Label the x axis as training steps, with the tokens that one step sees."""
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    each = f" ({tokens_per_step:,.0f} tokens each)" if tokens_per_step else ""
    axes.set_xlabel(f"training step{each}")


def draw_phases(panels: Sequence[Axes], segments: Sequence[dict]) -> None:
    """Shade the phases behind ``panels`` and name them above the first of them.

    ``segments`` are those of phases.json. A phase too narrow for its name gets the
    name one line higher, with a thin line down to its band.
    """
    left, right = panels[0].get_xlim()
    for segment in segments:
        # The steps before the first evenly spaced one belong to the first phase.
        first = left if segment is segments[0] else segment["first_step"]
        last = min(segment["last_step"], right)
        for axes in panels:
            axes.axvspan(first, last, color=BANDS[segment["phase"] % 2], lw=0, zorder=-10)
        _name_phase(panels[0], first, last, f"{segment['phase']} {segment['name']}")


def _name_phase(axes: Axes, first: float, last: float, name: str) -> None:
    at, centre = axes.get_xaxis_transform(), (first + last) / 2
    words = {"xycoords": at, "textcoords": "offset points", "color": GREY, "va": "bottom"}
    words["annotation_clip"] = False
    label = axes.annotate(name, (centre, 1), (0, 3), ha="center", **words)
    ends = axes.transData.transform([(first, 0), (last, 0)])[:, 0]
    if label.get_window_extent().width > ends[1] - ends[0]:
        label.remove()
        side = "left" if centre < np.mean(axes.get_xlim()) else "right"
        line = {"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": 0}
        line["relpos"] = (0, 0) if side == "left" else (1, 0)
        axes.annotate(name, (centre, 1), (0, 13), ha=side, arrowprops=line, **words)


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
    heights = [text.get_window_extent().height * points for text in texts]
    wanted = [_middle(text) * points for text in texts]
    moved = _spread(wanted, heights)
    for text, old, new in zip(texts, wanted, moved, strict=True):
        text.xyann = (5, new - old)


def _middle(text: Text) -> float:
    box = text.get_window_extent()
    return (box.y0 + box.y1) / 2


def _spread(centres: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Move rising ``centres`` apart until no two labels overlap, around their common middle."""
    groups: list[tuple[list[float], list[float]]] = []
    for centre, height in zip(centres, heights, strict=True):
        groups.append(([centre], [height]))
        while len(groups) > 1 and _top(groups[-2]) > _bottom(groups[-1]):
            upper = groups.pop()
            groups[-1] = (groups[-1][0] + upper[0], groups[-1][1] + upper[1])
    placed = []
    for centres_, heights_ in groups:
        at = _bottom((centres_, heights_))
        for height in heights_:
            placed.append(at + height / 2)
            at += height
    return placed


def _bottom(group: tuple[list[float], list[float]]) -> float:
    return float(np.mean(group[0])) - sum(group[1]) / 2


def _top(group: tuple[list[float], list[float]]) -> float:
    return float(np.mean(group[0])) + sum(group[1]) / 2


def place_label(axes: Axes, x: float, y: float, text: str, *, color: str) -> None:
    """Write ``text`` beside the point (x, y), where it covers the least of curves and text."""
    axes.get_xlim(), axes.get_ylim()  # settles the limits, which positions depend on
    label = axes.annotate(text, (x, y), (0, 0), textcoords="offset points", color=color, zorder=10)
    curves = np.concatenate([_pixels(line) for line in axes.get_lines()] or [np.empty((0, 2))])
    others = [other.get_window_extent() for other in axes.texts if other is not label]
    best = None
    for distance in (6, 12, 20, 30, 45):
        for right, up in [(1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0)]:
            label.xyann = (right * distance, up * distance)
            label.set_ha({1: "left", -1: "right", 0: "center"}[right])
            label.set_va({1: "bottom", -1: "top", 0: "center"}[up])
            cost = _cover(label.get_window_extent().padded(2), curves, others, axes.bbox)
            if best is None or cost < best[0]:
                best = (cost, label.xyann, label.get_ha(), label.get_va())
    _, label.xyann, ha, va = best
    label.set(ha=ha, va=va)


def _pixels(line: mpl.lines.Line2D) -> np.ndarray:
    path = line.get_transform().transform_path(line.get_path()).interpolated(8)
    return path.vertices[np.isfinite(path.vertices).all(axis=1)]


def _cover(box: Bbox, curves: np.ndarray, others: list[Bbox], room: Bbox) -> float:
    outside = box.x0 < room.x0 or box.x1 > room.x1 or box.y0 < room.y0 or box.y1 > room.y1
    return box.count_contains(curves) + 100 * box.count_overlaps(others) + 1000 * outside
