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
from flatminima.style import GREY, LOSS, PAPER_MODEL

PAPER_SPACING = 1000  # steps between the paper's evenly spaced checkpoints
PAPER_NAMES = {"low_bit": "INT4", "high_bit": "INT8"}
HALF_DIGIT_PCT = 0.005  # half of the last printed digit of the INT8 gaps in Table 1


def main(audit: str, table1: str, outputs: list, suite: dict) -> None:
    """Write ``outputs`` (pdf, svg, png); ``suite`` has label, is_paper_model and spacing."""
    style.save(draw(pd.read_csv(audit), pd.read_csv(table1), suite=suite), outputs)


@style.style()
def draw(audit: pd.DataFrame, paper: pd.DataFrame, *, suite: dict) -> Figure:
    """Loss added by the high-bit quantizer against that of the low-bit one, per checkpoint.

    ``audit`` is audit.csv of ``suite`` (keys label, is_paper_model and spacing), of which
    the evenly spaced steps are drawn; ``paper`` is the printed Table 1 (columns step,
    int4_gap_pct, int8_gap_pct), always in a panel of its own. Slope and ratio are those of
    statistics.csv. The dashed line is what the distance of the levels alone would give: an
    error that grows with its square. Section 4.4.
    """
    own = style.with_ends(style.even(audit, suite["spacing"]))
    warning = "" if suite["is_paper_model"] else "; not comparable"
    sides = [
        ("this suite", own, style.role_labels(audit, suite), suite["spacing"], "95 % intervals"),
        (f"paper's Table 1 ({PAPER_MODEL}{warning})", _printed(paper), PAPER_NAMES,
         PAPER_SPACING, "rounding"),
    ]  # fmt: skip
    figure = Figure(figsize=(style.PAGE_IN, 4.2))
    panels = figure.subplots(
        1, 2, gridspec_kw={"left": 0.11, "right": 0.985, "bottom": 0.105, "top": 0.69,
                           "wspace": 0.32},
    )  # fmt: skip
    for axes, (title, table, names, spacing, bars) in zip(panels, sides, strict=True):
        left_out = _draw_deltas(axes, table)
        expected = _draw_expected(axes, names)
        low, high = (names[role] for role in PAPER_NAMES)
        axes.set_xlabel(f"loss added by {low} (nats/token, log scale)")
        axes.set_ylabel(f"loss added by {high} (nats/token, log scale)")
        axes.set_title(title, loc="left", pad=52)
        rows = {row.test: row for row in bit_width_rows(table, spacing)}
        lines = [
            f"sums of {BLOCKS} stretches: low/high {_number(rows['ratio'], 0)}",
            f"slope {_number(rows['log-log regression'], 2)}",
            f"left out, no loss added: {left_out} of {table['step'].nunique()} checkpoints",
            f"bars: {bars}{expected}",
        ]
        axes.annotate("\n".join(lines), (0, 1), (0, 6), xycoords="axes fraction",
                      textcoords="offset points", color=GREY)  # fmt: skip
    title = join_notes(f"{suite['label']}: loss added by rounding, beside the paper's",
                       missing_words(holes(audit["step"], suite["spacing"])))  # fmt: skip
    style.put_title(figure, title, x=0.11, y=0.98)
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


def _draw_deltas(axes: Axes, table: pd.DataFrame) -> int:
    """Draw the checkpoints whose losses both grew; returns how many did not."""
    low, high = (
        table[table["role"] == role].set_index("step").sort_index() for role in PAPER_NAMES
    )
    positive = (low[LOSS[0]] > 0) & (high[LOSS[0]] > 0)
    x, y = low.loc[positive, LOSS[0]], high[positive]
    axes.plot(x, y[LOSS[0]], ls="", marker="o", color="black", mew=0, zorder=3)
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
    axes.plot(ends, ends / ratio, color=style.BLUE, lw=0.9, ls=style.DASHED, zorder=1)
    return f"; dashed: ({high}/{low})² = {ratio:.0f}"


def _number(row: Row, digits: int) -> str:
    if pd.isna(row.value):
        return "none"
    ends = f" [{row.interval_low:.{digits}f}, {row.interval_high:.{digits}f}]"
    return f"{row.value:.{digits}f}{'' if pd.isna(row.interval_low) else ends}".replace("-", "−")


if __name__ == "__main__":
    run(main, snakemake)
