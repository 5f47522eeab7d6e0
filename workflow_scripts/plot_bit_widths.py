"""Draw figure 5: what rounding to many levels costs, against what rounding to few costs."""

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flatminima import style
from flatminima.absent_steps import hole_words
from flatminima.hypothesis_tests import join_notes
from flatminima.paper import PAPER_MODEL, PAPER_SPACING
from flatminima.statistics_table import BLOCKS, bit_width_rows
from flatminima.style import GREY, LOSS

PAPER_NAMES = {"low_bit": "INT4", "high_bit": "INT8"}
HALF_DIGIT_PCT = 0.005  # half of the last printed digit of the INT8 gaps in Table 1


def draw(audit: pd.DataFrame, phases: dict, table1: pd.DataFrame, suite: dict) -> Figure:
    """Loss added by the high-bit quantizer against that of the low-bit one, per checkpoint.

    Of the evenly spaced steps; ``table1`` is the paper's, always in a panel of its own. Slope
    and ratio are those of statistics.csv. The dashed line is what the distance of the levels
    alone would give: an error that grows with its square. Section 4.4.
    """
    names, spacing = style.role_labels(audit, suite), suite["spacing"]
    title = f"{suite['label']}: loss added by rounding, beside the paper's"
    figure = style.page(join_notes(title, hole_words(audit["step"], spacing, phases)), 4.2)
    ours, papers = figure.subplots(1, 2)
    own = style.with_ends(style.even(audit, spacing))
    warning = "" if suite["is_paper_model"] else "; not comparable"
    _draw_side(ours, "this suite", own, names, spacing, "95 % intervals")
    _draw_side(papers, f"paper's Table 1 ({PAPER_MODEL}{warning})", _printed(table1), PAPER_NAMES,
               PAPER_SPACING, "rounding")  # fmt: skip
    return figure


def _printed(paper: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the columns of an audit; ``low`` and ``high`` are its rounding."""
    parts = []
    for role, name in PAPER_NAMES.items():
        gap = paper[f"{name.lower()}_gap_pct"]
        ends = {"gap_low_pct": gap - HALF_DIGIT_PCT, "gap_high_pct": gap + HALF_DIGIT_PCT}
        part = pd.DataFrame({"step": paper["step"], "role": role, **ends})
        parts.append(style.with_ends(part.assign(**{LOSS[0]: np.log1p(gap / 100)})))
    return pd.concat(parts, ignore_index=True)


def _draw_side(
    axes: Axes, title: str, table: pd.DataFrame, names: dict, spacing: int, bars: str
) -> None:
    low, high = (
        table[table["role"] == role].set_index("step").sort_index() for role in PAPER_NAMES
    )
    grown = (low[LOSS[0]] > 0) & (high[LOSS[0]] > 0)
    x, y = low.loc[grown, LOSS[0]], high[grown]
    axes.plot(x, y[LOSS[0]], ls="", marker="o", color="black", mew=0, zorder=3)
    if not grown.any():
        axes.set(xlim=(0.001, 1), ylim=(0.001, 1))
    style.log_axis(axes.xaxis, axes.yaxis)
    # Bars that reach zero, and the line, must not stretch the axes.
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    axes.vlines(x, y["low"].clip(lower=1e-12), y["high"], color=GREY, lw=0.4, alpha=0.6, zorder=2)
    rows = {row.test: row for row in bit_width_rows(table, spacing)}
    lines = [
        title,
        f"sums of {BLOCKS} stretches: low/high {style.with_interval(rows['ratio'], 0)}",
        f"slope {style.with_interval(rows['log-log regression'], 2)}",
        f"left out, no loss added: {(~grown).sum()} of {len(grown)} checkpoints",
        f"bars: {bars}{_draw_expected(axes, names)}",
    ]
    axes.set_title("\n".join(lines))
    axes.set_xlabel(f"loss added by {names['low_bit']} (nats/token, log scale)")
    axes.set_ylabel(f"loss added by {names['high_bit']} (nats/token, log scale)")


def _draw_expected(axes: Axes, names: dict[str, str]) -> str:
    """Where the high-bit loss would be if only the distance of the levels counted.

    Returns words for it; empty, with nothing drawn, where the names tell no bit widths.
    """
    bits = [re.fullmatch(r"INT(\d+)", names[role]) for role in PAPER_NAMES]
    if not all(bits):
        return ""
    low, high = (2 ** int(found[1]) - 1 for found in bits)
    ratio, ends = (high / low) ** 2, np.array(axes.get_xlim())
    axes.plot(ends, ends / ratio, color=style.BLUE, lw=0.9, ls=style.DASHED, zorder=1)
    return f"; dashed: ({high}/{low})² = {ratio:.0f}"


if __name__ == "__main__":
    style.run(draw, snakemake)
