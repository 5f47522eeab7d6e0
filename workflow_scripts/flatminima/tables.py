"""Tables 1 and 2 beside the paper's printed numbers, as CSV, Markdown and LaTeX.

The heading over the paper's columns names the paper's model. It also says that the numbers are
not comparable, unless the suite is that model. CSV and LaTeX have a row per step or condition.
Markdown has a column per step or condition, so that it can be read in a terminal.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.absent_steps import DIVERGED, MISSING, left_out_words
from flatminima.equivalents import equivalent_step, grid_steps, schedule_of_kind
from flatminima.files import atomic_path
from flatminima.paper import PAPER_LAST_STEP, PAPER_MODEL
from flatminima.style import SCHEDULES, role_labels

BASELINE = "cosine"  # the condition that the others are compared with
MISSING_CELL = "NA"
Columns = Mapping[str, tuple[str, Iterable]]  # heading: how numbers are printed, and the numbers


@dataclass(frozen=True)
class Table:
    """Numbers, the same numbers as printed, a caption and a LaTeX label.

    Columns of both frames are pairs: the suite or the paper, and the heading. ``key`` is the
    heading whose values are the headings of the Markdown table. ``warning`` continues a sentence
    about the paper's columns, if the suite is another model; otherwise it is empty.
    """

    frame: pd.DataFrame
    text: pd.DataFrame
    caption: str
    label: str
    key: str
    warning: str


# ---- Table 1 ---------------------------------------------------------------------------------


def audit_table(audit: pd.DataFrame, phases: dict, paper: pd.DataFrame, *, suite: dict) -> Table:
    """Table 1: the audit at the suite's equivalents of the paper's ten steps.

    ``paper`` is its Table 1. The equivalent of a step is the evenly spaced step that is nearest
    as a share of the run (``equivalents.equivalent_step``), or without an even grid the nearest
    measured step. If several of the paper's steps have one equivalent, the nearest has the row.
    Cells are empty if the suite has no such checkpoint, NA if its revision is missing, and
    ``diverged`` if its numbers are not finite (NA in CSV).
    """
    names = role_labels(audit, suite)
    low = names["low_bit"]
    high = names["high_bit"]
    candidate_steps = grid_steps(suite["spacing"], suite["last"])
    if suite["spacing"] == 1:  # no even grid
        candidate_steps = sorted(step for step in audit["step"].unique() if step > 0)
    steps, paper = _equivalent_rows(paper, candidate_steps, suite["last"])

    mark_by_step = {step: MISSING_CELL for step in phases.get(MISSING, ())}
    mark_by_step |= {step: DIVERGED for step in phases.get(DIVERGED, ())}
    by_role = {role: rows.set_index("step").reindex(steps) for role, rows in audit.groupby("role")}
    fp32 = by_role["fp32"]
    low_bit = by_role["low_bit"]
    high_bit = by_role["high_bit"]
    measured = {
        "phase": ("{:.0f}", [_phase_of(step, phases, mark_by_step) for step in steps]),
        "step": ("{:,.0f}", steps),
        "FP32 PPL": ("{:.2f}", fp32["ppl"]),
        f"{low} gap (%)": ("{:z.1f}", low_bit["gap_pct"]),
        f"{low} gap 95 % low (%)": ("{:z.1f}", low_bit["gap_low_pct"]),
        f"{low} gap 95 % high (%)": ("{:z.1f}", low_bit["gap_high_pct"]),
        f"{high} gap (%)": ("{:z.2f}", high_bit["gap_pct"]),
        f"{low} PPL": ("{:.2f}", low_bit["ppl"]),
        f"{low} delta NLL (nats/token)": ("{:z.4f}", low_bit["delta_nll_nats_per_token"]),
        "LR (% of max)": ("{:.1f}", 100.0 * fp32["lr_fraction"]),
    }
    printed = {
        "phase": ("{:.0f}", paper["phase"]),
        "step": ("{:,.0f}", paper["step"]),
        "FP32 PPL": ("{:.1f}", paper["fp32_ppl"]),
        "INT4 gap (%)": ("{:.1f}", paper["int4_gap_pct"]),
        "INT8 gap (%)": ("{:.2f}", paper["int8_gap_pct"]),
        "LR (% of max)": ("{:.1f}", paper["lr_pct"]),
    }
    caption = (
        f"FP32 perplexity (PPL) and the relative perplexity gap of {low} and {high} at "
        f"{'ten' if len(steps) == 10 else len(steps)} steps (those nearest to the paper's steps "
        "as a share of the run). Intervals: 95 %, paired bootstrap over stretches of the "
        "validation text. Phases are the suite's own."
    )
    if mark_by_step:
        caption += f" No numbers ({left_out_words(phases)})."
    marks = {row: mark_by_step[step] for row, step in enumerate(steps) if step in mark_by_step}
    return _table(measured, printed, suite, caption, label="audit", key="step", marks=marks)


def _equivalent_rows(
    paper: pd.DataFrame, candidate_steps: Sequence[int], last: int
) -> tuple[pd.Series, pd.DataFrame]:
    """The suite's equivalent of each of the paper's steps, once each, of ``candidate_steps``.

    Returns the steps, and the row of ``paper`` that belongs to each: of several the nearest.
    """
    exact = paper["step"] * last / PAPER_LAST_STEP
    equivalents = paper["step"].map(lambda step: equivalent_step(step, candidate_steps, last))
    nearest_rows = (equivalents - exact).abs().groupby(equivalents).idxmin().sort_index()
    steps = equivalents[nearest_rows].reset_index(drop=True)
    return steps, paper.loc[nearest_rows].reset_index(drop=True)


def _phase_of(step: int, phases: Mapping, mark_by_step: Mapping[int, str]) -> int | None:
    """Phase of a measured step; ``None`` after the last segment.

    A boundary belongs to the phase that ends there, as in the paper.
    """
    if step in mark_by_step:
        return None
    for segment in phases["segments"]:
        if step <= segment["last_step"]:
            return segment["phase"]
    return None


# ---- Table 2 ---------------------------------------------------------------------------------


def forks_table(
    forks: pd.DataFrame, statistics: pd.DataFrame, paper: pd.DataFrame, *, suite: dict
) -> Table:
    """Table 2: the forks' conditions, with the seed as the unit.

    ``forks`` gives the name of the low-bit quantizer, ``paper`` is its Table 2. The suite's
    schedule of a condition is found by its kind (``equivalents.schedule_of_kind``). ``suite`` is
    as in ``plan_forks.fork_facts``. Conditions that the suite did not run have empty cells.
    """
    low = role_labels(forks, suite)["low_bit"]
    by_seed = statistics[statistics["unit"] == "seed"]
    rows = by_seed.set_index(["test", "comparison", "measure"])
    definitions = {name: condition["definition"] for name, condition in suite["conditions"].items()}
    schedules = [schedule_of_kind(definitions, kind) for kind in paper["schedule"]]
    # A schedule without phases is one condition, which has the schedule's name.
    tested_names = rows.index.get_level_values("comparison")
    conditions = []
    for schedule, probes in zip(schedules, paper["probes"], strict=True):
        name = f"{schedule} {probes}"
        conditions.append(name if name in tested_names else name.removesuffix(" all"))

    def column_of(
        column: str, measure: str, test: str = "summary", against: str = ""
    ) -> list[float]:
        """One column of the statistics, by condition; ``against`` is the end of a comparison."""
        # After the cool-down there are no phases: one number per schedule.
        names = schedules if measure.startswith("cooled") else conditions
        labels = [(test, f"{name}{against}", measure) for name in names]
        return list(rows[column].reindex(labels))

    def gap_columns(how: str) -> Columns:
        measure = f"{how}_gap_pct"
        wins, n_a, n_b = (
            column_of(column, measure, "pairwise wins", f" v {BASELINE}")
            for column in ("value", "n_a", "n_b")
        )
        return {
            f"{how} {low} gap (%)": ("{:z.2f}", column_of("mean_a", measure)),
            f"sd, {how}": ("{:.2f}", column_of("sd_a", measure)),
            f"wins, {how}": ("{}", _wins(wins, np.prod([n_a, n_b], axis=0))),
        }

    measured = {
        "condition": ("{}", paper["condition"]),
        "schedule": ("{}", paper["schedule"].map(SCHEDULES)),
        "probes": ("{}", paper["probes"]),
        "seeds": ("{:.0f}", pd.array(column_of("n_a", "final_gap_pct"), dtype="Int64")),
        **gap_columns("final"),
        **gap_columns("cooled"),
        **gap_columns("mean"),
        "FP32 PPL": ("{:.2f}", column_of("mean_a", "final_fp32_ppl")),
        f"{low} PPL": ("{:.2f}", column_of("mean_a", "final_low_bit_ppl")),
    }
    printed = {
        "gap (%)": ("{:.1f}", paper["mean_gap_pct"]),
        "sd": ("{:.1f}", paper["sd_gap_pct"]),
        "FP32 PPL": ("{:.1f}", paper["fp32_ppl"]),
        "wins": ("{}", _wins(paper["wins"], paper["pairs"])),
    }
    caption = (
        f"relative {low} perplexity gap of the forks: mean and standard deviation (sd) over seeds "
        "of the gap at each fork's last probe (final), after a cool-down that is the same for all "
        "(cooled: the comparison at equal rates) and of its mean over all probes (mean). "
        "Conditions with cool probes leave out probes whose last update was a bump. Perplexities "
        "are means at the last probe. Wins: pairs of seeds in which the condition has the lower "
        "gap than cosine at the same steps. The gap is relative to each fork's own FP32 model."
    )
    return _table(measured, printed, suite, caption, label="forks", key="condition")


def _wins(wins: Iterable[float], pairs: Iterable[float]) -> list[str | None]:
    """``7/9`` for each count of wins; ``None`` where it is missing."""
    return [
        None if pd.isna(count) else f"{count:.0f}/{pair_count:.0f}"
        for count, pair_count in zip(wins, pairs, strict=True)
    ]


# ---- both tables -----------------------------------------------------------------------------


def _table(
    measured: Columns,
    printed: Columns,
    suite: dict,
    caption: str,
    *,
    label: str,
    key: str,
    marks: Mapping[int, str] | None = None,
) -> Table:
    """The suite's columns beside the paper's.

    ``marks`` are printed in the suite's empty cells, by row. Among the numbers they are NA.
    """
    mark_by_row = pd.Series(marks or {}, dtype=object)
    is_comparable = suite["is_paper_model"]
    paper_group = f"paper ({PAPER_MODEL}{'' if is_comparable else '; not comparable'})"
    number_columns = {}
    text_columns = {}
    for group, columns in {suite["label"]: measured, paper_group: printed}.items():
        for heading, (pattern, numbers) in columns.items():
            # An array of pandas keeps integers as integers if others are missing.
            column = pd.Series(pd.array(list(numbers)))
            text = column.map(pattern.format, na_action="ignore").astype(object)
            is_marked = column.index.isin(mark_by_row.index) & column.isna()
            is_marked &= group != paper_group
            number_columns[group, heading] = column.astype(object).mask(is_marked, MISSING_CELL)
            marks_of_rows = mark_by_row.reindex(column.index)
            text_columns[group, heading] = text.mask(is_marked, marks_of_rows).fillna("")
    warning = (
        f" are the paper's printed numbers for another model ({PAPER_MODEL}), text and scale. "
        "They are given for orientation and are not comparable with the suite's numbers."
    )
    return Table(
        frame=pd.DataFrame(number_columns),
        text=pd.DataFrame(text_columns),
        caption=f"{suite['label']}: {caption}",
        label=f"tab:{label}",
        key=key,
        warning="" if is_comparable else warning,
    )


def write(table: Table, paths: Iterable[str | Path]) -> None:
    """Write ``table`` to each path; the suffix (csv, md, tex) decides the format."""
    formats = {".csv": _csv, ".md": _markdown, ".tex": _latex}
    for path in map(Path, paths):
        with atomic_path(path) as temporary:
            text = formats[path.suffix](table)
            temporary.write_text(text, encoding="utf-8", newline="\n")


def _headed(frame: pd.DataFrame, paper: str) -> pd.DataFrame:
    """``frame`` with one-line headings; those of the paper's columns begin with ``paper``."""
    suite_group = frame.columns[0][0]
    headings = [
        heading if group == suite_group else f"{paper}: {heading}"
        for group, heading in frame.columns
    ]
    return frame.set_axis(headings, axis=1)


def _csv(table: Table) -> str:
    paper_group = table.frame.columns[-1][0]
    return _headed(table.frame, paper_group).to_csv(index=False)


def _markdown(table: Table) -> str:
    paper = "paper, not comparable" if table.warning else "paper"
    transposed = _headed(table.text, paper).set_index(table.key).T
    body = transposed.to_markdown(
        headers=[table.key, *transposed.columns],
        disable_numparse=True,
        colalign=["left"] + ["right"] * transposed.shape[1],
    )
    warning = f"**Rows headed {paper!r}{table.warning}**\n\n" if table.warning else ""
    return f"{table.caption}\n\n{warning}{body}\n"


def _latex(table: Table) -> str:
    text = _with_joined_intervals(table.text)
    caption = table.caption
    if table.warning:
        caption += f" The columns headed '{text.columns[-1][0]}'{table.warning}"

    # Headings of three short lines keep the columns narrow enough for a page.
    pattern = re.compile(r"(\S+) ?(.*?) ?(\(.+\))?")
    headings = [(group, *pattern.fullmatch(heading).groups("")) for group, heading in text]
    latex = text.set_axis(pd.MultiIndex.from_tuples(headings), axis=1).to_latex(
        index=False,
        escape=True,
        column_format="r" * text.shape[1],
        multicolumn_format="c",
        caption=caption.replace("%", r"\%").replace("_", r"\_"),
        label=table.label,
        position="htbp",
    )
    small = r"\footnotesize\setlength{\tabcolsep}{2.5pt}"
    return latex.replace(r"\begin{tabular}", small + "\n" + r"\begin{tabular}")


def _with_joined_intervals(text: pd.DataFrame) -> pd.DataFrame:
    """``text`` with both ends of an interval in brackets in the cell of its number."""
    joined = text.copy()
    low_columns = [column for column in joined.columns if "95 % low" in column[1]]
    for group, low in low_columns:
        number = low.replace(" 95 % low", "")
        high = low.replace("low", "high")
        interval = " [" + joined.pop((group, low)) + ", " + joined.pop((group, high)) + "]"
        has_number = ~joined[group, number].isin(["", MISSING_CELL, DIVERGED])
        joined[group, number] += interval.where(has_number, "")
    return joined
