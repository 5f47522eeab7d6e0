"""What the figures of this package share: bands, the best step, titles, one row of panels."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima.figures import plotting
from flatminima.figures.placement import place_label
from flatminima.figures.plotting import GREY, PAGE_IN

# A box behind words that lines and bands would cross.
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
RANGE = ("viridis", 0.0, 0.85)  # of a colour map, for series in an order


def row_of_panels(
    title: str, names: Sequence[str], *, height: float = 2.9, **layout: object
) -> tuple[Figure, list[Axes]]:
    """A figure with one row of panels, lettered and named; call inside ``plotting.style()``."""
    figure = Figure(figsize=(PAGE_IN, height))
    grid = {"left": 0.08, "right": 0.985, "bottom": 0.16, "top": 0.80, "wspace": 0.42} | layout
    panels = list(np.ravel(figure.subplots(1, len(names), gridspec_kw=grid)))
    for letter, axes, name in zip("abcdef", panels, names, strict=False):
        axes.set_title(f"{letter}  {name}", loc="left")
    plotting.put_title(figure, title, x=grid["left"], y=0.975)
    return figure, panels


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
    axes.axvspan(best["step_low"], best["step_high"], color="#eeeeee", lw=0, zorder=-10)
    axes.axvline(best["step"], color=GREY, lw=0.6, ls=(0, (2, 1.5)), zorder=-5)
    if name:
        axes.annotate("best FP32", (best["step"], top), (2, -2), color=GREY, va="top",
                      xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                      rotation=90)  # fmt: skip


def legend(axes: Axes, **options: object) -> None:
    """A legend that the line and the band of the best step do not cross."""
    box = axes.legend(frameon=True, borderpad=0.15, borderaxespad=0.8, **options).get_frame()
    box.set(boxstyle="square", linewidth=0, **PAPER)


def step_ticks(axes: Axes, last: int) -> None:
    """A step axis from 0 to the end with few ticks."""
    plotting.step_axis(axes)
    axes.set_xlim(0, last)
    axes.locator_params(axis="x", nbins=4)


def name_curve(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    """A direct label near a point of a curve."""
    place_label(axes, x, y, text, color=color)


def shades(count: int) -> list:
    """Colours of an ordered series, dark to light."""
    import matplotlib as mpl

    name, low, high = RANGE
    return [mpl.colormaps[name](value) for value in np.linspace(low, high, count)]
