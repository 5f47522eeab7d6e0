"""The ledger as files: claims.html, claims.md, claims.csv and one claim as JSON.

The pages open with what was measured, the figure of effects and the primary claims; the
appendix holds every row by theme. The HTML is one file that needs nothing from elsewhere.
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

ASKED = {
    "self": "the paper with itself",
    "sources": "with public sources",
    "measured": "measured on its model",
    "design": "what the design can carry",
}
# Colour of a chip: g good, y caution, r against the paper, n nothing.
COLOURS = {
    "consistent": "g", "agrees": "g", "replicated": "g", "adequate": "g",
    "inconsistent": "r", "differs": "r", "not replicated": "r", NOT_MEASURED: "n",
}  # fmt: skip
TITLE = "The paper's claims, held against {label}"
LEAD = (
    "What the paper claims, sentence by sentence. Four questions are asked of each claim and kept "
    "apart: does the text agree with itself, does it agree with public sources, was it measured "
    "again on its own model, and what can its design carry."
)
FIGURE = (
    "Effects, each on a scale of its own. Blue: computed from the paper's printed numbers, with "
    "the range that their rounding, spacing or three runs a side leave. Orange: this suite, with "
    "its 95 % interval. Green: the bound that would count as a replication on Pythia-160m."
)


def about(ledger: Ledger, suite: Mapping | None, judged: Sequence[Judged]) -> str:
    """What was measured for the page and what it may not be taken for."""
    answers = [j.answers["measured"].text for j in judged]
    if suite and suite["is_paper_model"]:
        done, asked = sum(a not in ("", NOT_MEASURED) for a in answers), sum(map(bool, answers))
        return f"{done} of {asked} measurable rows were measured on Pythia-160m."
    text = (
        "Nothing has been measured on Pythia-160m, the paper's model, so far: none of its "
        "measurements is confirmed or refuted here."
    )
    if suite is None:
        return f"{text} This page holds the claims against the printed numbers and public sources."
    size = "a small experiment" if suite["name"] == "mini" else "an experiment"
    return (
        f"{text} {suite['label']} is {size} of its own; nothing measured on it is a result about "
        "Pythia. Its own values stand beside the claims as analogues."
    )


def links(j: Judged, paths: Mapping[str, str], folder: Path) -> list[tuple[str, str]]:
    """Names and addresses, relative to ``folder``, of what a row rests on."""
    found = [(f"{q.section}, excerpts.yaml", "excerpts", f"#L{q.line}") for q in j.row.quotes]
    found += [(Path(paths[name]).name, name, "") for name in j.files if name in paths]
    found += [("its row in claims.yaml", "claims", f"#L{j.row.line}")]
    relative = [(text, os.path.relpath(paths[name], folder) + line) for text, name, line in found]
    return list(dict.fromkeys(relative))


def record(j: Judged, paths: Mapping[str, str], folder: Path) -> dict[str, str]:
    """One row as text, with the columns of claims.csv."""
    row = j.row
    answers = {
        f"{q}{end}": getattr(a, name)
        for q, a in j.answers.items()
        for end, name in (("", "text"), ("_rule", "rule"), ("_because", "because"))
    }
    return {
        "id": row.id, "theme": row.theme, "primary": "true" if row.primary else "",
        "title": row.title, "section": ", ".join(dict.fromkeys(q.section for q in row.quotes)),
        "quotation": " [...] ".join(f"{q.section}: {q.text}" for q in row.quotes),
        "from_printed_numbers": j.found, "arithmetic": j.arithmetic,
        "charitable_reading": row.charitable, **answers, "criterion": j.criterion,
        "analogue": j.analogue, "public_source": row.source, "merges": " ".join(row.merges),
        "evidence": " ".join(address for _, address in links(j, paths, folder)),
    }  # fmt: skip


def axis(j: Judged) -> dict:
    """Places, in percent of the width, of both effects and of the bound on a row's own axis."""
    forest = j.row.forest
    (low, high), scale = forest["axis"], math.log if forest.get("log") else float

    def place(x: float) -> float:
        at = scale(min(max(x, low), high))
        return round(100 * (at - scale(low)) / (scale(high) - scale(low)), 2)

    def mark(effect: Interval | None) -> dict | None:
        if effect is None or math.isnan(float(effect)):
            return None
        return {"at": place(effect.value), "low": place(effect.low), "high": place(effect.high),
                "text": f"{effect:{forest.get('format', '.2f')}}"}  # fmt: skip

    neutral = 1.0 if forest.get("log") else 0.0
    return {"label": forest["label"], "paper": mark(j.effect), "own": mark(j.own), "id": j.row.id,
            "bound": [place(end) for end in j.bound] if j.bound else None,
            "low": f"{low:g}", "high": f"{high:g}",
            "zero": place(neutral) if low < neutral < high else None}  # fmt: skip


def context(ledger: Ledger, judged: Sequence[Judged], suite: Mapping | None,
            paths: Mapping[str, str], folder: Path) -> dict:  # fmt: skip
    """Everything that the templates show."""
    by_id, now = {j.row.id: j for j in judged}, ledger.successors
    changes = [
        change | {"entries": [
            entry | {"now": [(name, now[name], by_id[now[name]]) for name in entry["ids"]]}
            for entry in change["entries"]
        ]}
        for change in ledger.changes
    ]  # fmt: skip
    counts = {
        q: {a: sum(j.answers[q].text == a for j in judged) for a in ANSWERS[q]} for q in ANSWERS
    }
    return {
        "title": TITLE.format(label=suite["label"] if suite else "the paper's printed tables"),
        "lead": LEAD, "about": about(ledger, suite, judged), "figure": FIGURE, "asked": ASKED,
        "answers": ANSWERS, "counts": counts, "colours": COLOURS,
        "moved": [(old, new) for old, new in sorted(now.items()) if old != new],
        "primary": [j for j in judged if j.row.primary],
        "axes": [axis(j) for j in judged if j.row.forest],
        "themes": [(title, [j for j in judged if j.row.theme == key])
                   for key, title in ledger.themes.items()],
        "links": {j.row.id: links(j, paths, folder) for j in judged},
        "provenance": ledger.provenance, "changes": changes, "suite": suite,
    }  # fmt: skip


def write(ledger: Ledger, judged: Sequence[Judged], suite: Mapping | None,
          paths: Mapping[str, str], output: str) -> None:  # fmt: skip
    """Write the ledger in the format that the suffix of ``output`` names.

    ``.csv``, ``.md`` and ``.html`` hold all rows; ``.json`` the one that holds the id that the
    file is named after, whatever row that has become.
    """
    path = Path(output)
    records = [record(j, paths, path.parent) for j in judged]
    if path.suffix == ".csv":
        text = pd.DataFrame(records).to_csv(index=False, lineterminator="\n")
    elif path.suffix == ".json":
        if path.stem not in ledger.successors:
            raise UserError(f"no claim '{path.stem}'; ids are {', '.join(ledger.successors)}")
        [found] = [r for r in records if r["id"] == ledger.successors[path.stem]]
        if found["id"] != path.stem:
            found = {"asked_for": path.stem, "successor": found["id"]} | found
        text = json.dumps(found, ensure_ascii=False, indent=2) + "\n"
    else:
        template = Path(paths[f"page_{path.suffix[1:]}"]).read_text(encoding="utf-8")
        shown = context(ledger, judged, suite, paths, path.parent)
        text = render(template, shown, html=path.suffix == ".html")
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")
