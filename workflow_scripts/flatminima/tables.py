"""Tables 1 and 2 beside the paper's printed numbers, as CSV, Markdown and LaTeX.

The heading over the paper's columns says whose model they are about, and that they are not
comparable unless the suite is that model. CSV and LaTeX have a row for each step or
condition; Markdown has a column for each, so that it can be read in a terminal.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.absent_steps import DIVERGED, left_out_words
from flatminima.equivalents import equivalent_step, grid_steps, schedule_of_kind
from flatminima.files import atomic_path
from flatminima.paper import PAPER_LAST_STEP, PAPER_MODEL
from flatminima.style import SCHEDULES, role_labels

BASELINE = "cosine"  # the condition that the others are compared with
MISSING_CELL = "NA"
Columns = Mapping[str, tuple[str, Iterable]]  # heading: how values are printed, and the values


@dataclass(frozen=True)
class Table:
    """Numbers, the same as they are printed, a caption and a LaTeX label.

    Columns of both frames are pairs: whose they are, and the heading. ``key`` is the heading
    whose values head the columns of the Markdown table. ``warning`` is what must be said of
    the paper's numbers in the table of another model, behind what they are called.
    """

    frame: pd.DataFrame
    text: pd.DataFrame
    caption: str
    label: str
    key: str
    warning: str


def audit_table(audit: pd.DataFrame, phases: dict, paper: pd.DataFrame, *, suite: dict) -> Table:
    """Table 1: the audit at the suite's equivalents of the paper's ten steps.

    ``paper`` is its Table 1. The equivalent of a step is the evenly spaced step that is nearest
    by the share of the run (``equivalents.equivalent_step``), or without an even grid the
    nearest measured one; of several of the paper's steps with one equivalent the nearest has a
    row. Cells are empty where the suite has no such checkpoint. They are NA where its revision
    is missing, and ``diverged`` where its numbers are not finite (NA in CSV).
    """
    names = role_labels(audit, suite)
    low, high = names["low_bit"], names["high_bit"]
    last, spacing = suite["last"], suite["spacing"]
    without_grid = spacing == 1
    measured_steps = sorted(step for step in audit["step"].unique() if step > 0)
    choice = measured_steps if without_grid else grid_steps(spacing, last)
    steps, paper = _equivalent_rows(paper, choice, last)
    left_out = {step: MISSING_CELL for step in phases.get("missing", ())}
    left_out |= {step: DIVERGED for step in phases.get("diverged", ())}
    by_role = {role: part.set_index("step").reindex(steps) for role, part in audit.groupby("role")}
    fp32, low_bit, high_bit = (by_role[role] for role in ("fp32", "low_bit", "high_bit"))
    # A boundary belongs to the phase that ends there, as in the paper; none after the end.
    ends = [(part["last_step"], part["phase"]) for part in phases["segments"]]
    phase = [
        next((number for end, number in ends if step <= end and step not in left_out), None)
        for step in steps
    ]
    measured = {
        "phase": ("{:.0f}", phase),
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
    text = (
        f"FP32 perplexity (PPL) and the relative perplexity gap of {low} and {high} at "
        f"{'ten' if len(steps) == 10 else len(steps)} steps (those nearest to the paper's steps "
        "by the share of the run). Intervals: 95 %, paired bootstrap over stretches of the "
        "validation text. Phases are the suite's own."
    )
    if left_out:
        text += f" No numbers ({left_out_words(phases)})."
    marks = {row: left_out[step] for row, step in enumerate(steps) if step in left_out}
    return _table(measured, printed, suite, text, label="audit", key="step", marks=marks)


def _equivalent_rows(
    paper: pd.DataFrame, choice: Sequence[int], last: int
) -> tuple[pd.Series, pd.DataFrame]:
    """The suite's equivalent of each of the paper's steps, once each, out of ``choice``.

    Returns them with the rows of ``paper`` that belong to them: of several the nearest.
    """
    wanted = paper["step"] * last / PAPER_LAST_STEP
    nearest = paper["step"].map(lambda step: equivalent_step(step, choice, last))
    kept = (nearest - wanted).abs().groupby(nearest).idxmin().sort_index()
    return nearest[kept].reset_index(drop=True), paper.loc[kept].reset_index(drop=True)


def forks_table(
    forks: pd.DataFrame, statistics: pd.DataFrame, paper: pd.DataFrame, *, suite: dict
) -> Table:
    """Table 2: the forks' conditions, with the seed as the unit.

    ``forks`` are for the name of the low-bit quantizer, ``paper`` is its Table 2. The suite's
    schedule of a condition is found by its kind (``equivalents.schedule_of_kind``): ``suite`` is
    as in ``plan_forks.fork_facts``. Conditions that the suite did not run have empty cells.
    """
    low = role_labels(forks, suite)["low_bit"]
    rows = statistics[statistics["unit"] == "seed"].set_index(["test", "comparison", "measure"])
    # A schedule without phases has all its probes in one condition of its own name.
    defined = {name: one["definition"] for name, one in suite["conditions"].items()}
    schedules = [schedule_of_kind(defined, kind) for kind in paper["schedule"]]
    tested = rows.index.get_level_values("comparison")
    names = [f"{name} {probes}" for name, probes in zip(schedules, paper["probes"], strict=True)]
    names = [name if name in tested else name.removesuffix(" all") for name in names]

    def over_seeds(measure: str, column: str, test: str = "summary", against: str = "") -> list:
        # The cool-down has no phases: one value a schedule.
        of = schedules if measure.startswith("cooled") else names
        return list(rows[column].reindex([(test, f"{name}{against}", measure) for name in of]))

    def gap(how: str) -> Columns:
        measure = f"{how}_gap_pct"
        won, *n = (
            over_seeds(measure, column, "pairwise wins", f" v {BASELINE}")
            for column in ("value", "n_a", "n_b")
        )
        return {
            f"{how} {low} gap (%)": ("{:z.2f}", over_seeds(measure, "mean_a")),
            f"sd, {how}": ("{:.2f}", over_seeds(measure, "sd_a")),
            f"wins, {how}": ("{}", _wins(won, np.prod(n, axis=0))),
        }

    measured = {
        "condition": ("{}", paper["condition"]),
        "schedule": ("{}", paper["schedule"].map(SCHEDULES)),
        "probes": ("{}", paper["probes"]),
        "seeds": ("{:.0f}", pd.array(over_seeds("final_gap_pct", "n_a"), dtype="Int64")),
        **gap("final"),
        **gap("cooled"),
        **gap("mean"),
        "FP32 PPL": ("{:.2f}", over_seeds("final_fp32_ppl", "mean_a")),
        f"{low} PPL": ("{:.2f}", over_seeds("final_low_bit_ppl", "mean_a")),
    }
    printed = {
        "gap (%)": ("{:.1f}", paper["mean_gap_pct"]),
        "sd": ("{:.1f}", paper["sd_gap_pct"]),
        "FP32 PPL": ("{:.1f}", paper["fp32_ppl"]),
        "wins": ("{}", _wins(paper["wins"], paper["pairs"])),
    }
    text = (
        f"relative {low} perplexity gap of the forks: mean and standard deviation (sd) over seeds "
        "of the gap at each fork's last probe (final), after a cool-down that is the same for all "
        "(cooled: the comparison at equal rates) and of its mean over all probes (mean). "
        "Conditions with cool probes leave out probes whose last update was a bump. Perplexities "
        "are means at the last probe. Wins: pairs of seeds in which the condition has the lower "
        "gap than cosine at the same steps. The gap is relative to each fork's own FP32 model."
    )
    return _table(measured, printed, suite, text, label="forks", key="condition")


def _wins(wins: Iterable[float], pairs: Iterable[float]) -> list[str | None]:
    return [None if pd.isna(w) else f"{w:.0f}/{of:.0f}" for w, of in zip(wins, pairs, strict=True)]


def _table(
    measured: Columns, printed: Columns, suite: dict, text: str, *, label: str, key: str,
    marks: Mapping[int, str] | None = None,
) -> Table:  # fmt: skip
    """The suite's columns beside the paper's.

    ``marks`` says by row what the suite's empty cells are printed as; as numbers they are NA.
    """
    mark_of_row = pd.Series(marks or {}, dtype=object)
    comparable = suite["is_paper_model"]
    paper = f"paper ({PAPER_MODEL}{'' if comparable else '; not comparable'})"
    numbers, cells = {}, {}
    for group, named in {suite["label"]: measured, paper: printed}.items():
        for heading, (pattern, values) in named.items():
            # An array of pandas keeps integers beside gaps.
            found = pd.Series(pd.array(list(values)))
            shown = found.map(pattern.format, na_action="ignore").astype(object)
            marked = found.index.isin(mark_of_row.index) & found.isna() & (group != paper)
            numbers[group, heading] = found.astype(object).mask(marked, MISSING_CELL)
            mark = mark_of_row.reindex(found.index)
            cells[group, heading] = shown.mask(marked, mark).fillna("")
    warning = (
        f" are the paper's printed numbers for another model ({PAPER_MODEL}), text and scale; "
        "they stand here for orientation and are not comparable with the suite's."
    )
    frames, caption = (pd.DataFrame(numbers), pd.DataFrame(cells)), f"{suite['label']}: {text}"
    return Table(*frames, caption, f"tab:{label}", key, "" if comparable else warning)


def write(table: Table, paths: Iterable[str | Path]) -> None:
    """Write ``table`` once for each path; the suffix (csv, md, tex) decides the format."""
    forms = {".csv": _csv, ".md": _markdown, ".tex": _latex}
    for path in map(Path, paths):
        with atomic_path(path) as temporary:
            temporary.write_text(forms[path.suffix](table), encoding="utf-8", newline="\n")


def _headed(frame: pd.DataFrame, paper: str) -> pd.DataFrame:
    """With one-line headings: the suite's as they are, the paper's behind ``paper``."""
    suite = frame.columns[0][0]
    heads = [name if group == suite else f"{paper}: {name}" for group, name in frame.columns]
    return frame.set_axis(heads, axis=1)


def _csv(table: Table) -> str:
    return _headed(table.frame, table.frame.columns[-1][0]).to_csv(index=False)


def _markdown(table: Table) -> str:
    paper = "paper, not comparable" if table.warning else "paper"
    turned = _headed(table.text, paper).set_index(table.key).T
    body = turned.to_markdown(
        headers=[table.key, *turned.columns], disable_numparse=True,
        colalign=["left"] + ["right"] * turned.shape[1],
    )  # fmt: skip
    said = f"**Rows headed {paper!r}{table.warning}**\n\n" if table.warning else ""
    return f"{table.caption}\n\n{said}{body}\n"


def _latex(table: Table) -> str:
    text, caption = table.text.copy(), table.caption
    if table.warning:
        caption += f" The columns headed '{text.columns[-1][0]}'{table.warning}"
    # Intervals stand in brackets behind their value.
    for group, low in [column for column in text.columns if "95 % low" in column[1]]:
        value, high = low.replace(" 95 % low", ""), low.replace("low", "high")
        interval = " [" + text.pop((group, low)) + ", " + text.pop((group, high)) + "]"
        text[group, value] += interval.where(
            ~text[group, value].isin(["", MISSING_CELL, DIVERGED]), ""
        )
    # Headings of three short lines keep the columns narrow enough for a page.
    pattern = re.compile(r"(\S+) ?(.*?) ?(\(.+\))?")
    heads = [(group, *pattern.fullmatch(heading).groups("")) for group, heading in text]
    latex = text.set_axis(pd.MultiIndex.from_tuples(heads), axis=1).to_latex(
        index=False, escape=True, column_format="r" * text.shape[1], multicolumn_format="c",
        caption=caption.replace("%", r"\%").replace("_", r"\_"), label=table.label,
        position="htbp",
    )  # fmt: skip
    small = r"\footnotesize\setlength{\tabcolsep}{2.5pt}"
    return latex.replace(r"\begin{tabular}", small + "\n" + r"\begin{tabular}")
