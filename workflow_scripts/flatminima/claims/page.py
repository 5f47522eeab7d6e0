"""The ledger as files: claims.html, claims.md, claims.csv, and one claim as JSON.

The pages begin with the answer in short, the main claims and the figure of effects. The appendix
has all rows by theme. The HTML is one file without external resources.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from flatminima.claims.interval_arithmetic import Interval
from flatminima.claims.ledger import (
    ANSWERS,
    INCONCLUSIVE,
    NOT_MEASURED,
    NOT_REPLICATED,
    REPLICATED,
    Chip,
    Judged,
    Ledger,
    combined,
)
from flatminima.errors import UserError
from flatminima.files import atomic_path
from flatminima.pages import render

# Short names of the questions.
ASKED = {
    "self": "the paper with itself",
    "sources": "with public sources",
    "measured": "measured on its model",
    "design": "can the experiment show it",
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
TITLES = {
    "paper": "The paper's claims, against its own numbers and public sources",
    "replica": "The paper's claims, measured again on {label}",
    "other": "The paper's claims, with {label} beside them",
}
LEAD = (
    "Up to four questions are asked of each claim. Does the paper agree with itself? Do public "
    "sources agree? Was it measured again on the paper's model? Can the paper's experiment show "
    "it? The chips answer them. A card has the claim's own answers first. Below them it shows the "
    "worst answer among the claim and the rows listed under it; the codes say which rows. A "
    "measurement counts for its own row alone."
)
FIGURE = (
    "One line for each number, on its own scale; the ends of the scale are printed below the "
    "line. Blue dot: computed from what the paper prints. Blue bar: the range that follows from "
    "the rounding of printed numbers, from the distance between printed rows, or from three runs "
    "per side, with the Std of Table 2 taken as the deviation over runs. A bar that reaches the "
    "end of the scale goes on beyond it. Dotted line: no effect "
    "(a difference of 0, a ratio of 1). Green band: the bound set beforehand; a measurement on "
    "Pythia-160m replicates the claim if its 95 % interval lies inside. Lines without a band have "
    "a number of the paper but no bound on this scale."
)
ORANGE = {
    "replica": "Orange: measured on Pythia-160m, with its 95 % interval.",
    "other": (
        "Orange, below the band: {label}, with its 95 % interval. The band is not meant for it."
    ),
}
IN_WORDS = {
    REPLICATED: "as the paper has it",
    NOT_REPLICATED: "not as the paper has it",
    INCONCLUSIVE: "cannot be told",
}


def about(suite: Mapping | None, judged: Sequence[Judged]) -> str:
    """What was measured for the page, and what it must not be mistaken for."""
    answers = [judged_row.answers["measured"].text for judged_row in judged]
    measurable = [answer for answer in answers if answer]
    if suite and suite["is_paper_model"]:
        measured = [answer for answer in measurable if answer != NOT_MEASURED]
        return f"{len(measured)} of {len(measurable)} measurable rows were measured on Pythia-160m."

    text = "Nothing on this page was measured on Pythia-160m, the paper's model, so far."
    if suite is None:
        return f"{text} `make headline` measures two checkpoints, in about 20 minutes."
    size = "a small experiment" if suite["name"] == "mini" else "an experiment"
    return (
        f"{text} {suite['label']} is {size} of its own; nothing measured on it is a result about "
        "Pythia. Its values stand apart from the verdicts."
    )


def measured_again(suite: Mapping | None, judged: Sequence[Judged]) -> str:
    """What was measured on the paper's model, with the answers by row, from the answers alone."""
    if not suite or not suite["is_paper_model"]:
        return about(suite, judged)
    sentences = [about(suite, judged)]
    for answer, words in IN_WORDS.items():
        ids = [row.row.id for row in judged if row.answers["measured"].text == answer]
        if ids:
            sentences.append(f"{words[0].upper()}{words[1:]}: {len(ids)} ({', '.join(ids)}).")
    return " ".join(sentences)


def short_answer(ledger: Ledger, judged: Sequence[Judged]) -> dict:
    """The first paragraph of the page: the paper, a verdict, lists of judged rows and a remark.

    ``contradictions`` are all rows that are inconsistent by themselves. ``summary`` of claims.yaml
    names the rows of the other lists.
    """
    judged_by_id = {judged_row.row.id: judged_row for judged_row in judged}
    parts = {
        part: [judged_by_id[row_id] for row_id in ledger.summary[part]]
        for part in ("carries", "cannot", "matter")
    }
    contradictions = [row for row in judged if row.answers["self"].text == "inconsistent"]
    texts = {name: ledger.summary[name] for name in ("paper", "verdict", "remark")}
    return {**parts, "contradictions": contradictions, **texts}


def links(judged: Judged, paths: Mapping[str, str], folder: Path) -> list[tuple[str, str]]:
    """Names and addresses of the paper's files behind a row, relative to ``folder``."""
    targets = []  # text of the link, name in ``paths``, anchor
    for quote in judged.row.quotes:
        targets.append((f"{quote.section}, excerpts.yaml", "excerpts", f"#L{quote.line}"))
    for name in judged.files:
        targets.append((Path(paths[name]).name, name, ""))
    targets.append(("its row in claims.yaml", "claims", f"#L{judged.row.line}"))
    return _relative(targets, paths, folder)


def suite_links(judged: Judged, paths: Mapping[str, str], folder: Path) -> list[tuple[str, str]]:
    """Names and addresses of the suite's files that a row read."""
    targets = [(Path(paths[name]).name, name, "") for name in judged.suite_files if name in paths]
    return _relative(targets, paths, folder)


def _relative(
    targets: Sequence[tuple[str, str, str]], paths: Mapping[str, str], folder: Path
) -> list[tuple[str, str]]:
    addresses = [
        (text, os.path.relpath(paths[name], folder) + anchor) for text, name, anchor in targets
    ]
    return list(dict.fromkeys(addresses))  # each once, in order


def _chip_text(chip: Chip, row_id: str) -> str:
    """The answer of a chip, with the ids of other rows where it is theirs."""
    return chip.text if row_id in chip.rows else f"{chip.text} ({', '.join(chip.rows)})"


def record(
    judged: Judged, chips: Mapping[str, Chip], paths: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """One row as text, with the columns of claims.csv. ``chips`` are those of a main claim."""
    row = judged.row
    answer_columns = {}
    for question, answer in judged.answers.items():
        answer_columns[question] = answer.text
        answer_columns[f"{question}_rule"] = answer.rule
        answer_columns[f"{question}_because"] = answer.because
    card_columns = {}
    for question in ASKED:
        chip = chips.get(question)
        card_columns[f"{question}_card"] = _chip_text(chip, row.id) if chip else ""
    return {
        "id": row.id,
        "theme": row.theme,
        "primary": "true" if row.primary else "",
        "chips": "; ".join(
            f"{ASKED[question]}: {chip.text} ({' '.join(chip.rows)})"
            for question, chip in chips.items()
        ),
        "title": row.title,
        "section": ", ".join(dict.fromkeys(quote.section for quote in row.quotes)),
        "quotation": " [...] ".join(f"{quote.section}: {quote.shown}" for quote in row.quotes),
        "from_printed_numbers": judged.found,
        "arithmetic": judged.arithmetic,
        "charitable_reading": judged.charitable,
        **answer_columns,
        **card_columns,
        "criterion": judged.criterion,
        "analogue": judged.analogue,
        "public_source": row.source,
        "merges": " ".join(row.merges),
        "evidence": " ".join(address for _, address in links(judged, paths, folder)),
        "suite_evidence": " ".join(address for _, address in suite_links(judged, paths, folder)),
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

    outside_band = False
    if judged.bound and judged.effect is not None:
        bound_low, bound_high = judged.bound
        outside_band = not bound_low <= float(judged.effect) <= bound_high
    no_effect = 1.0 if is_log else 0.0
    # A logarithmic scale of nats or percent has no place for "no effect".
    shows_no_effect = forest.get("no_effect") != "none" and low < no_effect < high
    return {
        "id": judged.row.id,
        "label": forest["label"],
        "paper": mark(judged.effect),
        "own": mark(judged.suite_effect),
        "bound": [position(end) for end in judged.bound] if judged.bound else None,
        "low": f"{low:g}",
        "high": f"{high:g}",
        "zero": position(no_effect) if shows_no_effect else None,
        "outside_band": outside_band,
    }


def context(
    ledger: Ledger,
    judged: Sequence[Judged],
    suite: Mapping | None,
    paths: Mapping[str, str],
    folder: Path,
) -> dict:
    """Everything that the templates show."""
    judged_by_id = {judged_row.row.id: judged_row for judged_row in judged}
    bearing = {
        judged_row.row.id: [judged_by_id[row_id] for row_id in ledger.bearing_on(judged_row.row)]
        for judged_row in judged
    }
    kind = "paper"
    if suite:
        kind = "replica" if suite["is_paper_model"] else "other"
    label = suite["label"] if suite else ""
    if kind == "other" and "not Pythia" not in label:
        label = f"{label} (not Pythia)"
    axes = [axis(judged_row) for judged_row in judged if judged_row.row.forest]
    figure = [FIGURE, ORANGE.get(kind, "").format(label=label)]
    outside = [line["id"] for line in axes if line["outside_band"]]
    if outside:
        figure.append(
            f"Blue outside its band ({', '.join(outside)}): the paper's own number misses "
            "the bound, see the row."
        )
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
        "title": TITLES[kind].format(label=label),
        "kind": kind,
        "label": label,
        "short": short_answer(ledger, judged),
        "lead": LEAD,
        "measured_again": measured_again(suite, judged),
        "figure": " ".join(filter(None, figure)),
        "bearing": bearing,
        "chips_of": {
            judged_row.row.id: combined(judged_row, bearing[judged_row.row.id])
            for judged_row in judged
            if judged_row.row.primary
        },
        "asked": ASKED,
        "answers": ANSWERS,
        "counts": counts,
        "colours": COLOURS,
        "moved": [(old, new) for old, new in sorted(ledger.successors.items()) if old != new],
        "primary": [judged_row for judged_row in judged if judged_row.row.primary],
        "axes": axes,
        "themes": rows_by_theme,
        "links": {judged_row.row.id: links(judged_row, paths, folder) for judged_row in judged},
        "suite_links": {
            judged_row.row.id: suite_links(judged_row, paths, folder) for judged_row in judged
        },
        "provenance": ledger.provenance,
        "changes": _changes_with_present_rows(ledger, judged),
        "suite": suite,
    }


def _changes_with_present_rows(ledger: Ledger, judged: Sequence[Judged]) -> list[dict]:
    """The change log with one entry for each id, which gets its present row."""
    judged_by_id = {judged_row.row.id: judged_row for judged_row in judged}
    changes = []
    for change in ledger.changes:
        entries = []
        for entry in change["entries"]:
            for old_id in entry["ids"]:
                present_row = judged_by_id[ledger.successors[old_id]]
                entries.append({**entry, "id": old_id, "now": present_row})
        changes.append({**change, "entries": entries})
    return changes


def _records(
    ledger: Ledger, judged: Sequence[Judged], paths: Mapping[str, str], folder: Path
) -> dict[str, dict[str, str]]:
    """``record`` of every row, by id."""
    judged_by_id = {judged_row.row.id: judged_row for judged_row in judged}
    records = {}
    for judged_row in judged:
        row = judged_row.row
        chips = {}
        if row.primary:
            chips = combined(judged_row, [judged_by_id[i] for i in ledger.bearing_on(row)])
        columns = record(judged_row, chips, paths, folder)
        records[row.id] = {**columns, "bearing_rows": " ".join(ledger.bearing_on(row))}
    return records


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
        records = _records(ledger, judged, paths, path.parent)
        text = pd.DataFrame(list(records.values())).to_csv(index=False, lineterminator="\n")
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
    columns = _records(ledger, judged, paths, folder)[row_id]
    if row_id != claim:
        columns = {"asked_for": claim, "successor": row_id, **columns}
    return json.dumps(columns, ensure_ascii=False, indent=2) + "\n"
