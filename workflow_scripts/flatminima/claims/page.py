"""The ledger as files: claims.html, claims.md, claims.csv, and one claim as JSON.

The pages begin with what was measured, the figure of effects and the primary claims. The
appendix has all rows by theme. The HTML is one file without external resources.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from flatminima.claims.interval_arithmetic import Interval
from flatminima.claims.ledger import ANSWERS, NOT_MEASURED, Judged, Ledger
from flatminima.errors import UserError
from flatminima.files import atomic_path
from flatminima.pages import render

# Short names of the questions.
ASKED = {
    "self": "the paper with itself",
    "sources": "with public sources",
    "measured": "measured on its model",
    "design": "whether the experiment can show it",
}
# Colour of an answer: g favourable (green), r against the paper (red), n neutral. All other
# answers are yellow.
COLOURS = {
    "consistent": "g",
    "agrees": "g",
    "replicated": "g",
    "adequate": "g",
    "inconsistent": "r",
    "differs": "r",
    "not replicated": "r",
    NOT_MEASURED: "n",
}
TITLE = "The paper's claims, compared with {label}"
LEAD = (
    "The ledger lists what the paper claims, sentence by sentence. Each claim has up to four "
    "separate questions. Does the text agree with itself? Does it agree with public sources? Was "
    "it measured again on the paper's own model? Can the experiment show it?"
)
FIGURE = (
    "Effects, each on its own scale. Blue: computed from the paper's printed numbers, with the "
    "range that follows from their rounding, their spacing or three runs per side. Orange: this "
    "suite, with its 95 % interval. Green: the bound that would count as a replication on "
    "Pythia-160m."
)


def about(ledger: Ledger, suite: Mapping | None, judged: Sequence[Judged]) -> str:
    """What was measured for the page, and what it must not be mistaken for."""
    answers = [judged_row.answers["measured"].text for judged_row in judged]
    measurable = [answer for answer in answers if answer]
    if suite and suite["is_paper_model"]:
        measured = [answer for answer in measurable if answer != NOT_MEASURED]
        return f"{len(measured)} of {len(measurable)} measurable rows were measured on Pythia-160m."

    text = (
        "Nothing has been measured on Pythia-160m, the paper's model, so far. None of the paper's "
        "measurements is confirmed or refuted here."
    )
    if suite is None:
        return f"{text} This page compares the claims with printed numbers and public sources."
    size = "a small experiment" if suite["name"] == "mini" else "an experiment"
    return (
        f"{text} {suite['label']} is {size} of its own; nothing measured on it is a result about "
        "Pythia. Its own values are given with the claims as analogues."
    )


def links(judged: Judged, paths: Mapping[str, str], folder: Path) -> list[tuple[str, str]]:
    """Names and addresses of the files behind a row; addresses are relative to ``folder``."""
    targets = []  # text of the link, name in ``paths``, anchor
    for quote in judged.row.quotes:
        targets.append((f"{quote.section}, excerpts.yaml", "excerpts", f"#L{quote.line}"))
    for name in judged.files:
        if name in paths:
            targets.append((Path(paths[name]).name, name, ""))
    targets.append(("its row in claims.yaml", "claims", f"#L{judged.row.line}"))
    addresses = [
        (text, os.path.relpath(paths[name], folder) + anchor) for text, name, anchor in targets
    ]
    return list(dict.fromkeys(addresses))  # each once, in order


def record(judged: Judged, paths: Mapping[str, str], folder: Path) -> dict[str, str]:
    """One row as text, with the columns of claims.csv."""
    row = judged.row
    answer_columns = {}
    for question, answer in judged.answers.items():
        answer_columns[question] = answer.text
        answer_columns[f"{question}_rule"] = answer.rule
        answer_columns[f"{question}_because"] = answer.because
    return {
        "id": row.id,
        "theme": row.theme,
        "primary": "true" if row.primary else "",
        "title": row.title,
        "section": ", ".join(dict.fromkeys(quote.section for quote in row.quotes)),
        "quotation": " [...] ".join(f"{quote.section}: {quote.text}" for quote in row.quotes),
        "from_printed_numbers": judged.found,
        "arithmetic": judged.arithmetic,
        "charitable_reading": row.charitable,
        **answer_columns,
        "criterion": judged.criterion,
        "analogue": judged.analogue,
        "public_source": row.source,
        "merges": " ".join(row.merges),
        "evidence": " ".join(address for _, address in links(judged, paths, folder)),
    }


def axis(judged: Judged) -> dict:
    """A line of the opening figure: both effects and the bound on the row's own axis.

    Positions are in percent of the width of the axis.
    """
    forest = judged.row.forest
    low, high = forest["axis"]
    is_log = bool(forest.get("log"))
    scale = math.log if is_log else float

    def position(x: float) -> float:
        inside = min(max(x, low), high)
        fraction = (scale(inside) - scale(low)) / (scale(high) - scale(low))
        return round(100 * fraction, 2)

    def mark(effect: Interval | None) -> dict | None:
        if effect is None or math.isnan(float(effect)):
            return None
        return {
            "at": position(effect.value),
            "low": position(effect.low),
            "high": position(effect.high),
            "text": f"{effect:{forest.get('format', '.2f')}}",
        }

    no_effect = 1.0 if is_log else 0.0
    return {
        "id": judged.row.id,
        "label": forest["label"],
        "paper": mark(judged.effect),
        "own": mark(judged.suite_effect),
        "bound": [position(end) for end in judged.bound] if judged.bound else None,
        "low": f"{low:g}",
        "high": f"{high:g}",
        "zero": position(no_effect) if low < no_effect < high else None,
    }


def context(
    ledger: Ledger,
    judged: Sequence[Judged],
    suite: Mapping | None,
    paths: Mapping[str, str],
    folder: Path,
) -> dict:
    """Everything that the templates show."""
    rows_by_theme = [
        (title, [judged_row for judged_row in judged if judged_row.row.theme == theme])
        for theme, title in ledger.themes.items()
    ]
    counts = {
        question: {
            answer: sum(judged_row.answers[question].text == answer for judged_row in judged)
            for answer in answers
        }
        for question, answers in ANSWERS.items()
    }
    return {
        "title": TITLE.format(label=suite["label"] if suite else "the paper's printed tables"),
        "lead": LEAD,
        "about": about(ledger, suite, judged),
        "figure": FIGURE,
        "asked": ASKED,
        "answers": ANSWERS,
        "counts": counts,
        "colours": COLOURS,
        "moved": [(old, new) for old, new in sorted(ledger.successors.items()) if old != new],
        "primary": [judged_row for judged_row in judged if judged_row.row.primary],
        "axes": [axis(judged_row) for judged_row in judged if judged_row.row.forest],
        "themes": rows_by_theme,
        "links": {judged_row.row.id: links(judged_row, paths, folder) for judged_row in judged},
        "provenance": ledger.provenance,
        "changes": _changes_with_present_rows(ledger, judged),
        "suite": suite,
    }


def _changes_with_present_rows(ledger: Ledger, judged: Sequence[Judged]) -> list[dict]:
    """The change log. Each entry gets ``now``: its ids, their present ids and judged rows."""
    judged_by_id = {judged_row.row.id: judged_row for judged_row in judged}
    changes = []
    for change in ledger.changes:
        entries = []
        for entry in change["entries"]:
            present_rows = []
            for old_id in entry["ids"]:
                row_id = ledger.successors[old_id]
                present_rows.append((old_id, row_id, judged_by_id[row_id]))
            entries.append({**entry, "now": present_rows})
        changes.append({**change, "entries": entries})
    return changes


def write(
    ledger: Ledger,
    judged: Sequence[Judged],
    suite: Mapping | None,
    paths: Mapping[str, str],
    output: str,
) -> None:
    """Write the ledger in the format that the suffix of ``output`` names.

    ``.csv``, ``.md`` and ``.html`` have all rows. ``.json`` has the row whose id is the name of
    the file. A former id leads to its present row.
    """
    path = Path(output)
    if path.suffix == ".csv":
        records = [record(judged_row, paths, path.parent) for judged_row in judged]
        text = pd.DataFrame(records).to_csv(index=False, lineterminator="\n")
    elif path.suffix == ".json":
        text = _claim_as_json(path.stem, ledger, judged, paths, path.parent)
    else:
        template = Path(paths[f"page_{path.suffix[1:]}"]).read_text(encoding="utf-8")
        page_content = context(ledger, judged, suite, paths, path.parent)
        text = render(template, page_content, html=path.suffix == ".html")
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _claim_as_json(
    claim: str, ledger: Ledger, judged: Sequence[Judged], paths: Mapping[str, str], folder: Path
) -> str:
    """One claim as JSON. A former id is named, with its successor."""
    if claim not in ledger.successors:
        raise UserError(f"unknown claim '{claim}'; valid ids: {', '.join(ledger.successors)}")
    row_id = ledger.successors[claim]
    [judged_row] = [judged_row for judged_row in judged if judged_row.row.id == row_id]
    columns = record(judged_row, paths, folder)
    if row_id != claim:
        columns = {"asked_for": claim, "successor": row_id, **columns}
    return json.dumps(columns, ensure_ascii=False, indent=2) + "\n"
