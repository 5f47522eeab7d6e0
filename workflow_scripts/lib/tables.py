"""Tables 1 and 2 beside the paper's printed numbers, as CSV, Markdown and LaTeX of one frame.

Columns of a frame are pairs (group, heading). The paper's group says in its name whose
model it is about, and that it is not comparable unless the suite is that model.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from workflow_scripts.lib.labels import SCHEDULES, role_labels

PAPER_MODEL = "Pythia-160m"
BASELINE = "cosine"  # the condition that the others are compared with
PAPER_SPACING = 1000  # steps between the paper's evenly spaced checkpoints
LOW, HIGH = "95 % low", "95 % high"
Column = tuple[str, Iterable]  # how values are printed, and the values


@dataclass(frozen=True)
class Table:
    """A frame of numbers, how each of its columns is printed, a caption and a LaTeX label."""

    frame: pd.DataFrame
    formats: dict[tuple[str, str], str]
    caption: str
    label: str


def paper_heading(suite: dict) -> str:
    """Group heading of the paper's columns; ``suite`` has the key is_paper_model."""
    warning = "" if suite["is_paper_model"] else "; not comparable"
    return f"paper ({PAPER_MODEL}{warning})"


def _caption(text: str, suite: dict) -> str:
    if suite["is_paper_model"]:
        return f"{suite['label']}: {text}"
    return (
        f"{suite['label']}: {text} The columns headed '{paper_heading(suite)}' are the paper's "
        "printed numbers for another model, text and scale; they stand here for orientation "
        "and are not comparable with the suite's."
    )


def _phase_of(step: int, segments: Iterable[dict]) -> int | None:
    """Phase of a step; a boundary step belongs to the phase that ends there, as in the paper.

    ``None`` for a step after the end of training.
    """
    return next((part["phase"] for part in segments if step <= part["last_step"]), None)


def audit_table(audit: pd.DataFrame, phases: dict, paper: pd.DataFrame, *, suite: dict) -> Table:
    """Table 1: the audit at the suite's equivalents of the paper's ten steps.

    ``audit`` and ``phases`` are audit.csv and phases.json of ``suite`` (keys label,
    is_paper_model, spacing in steps); ``paper`` has the columns phase, step, fp32_ppl,
    int4_gap_pct, int8_gap_pct, lr_pct. The equivalent of a step is step x spacing / 1000;
    where the suite has no such checkpoint its cells are empty.
    """
    names = role_labels(audit)
    low, high = names["low_bit"], names["high_bit"]
    steps = paper["step"] * suite["spacing"] // PAPER_SPACING
    by_role = {role: part.set_index("step").reindex(steps) for role, part in audit.groupby("role")}
    fp32, low_bit, high_bit = by_role["fp32"], by_role["low_bit"], by_role["high_bit"]
    measured = {
        "phase": ("{:.0f}", [_phase_of(step, phases["segments"]) for step in steps]),
        "step": ("{:,.0f}", steps),
        "FP32 PPL": ("{:.2f}", fp32["ppl"]),
        f"{low} gap (%)": ("{:.1f}", low_bit["gap_pct"]),
        f"{low} gap {LOW} (%)": ("{:.1f}", low_bit["gap_low_pct"]),
        f"{low} gap {HIGH} (%)": ("{:.1f}", low_bit["gap_high_pct"]),
        f"{high} gap (%)": ("{:.2f}", high_bit["gap_pct"]),
        f"{low} PPL": ("{:.2f}", low_bit["ppl"]),
        f"{low} delta NLL (nats/token)": ("{:.4f}", low_bit["delta_nll_nats_per_token"]),
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
        f"FP32 perplexity (PPL) and the relative perplexity gap of {low} and {high} at ten steps "
        f"(the paper's step times {suite['spacing']}/{PAPER_SPACING}). Brackets: 95 % paired "
        "bootstrap intervals over validation sequences. Phases are the suite's own."
    )
    return _side_by_side(measured, printed, suite=suite, text=text, label="tab:audit")


def forks_table(statistics: pd.DataFrame, paper: pd.DataFrame, *, suite: dict, low: str) -> Table:
    """Table 2: the forks' conditions, with the seed as the unit.

    ``statistics`` is statistics.csv of ``suite`` (keys label, is_paper_model); ``paper``
    has the columns condition, schedule, probes, mean_gap_pct, sd_gap_pct, fp32_ppl, wins,
    pairs. ``low`` is the printed name of the low-bit quantizer. Conditions that the suite
    did not run have empty cells.
    """
    by_seed = statistics[statistics["unit"] == "seed"]
    summary = by_seed[by_seed["test"] == "summary"].set_index(["comparison", "measure"])
    versus = by_seed[by_seed["test"] == "pairwise wins"].set_index(["comparison", "measure"])
    # A schedule without phases has all its probes in one condition of its own name.
    tested = set(summary.index.get_level_values("comparison"))
    names = [
        f"{schedule} {probes}"
        for schedule, probes in zip(paper["schedule"], paper["probes"], strict=True)
    ]
    names = [name if name in tested else name.removesuffix(" all") for name in names]

    def over_seeds(measure: str, column: str) -> pd.Series:
        return summary[column].reindex([(name, measure) for name in names])

    def won(measure: str) -> list[str | None]:
        rows = versus.reindex([(f"{name} v {BASELINE}", measure) for name in names])
        return _wins(rows["value"], rows["n_a"] * rows["n_b"])

    measured = {
        "condition": ("{}", paper["condition"]),
        "schedule": ("{}", paper["schedule"].map(SCHEDULES)),
        "probes": ("{}", paper["probes"]),
        "seeds": ("{:.0f}", over_seeds("final_gap_pct", "n_a").astype("Int64")),
        f"final {low} gap (%)": ("{:.2f}", over_seeds("final_gap_pct", "mean_a")),
        "sd, final": ("{:.2f}", over_seeds("final_gap_pct", "sd_a")),
        "wins, final": ("{}", won("final_gap_pct")),
        f"mean {low} gap (%)": ("{:.2f}", over_seeds("mean_gap_pct", "mean_a")),
        "sd, mean": ("{:.2f}", over_seeds("mean_gap_pct", "sd_a")),
        "wins, mean": ("{}", won("mean_gap_pct")),
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
        "of the gap at each fork's last probe (final) and of its mean over all probes (mean). "
        "Rows with cool probes leave out probes whose last update was a bump. Perplexities are "
        "means at the last probe. Wins: pairs of seeds in which the condition has the lower gap "
        "than cosine at the same steps. The gap is relative to each fork's own FP32 model."
    )
    return _side_by_side(measured, printed, suite=suite, text=text, label="tab:forks")


def _wins(wins: Iterable[float], pairs: Iterable[float]) -> list[str | None]:
    return [
        None if pd.isna(won) else f"{won:.0f}/{of:.0f}" for won, of in zip(wins, pairs, strict=True)
    ]


def _side_by_side(
    measured: dict[str, Column], printed: dict[str, Column], *, suite: dict, text: str, label: str
) -> Table:
    """Columns of the suite and of the paper, each a format and values, as one table."""
    groups = {suite["label"]: measured, paper_heading(suite): printed}
    columns, formats = {}, {}
    for group, named in groups.items():
        for heading, (pattern, values) in named.items():
            columns[group, heading] = pd.array(list(values))  # keeps integers beside gaps
            formats[group, heading] = pattern
    return Table(pd.DataFrame(columns), formats, _caption(text, suite), label)


def _printed(table: Table) -> pd.DataFrame:
    """The frame as text: formatted numbers, intervals in brackets behind their value."""
    text = pd.DataFrame(
        {
            column: ["" if pd.isna(v) else table.formats[column].format(v) for v in values]
            for column, values in table.frame.items()
        }
    )
    for group, low in [column for column in text.columns if LOW in column[1]]:
        value, high = low.replace(f" {LOW}", ""), low.replace(LOW, HIGH)
        interval = " [" + text[group, low] + ", " + text[group, high] + "]"
        text[group, value] += interval.where(text[group, value] != "", "")
        text = text.drop(columns=[(group, low), (group, high)])
    return text


def _flat(columns: pd.MultiIndex) -> list[str]:
    """One-line headings: the suite's as they are, the paper's behind the name of their group."""
    suite = columns[0][0]
    return [name if group == suite else f"{group}: {name}" for group, name in columns]


def _csv(table: Table) -> str:
    return table.frame.set_axis(_flat(table.frame.columns), axis=1).to_csv(index=False)


def _markdown(table: Table) -> str:
    text = _printed(table)
    # No-break spaces keep a value and its interval on one line where the table is rendered.
    text = text.map(lambda cell: cell.replace(" ", "\u00a0")).set_axis(_flat(text.columns), axis=1)
    body = text.to_markdown(index=False, disable_numparse=True, colalign=["right"] * text.shape[1])
    return f"{table.caption}\n\n{body}\n"


def _latex(table: Table) -> str:
    text = _printed(table)
    # Headings of three short lines keep the columns narrow enough for a page.
    parts = [(group, *_heading_lines(heading)) for group, heading in text.columns]
    latex = text.set_axis(pd.MultiIndex.from_tuples(parts), axis=1).to_latex(
        index=False, escape=True, column_format="r" * text.shape[1], multicolumn_format="c",
        caption=_escape(table.caption), label=table.label, position="htbp",
    )  # fmt: skip
    small = r"\footnotesize\setlength{\tabcolsep}{2.5pt}"
    return latex.replace(r"\begin{tabular}", small + "\n" + r"\begin{tabular}")


def _heading_lines(heading: str) -> tuple[str, str, str]:
    """First word, other words and unit: ``INT4``, ``gap``, ``(%)``."""
    name, bracket, unit = heading.partition(" (")
    first, _, others = name.partition(" ")
    return first, others, f"({unit}" if bracket else ""


def _escape(text: str) -> str:
    """The characters of captions that LaTeX would read as commands."""
    return text.replace("%", r"\%").replace("_", r"\_")


_WRITERS: dict[str, Callable[[Table], str]] = {
    ".csv": _csv,
    ".md": _markdown,
    ".tex": _latex,
}


def write(table: Table, paths: Iterable[str | Path]) -> None:
    """Write ``table`` once for each path; the suffix (csv, md, tex) decides the format.

    Raises ``ValueError`` for another suffix.
    """
    for path in map(Path, paths):
        if path.suffix not in _WRITERS:
            raise ValueError(f"{path}: a table is written as {', '.join(_WRITERS)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_WRITERS[path.suffix](table), encoding="utf-8", newline="\n")
