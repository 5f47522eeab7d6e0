"""Draw figure 5: what rounding to many levels costs, against what rounding to few costs."""

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.comparisons import BLOCKS, bit_width_rows
from flatminima.hypothesis_tests import Row, join_notes
from flatminima.jobs import run
from flatminima.missing import holes, missing_words
from flatminima.style import GREY, PAPER_MODEL, role_labels

PAPER_SPACING = 1000  # steps between the paper's evenly spaced checkpoints
PAPER_NAMES = {"low_bit": "INT4", "high_bit": "INT8"}
HALF_DIGIT_PCT = 0.005  # half of the last printed digit of the INT8 gaps in Table 1
_DELTA = "delta_nll_nats_per_token"


def main(audit: str, paper_table: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` has label, is_paper_model and spacing."""
    style.save(draw(pd.read_csv(audit), pd.read_csv(paper_table), suite=suite), outputs)


def draw(audit: pd.DataFrame, paper: pd.DataFrame, *, suite: dict) -> Figure:
    """Loss added by the high-bit quantizer against that of the low-bit one, per checkpoint.

    ``audit`` is audit.csv of ``suite`` (keys label, is_paper_model and spacing), of which
    the evenly spaced steps are drawn; ``paper`` is the printed Table 1 (columns step,
    int4_gap_pct, int8_gap_pct), always in a panel of its own. Slope and ratio are those of
    statistics.csv. The dashed line is what the distance of the levels
    alone would give: an error that grows with its square. Section 4.4.
    """
    even = audit[(audit["step"] > 0) & (audit["step"] % suite["spacing"] == 0)]
    even = even.assign(low=_added(even["gap_low_pct"]), high=_added(even["gap_high_pct"]))
    names = role_labels(audit, suite)
    warning = "" if suite["is_paper_model"] else "; not comparable"
    sides = [
        (suite["label"], even, names, suite["spacing"], "95 % intervals"),
        (f"paper's Table 1 ({PAPER_MODEL}{warning})", _printed(paper), PAPER_NAMES,
         PAPER_SPACING, "rounding"),
    ]  # fmt: skip
    with style.style():
        figure = Figure(figsize=(style.PAGE_IN, 4.0))
        panels = figure.subplots(
            1, 2, gridspec_kw={
                "left": 0.1, "right": 0.985, "bottom": 0.105, "top": 0.715, "wspace": 0.29
            },
        )  # fmt: skip
        for axes, (title, table, names, spacing, bars) in zip(panels, sides, strict=True):
            left_out = _draw_deltas(axes, table)
            expected = _draw_expected(axes, names)
            low, high = (names[role] for role in PAPER_NAMES)
            axes.set_xlabel(f"loss added by {low} (nats/token, log scale)")
            axes.set_ylabel(f"loss added by {high} (nats/token, log scale)")
            axes.set_title(title, loc="left", pad=52)
            count = table["step"].nunique()
            _write(axes, [
                *_relation(table, spacing),
                f"left out, no loss added: {left_out} of {count} checkpoints",
                f"bars: {bars}{expected}",
            ])  # fmt: skip
        style.put_title(
            figure,
            join_notes(
                f"{suite['label']}: loss added by rounding; the paper's own beside it",
                missing_words(holes(audit["step"], suite["spacing"])),
            ),
            x=0.1, y=0.98,
        )  # fmt: skip
    return figure


def _added(gap_pct: pd.Series) -> pd.Series:
    """A relative perplexity gap as a difference of losses in nats per token."""
    return np.log1p(gap_pct / 100)


def _printed(paper: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the columns of an audit; ``low`` and ``high`` are its rounding."""
    parts = []
    for role, name in PAPER_NAMES.items():
        gap = paper[f"{name.lower()}_gap_pct"]
        low, high = _added(gap - HALF_DIGIT_PCT), _added(gap + HALF_DIGIT_PCT)
        columns = {"step": paper["step"], "role": role, _DELTA: _added(gap)}
        parts.append(pd.DataFrame({**columns, "low": low, "high": high}))
    return pd.concat(parts, ignore_index=True)


def _draw_deltas(axes: Axes, table: pd.DataFrame) -> int:
    """Draw the checkpoints whose losses both grew; returns how many did not."""
    low, high = (
        table[table["role"] == role].set_index("step").sort_index() for role in PAPER_NAMES
    )
    positive = (low[_DELTA] > 0) & (high[_DELTA] > 0)
    x, y = low.loc[positive, _DELTA], high[positive]
    axes.plot(x, y[_DELTA], ls="", marker="o", ms=3, color="black", mew=0, zorder=3)
    if not positive.any():
        axes.set(xlim=(0.001, 1), ylim=(0.001, 1))
    for axis in (axes.xaxis, axes.yaxis):
        style.log_axis(axis)
    # Bars that reach zero must not stretch the axis.
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    axes.vlines(x, y["low"].clip(lower=1e-12), y["high"], color=GREY, lw=0.4, alpha=0.6, zorder=2)
    return int((~positive).sum())


def _draw_expected(axes: Axes, names: dict[str, str]) -> str:
    """Where the high-bit loss would be if only the distance of the levels counted.

    Returns words for it; empty, with nothing drawn, where the names tell no bit widths.
    """
    bits = [re.fullmatch(r"INT(\d+)", names[role]) for role in PAPER_NAMES]
    if not all(bits):
        return ""
    low, high = (2 ** int(found[1]) - 1 for found in bits)
    ratio = (high / low) ** 2
    ends = np.array(axes.get_xlim())
    color = style.LOOKS["high_bit"].color
    axes.plot(ends, ends / ratio, color=color, lw=0.9, ls=(0, (4, 1.5)), zorder=1)
    return f"; dashed: ({high}/{low})² = {ratio:.0f}"


def _relation(table: pd.DataFrame, spacing: int) -> list[str]:
    """What is printed of the ratio and of the slope, both from sums over stretches."""
    rows = {row.test: row for row in bit_width_rows(table, spacing)}
    slope, ratio = _number(rows["log-log regression"], 2), _number(rows["ratio"], 0)
    return [f"sums of {BLOCKS} stretches: low/high {ratio}", f"slope {slope}"]


def _number(row: Row, digits: int) -> str:
    if pd.isna(row.value):
        return "none"
    ends = f" [{row.interval_low:.{digits}f}, {row.interval_high:.{digits}f}]"
    return f"{row.value:.{digits}f}{'' if pd.isna(row.interval_low) else ends}".replace("-", "−")


def _write(axes: Axes, lines: list[str]) -> None:
    """Lines of text above the axes, the first one on top."""
    for row, text in enumerate(reversed(lines)):
        axes.annotate(
            text, (0, 1), (0, 6 + 10.5 * row), xycoords="axes fraction", textcoords="offset points",
            color=GREY,
        )  # fmt: skip


if __name__ == "__main__":
    run(main, snakemake)
