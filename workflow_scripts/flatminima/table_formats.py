"""One frame of numbers as CSV, Markdown and LaTeX.

CSV and LaTeX have a row for each step or condition. Markdown has a column for each, so
that what must be said of the paper's numbers stands once in a line and the table can be
read in a terminal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from flatminima.labels import PAPER_MODEL

LOW, HIGH = "95 % low", "95 % high"
MISSING_CELL = "NA"


@dataclass(frozen=True)
class Table:
    """A frame of numbers, how each of its columns is printed, a caption and a LaTeX label.

    ``key`` is the heading whose values head the columns of the Markdown table. In the rows
    ``missing`` (by their place) the suite's empty cells are printed as ``NA``.
    """

    frame: pd.DataFrame
    formats: dict[tuple[str, str], str]
    caption: str
    label: str
    key: str
    comparable: bool
    missing: tuple[int, ...] = ()

    @property
    def groups(self) -> tuple[str, str]:
        """Names of the suite's and the paper's columns."""
        suite, paper = self.frame.columns.get_level_values(0).unique()
        return suite, paper


def _warning(what: str) -> str:
    """What must be said of the paper's numbers in the table of another model."""
    return (
        f"{what} are the paper's printed numbers for another model ({PAPER_MODEL}), text and "
        "scale; they stand here for orientation and are not comparable with the suite's."
    )


def _mark_missing(table: Table, cells: pd.DataFrame) -> pd.DataFrame:
    """``cells`` with ``NA`` where the suite's numbers are missing; unchanged if none are."""
    if not table.missing:
        return cells
    cells = cells.astype(object)
    suite, _ = table.groups
    for column in cells.columns[cells.columns.get_level_values(0) == suite]:
        for row in table.missing:
            if pd.isna(table.frame[column].iloc[row]):
                cells.loc[cells.index[row], column] = MISSING_CELL
    return cells


def _printed(table: Table) -> pd.DataFrame:
    """The frame as text."""
    text = pd.DataFrame(
        {
            column: ["" if pd.isna(v) else table.formats[column].format(v) for v in values]
            for column, values in table.frame.items()
        }
    )
    return _mark_missing(table, text)


def _bracketed(text: pd.DataFrame) -> pd.DataFrame:
    """The same with intervals in brackets behind their value."""
    for group, low in [column for column in text.columns if LOW in column[1]]:
        value, high = low.replace(f" {LOW}", ""), low.replace(LOW, HIGH)
        interval = " [" + text[group, low] + ", " + text[group, high] + "]"
        text[group, value] += interval.where(~text[group, value].isin(["", MISSING_CELL]), "")
        text = text.drop(columns=[(group, low), (group, high)])
    return text


def _flat(table: Table, paper: str) -> list[str]:
    """One-line headings: the suite's as they are, the paper's behind ``paper``."""
    suite, _ = table.groups
    return [name if group == suite else f"{paper}: {name}" for group, name in table.frame.columns]


def _csv(table: Table) -> str:
    cells = _mark_missing(table, table.frame)
    return cells.set_axis(_flat(table, table.groups[1]), axis=1).to_csv(index=False)


def _markdown(table: Table) -> str:
    paper = "paper" if table.comparable else "paper, not comparable"
    text = _printed(table).set_axis(_flat(table, paper), axis=1)
    turned = text.set_index(table.key).T
    body = turned.to_markdown(
        headers=[table.key, *turned.columns], disable_numparse=True,
        colalign=["left"] + ["right"] * turned.shape[1],
    )  # fmt: skip
    said = "" if table.comparable else f"**{_warning(f'Rows headed {paper!r}')}**\n\n"
    return f"{table.caption}\n\n{said}{body}\n"


def _latex(table: Table) -> str:
    text = _bracketed(_printed(table))
    caption = table.caption
    if not table.comparable:
        caption += " " + _warning(f"The columns headed '{table.groups[1]}'")
    # Headings of three short lines keep the columns narrow enough for a page.
    parts = [(group, *_heading_lines(heading)) for group, heading in text.columns]
    latex = text.set_axis(pd.MultiIndex.from_tuples(parts), axis=1).to_latex(
        index=False, escape=True, column_format="r" * text.shape[1], multicolumn_format="c",
        caption=_escape(caption), label=table.label, position="htbp",
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
