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

    Evenly spaced steps only. The paper's ``table1`` always has a panel of its own. Slope and
    ratio are those of statistics.csv. The dashed line is what the distance of the levels alone
    would give: an error that grows with its square. Section 4.4.
    """
    spacing = suite["spacing"]
    title = join_notes(
        f"{suite['label']}: loss added by rounding, beside the paper's",
        hole_words(audit["step"], spacing, phases),
    )
    figure = style.page(title, 4.2)
    suite_axes, paper_axes = figure.subplots(1, 2)
    _draw_side(
        suite_axes,
        title="this suite",
        table=style.with_ends(style.even(audit, spacing)),
        names=style.role_labels(audit, suite),
        spacing=spacing,
        bars="95 % intervals",
    )
    # A reader must not take two models for one.
    warning = "" if suite["is_paper_model"] else "; not comparable"
    _draw_side(
        paper_axes,
        title=f"paper's Table 1 ({PAPER_MODEL}{warning})",
        table=_printed(table1),
        names=PAPER_NAMES,
        spacing=PAPER_SPACING,
        bars="rounding",
    )
    return figure


def _printed(table1: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the columns of an audit; ``low`` and ``high`` are the limits of its rounding."""
    tables = []
    for role, name in PAPER_NAMES.items():
        gap = table1[f"{name.lower()}_gap_pct"]
        table = pd.DataFrame(
            {
                "step": table1["step"],
                "role": role,
                "gap_low_pct": gap - HALF_DIGIT_PCT,
                "gap_high_pct": gap + HALF_DIGIT_PCT,
                LOSS[0]: np.log1p(gap / 100),
            }
        )
        tables.append(style.with_ends(table))
    return pd.concat(tables, ignore_index=True)


def _draw_side(
    axes: Axes, *, title: str, table: pd.DataFrame, names: dict, spacing: int, bars: str
) -> None:
    """One panel: a point per checkpoint, and in its title what statistics.csv says of them."""
    low_bit, high_bit = (
        table[table["role"] == role].set_index("step").sort_index() for role in PAPER_NAMES
    )
    # A logarithmic axis has no place for a loss that is zero or negative.
    has_cost = (low_bit[LOSS[0]] > 0) & (high_bit[LOSS[0]] > 0)
    low_bit_loss = low_bit.loc[has_cost, LOSS[0]]
    high_bit_rows = high_bit[has_cost]
    axes.plot(
        low_bit_loss, high_bit_rows[LOSS[0]], ls="", marker="o", color="black", mew=0, zorder=3
    )
    if not has_cost.any():
        axes.set(xlim=(0.001, 1), ylim=(0.001, 1))
    style.log_axis(axes.xaxis, axes.yaxis)
    # Bars that reach zero, and the line, must not stretch the axes.
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    _draw_at_the_edges(axes, low_bit.loc[~has_cost, LOSS[0]], high_bit.loc[~has_cost, LOSS[0]])
    bar_ends = high_bit_rows["low"].clip(lower=1e-12), high_bit_rows["high"]
    axes.vlines(low_bit_loss, *bar_ends, color=GREY, lw=0.4, alpha=0.6, zorder=2)

    statistics = {row.test: row for row in bit_width_rows(table, spacing)}
    ratio = style.with_interval(statistics["ratio"], 0)
    slope = style.with_interval(statistics["log-log regression"], 2)
    title_lines = [
        title,
        f"sums of {BLOCKS} stretches: low/high {ratio}",
        f"slope {slope}",
        f"triangles, no loss added: {(~has_cost).sum()} of {len(has_cost)} checkpoints",
        f"bars: {bars}{_draw_expected(axes, names)}",
    ]
    axes.set_title("\n".join(title_lines))
    axes.set_xlabel(f"loss added by {names['low_bit']} (nats/token, log scale)")
    axes.set_ylabel(f"loss added by {names['high_bit']} (nats/token, log scale)")


def _draw_at_the_edges(axes: Axes, low_bit: pd.Series, high_bit: pd.Series) -> None:
    """Checkpoints without an added loss, as triangles on the edge beyond which they would be."""
    x = low_bit.clip(*axes.get_xlim())
    y = high_bit.clip(*axes.get_ylim())
    look = {"marker": "v", "ms": 3.5, "mfc": "none", "mec": GREY, "mew": 0.6}
    [triangles] = axes.plot(x, y, ls="", clip_on=False, zorder=3, **look)
    triangles.set_in_layout(False)  # the layout would make room for them


def _draw_expected(axes: Axes, names: dict[str, str]) -> str:
    """A dashed line where the high-bit loss would be if only the distance of the levels counted.

    Returns a note on it. If the names contain no bit widths, nothing is drawn and the note is
    empty.
    """
    matches = [re.fullmatch(r"INT(\d+)", names[role]) for role in PAPER_NAMES]
    if not all(matches):
        return ""
    low_steps, high_steps = (2 ** int(match[1]) - 1 for match in matches)
    ratio = (high_steps / low_steps) ** 2
    x = np.array(axes.get_xlim())
    axes.plot(x, x / ratio, color=style.BLUE, lw=0.9, ls=style.DASHED, zorder=1)
    return f"; dashed: ({high_steps}/{low_steps})² = {ratio:.0f}"


if __name__ == "__main__":
    style.run(draw, snakemake)
