"""Curves with a slider that reads them at one step, in plain HTML, SVG and a few lines of script.

Nothing outside the page is asked for. The page is whole without the script: the curves with
a mark at the last step and its reading; the slider itself is shown by the script alone.
"""

import hashlib
import html
import json
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from flatminima.figures.plotting import LOOKS, fork_looks
from flatminima.labels import SCHEDULES, role_labels
from flatminima.notebooks.display import brackets, printed
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT

WIDTH, HEIGHT = 700, 190  # of the drawing, in pixels of a wide window
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 22, 8, 22
_SCRIPT = """(() => {
  const box = document.getElementById("%s");
  const places = JSON.parse(box.dataset.places);
  const range = box.querySelector("input"), mark = box.querySelector(".mark");
  const dots = box.querySelectorAll("circle"), cells = box.querySelectorAll("output");
  const read = () => {
    const [x, heights, texts] = places[range.value];
    mark.setAttribute("x1", x);
    mark.setAttribute("x2", x);
    dots.forEach((dot, n) => { dot.setAttribute("cx", x); dot.setAttribute("cy", heights[n]); });
    cells.forEach((cell, n) => { cell.textContent = texts[n]; });
    range.setAttribute("aria-valuetext", texts[0]);
  };
  range.parentElement.hidden = false;
  range.addEventListener("input", read);
  read();
})();"""


def slider(
    curves: pd.DataFrame, readings: pd.DataFrame, *, unit: str, colors: Mapping[str, str]
) -> str:
    """HTML of ``curves`` over their index with a slider that reads one row of ``readings``.

    ``curves`` has a column a curve, in ``unit``, and ``readings`` a column a number as it is
    printed, of which the first says where it is read; both have the same index of steps.
    ``colors`` are by curve.
    """
    steps = curves.index.to_numpy(dtype=float)
    values = curves.to_numpy(dtype=float)
    lows, highs = (steps.min(), min(0.0, values.min())), (steps.max(), values.max())
    x, y = _across(steps, lows[0], highs[0]), _up(values, lows[1], highs[1])
    places = [
        [round(at, 1), [round(h, 1) for h in heights], list(texts)]
        for at, heights, texts in zip(
            x.tolist(), y.tolist(), readings.astype(str).itertuples(index=False), strict=True
        )
    ]
    data = html.escape(json.dumps(places, separators=(",", ":")))
    name = "slider-" + hashlib.sha256(data.encode()).hexdigest()[:8]
    drawing = _axes(lows, highs)
    for number, (curve, color) in enumerate((c, colors[c]) for c in curves):
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y[:, number], strict=True))
        drawing += f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>'
        drawing += f'<circle cx="{x[-1]:.1f}" cy="{y[-1, number]:.1f}" r="3.5" fill="{color}"/>'
    drawing += (
        f'<line class="mark" x1="{x[-1]:.1f}" x2="{x[-1]:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" '
        'stroke="currentColor" stroke-dasharray="2 3"/>'
    )
    legend = ", ".join(
        f'<span style="color: {colors[curve]}">&#9632;</span> {html.escape(curve)}'
        for curve in curves
    )
    numbers = "".join(
        f"<div><small>{html.escape(head)}</small><br><output>{html.escape(text)}</output></div>"
        for head, text in zip(readings, places[-1][2], strict=True)
    )
    about = f"{', '.join(curves)} in {unit} over training steps; read at {places[-1][2][0]}"
    return (
        f'<div id="{name}" data-places="{data}" style="max-width: {WIDTH}px">'
        f"<p>{legend}; {html.escape(unit)}</p>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" font-size="11" '
        f'fill="currentColor" aria-label="{html.escape(about)}">{drawing}</svg>'
        f'<label hidden>{html.escape(readings.columns[0])} '
        f'<input type="range" min="0" max="{len(steps) - 1}" value="{len(steps) - 1}" '
        'style="width: 100%"></label>'
        f'<div style="display: flex; flex-wrap: wrap; gap: 0.2em 1.6em">{numbers}</div></div>'
        f"<script>{_SCRIPT % name}</script>"
    )


def _across(steps: np.ndarray, low: float, high: float) -> np.ndarray:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (steps - low) / max(high - low, 1e-9)


def _up(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (values - low) / max(high - low, 1e-9)


def _ticks(low: float, high: float, most: int) -> np.ndarray:
    """Round numbers between ``low`` and ``high``."""
    ticks = MaxNLocator(most).tick_values(low, high)
    return ticks[(ticks >= low) & (ticks <= high)]


def _axes(lows: tuple[float, float], highs: tuple[float, float]) -> str:
    """Ticks with their numbers, and a line at each of the vertical axis."""
    parts = []
    for tick in _ticks(lows[1], highs[1], 4):
        y = _up(tick, lows[1], highs[1])
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
            f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in _ticks(lows[0], highs[0], 6):
        x = _across(tick, lows[0], highs[0])
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{tick:,.0f}</text>')
    return "".join(parts)


def audit_slider(audit: pd.DataFrame) -> str:
    """Both gaps over training; at each checkpoint its learning rate, perplexities and gaps.

    ``audit`` is audit.csv.
    """
    wide, names = audit.pivot(index="step", columns="role"), role_labels(audit)
    gaps, readings = pd.DataFrame(index=wide.index), pd.DataFrame(index=wide.index)
    readings["checkpoint"] = [f"step {step:,}" for step in wide.index]
    if wide["lr_fraction", FP32].notna().any():
        readings["LR, of its maximum"] = printed(wide["lr_fraction", FP32], ".0%")
    readings["FP32 ppl"] = printed(wide["ppl", FP32], ",.2f")
    for role in (LOW_BIT, HIGH_BIT):
        gaps[names[role]] = wide["gap_pct", role]
        intervals = brackets(wide["gap_low_pct", role], wide["gap_high_pct", role])
        readings[f"{names[role]} ppl"] = printed(wide["ppl", role], ",.2f")
        readings[f"{names[role]} gap, % [95 %]"] = [
            f"{gap} {interval}"
            for gap, interval in zip(printed(gaps[names[role]], "z.2f"), intervals, strict=True)
        ]
    colors = {names[role]: LOOKS[role].color for role in (LOW_BIT, HIGH_BIT)}
    return slider(gaps, readings, unit="perplexity gap, % of FP32", colors=colors)


def forks_slider(forks: pd.DataFrame) -> str:
    """Low-bit gap of each schedule over the forks' steps, a mean over the seeds of ``forks``.

    ``forks`` has rows of forks.csv. Beside each gap stands the perplexity, in which a
    schedule that spoils FP32 cannot look good.
    """
    low = forks[forks["role"] == LOW_BIT]
    wide = low.groupby(["step", "schedule"])[["gap_pct", "ppl"]].mean().unstack("schedule")
    gaps, readings = pd.DataFrame(index=wide.index), pd.DataFrame(index=wide.index)
    readings["probe"] = [f"step {step:,}" for step in wide.index]
    colors = {}
    for name, look in fork_looks(low["schedule"].unique()).items():
        label = SCHEDULES.get(name, name)
        gaps[label], colors[label] = wide["gap_pct", name], look.color
        readings[f"{label} gap, %"] = printed(gaps[label], "z.2f")
        readings[f"{label} ppl"] = printed(wide["ppl", name], ".2f")
    unit = f"{role_labels(forks)[LOW_BIT]} perplexity gap, % of FP32"
    return slider(gaps, readings, unit=unit, colors=colors)
