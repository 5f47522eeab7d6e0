"""Direct labels that keep clear of each other and of the curves."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox


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
