"""The ledger as a table and as a page: claims.csv, claims.md and one claim as JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined

from flatminima.claims.verdicts import (
    NOT_RUN,
    PAPER_SUITE,
    PRINTED_SUITE,
    VERDICTS,
    Judgement,
)

COLUMNS = [
    "id",
    "section",
    "claim",
    "paper",
    "statistic",
    "measured",
    "tolerance",
    "verdict",
    "analogue",
    "reason",
    "evidence",
]
# The order of the paper; the rows about the text and about other sources come last.
SECTIONS = [
    "Abstract", "1", "2", "4.1", "4.2", "Table 1", "4.3", "4.4", "4.5", "Figure 2",
    "5.1", "5.2", "Table 2", "6", "7", "A", "B",
]  # fmt: skip
GROUPS = {
    "X": "Does the text agree with itself and with its sources?",
    "L": "Results that the authors of Pythia published",
}
TOLERANCES = {
    "exact": "exact",
    "relative_pct": "±{:g} % of the value",
    "points": "±{:g} percentage points",
    "absolute": "±{:g}",
    "rounding": "±{:g} (rounding)",
    "steps": "±{:,} steps",
    "below": "below {:g}",
    "above": "above {:g}",
    "r_below": "r not above {:g}",
    "factor": "within a factor of {:g}",
    "alpha": "p below {:g}",
    "text": "{}",
}
PAGE = """\
# The paper's claims, judged on {{ label }}

{{ about }}

{{ summary }}

| verdict | rows | what it says |
|---|---|---|
{% for verdict, meaning in verdicts.items() -%}
| {{ verdict }} | {{ counts[verdict] }} | {{ meaning }} |
{% endfor %}
Every verdict is computed from the files linked in its row; the claims stand in
[claims.yaml]({{ ledger }}). "Analogue" is the value of a suite that is not Pythia-160m and,
for a statement free of scale, whether it would hold for it.
{% for title, rows in sections %}
## {{ title }}

| claim | paper | tested by | measured | verdict \
| {% if analogues %}analogue | {% endif %}why | evidence |
|---|---|---|---|---|{% if analogues %}---|{% endif %}---|---|
{% for row in rows -%}
| <a id="{{ row.id }}"></a>[{{ row.id }}]({{ row.ledger }}) {{ row.claim }} | {{ row.paper }} \
| {{ row.statistic }} ({{ row.tolerance }}) | {{ row.measured }} | **{{ row.verdict }}** \
| {% if analogues %}{{ row.analogue }} | {% endif %}{{ row.reason }} \
| {{ row.links }} |
{% endfor %}{% endfor %}"""


def paper_text(paper: Mapping) -> str:
    """The printed numbers of a claim, ``step 77,000; ppl 33.38``."""
    parts = []
    for key, value in paper.items():
        name, unit = (key[:-4], " %") if key.endswith("_pct") else (key, "")
        number = f"{value:,}" if isinstance(value, int) else str(value)
        parts.append(f"{name.replace('_', ' ')} {number}{unit}")
    return "; ".join(parts)


def tolerance_text(tolerance: Mapping) -> str:
    """The tolerance of a claim in words."""
    return "; ".join(TOLERANCES[key].format(value) for key, value in tolerance.items())


def links(judgement: Judgement, paths: Mapping[str, str], folder: Path) -> list[str]:
    """Links from ``folder`` to the inputs behind a row; into the ledger with its line."""
    line = f"#L{judgement.claim.line}"
    return [
        Path(os.path.relpath(paths[source], folder)).as_posix()
        + (line if source == "claims" else "")
        for source in judgement.sources
    ]


def table(judgements: Sequence[Judgement], paths: Mapping[str, str], folder: Path) -> pd.DataFrame:
    """The ledger with the columns ``COLUMNS``, links relative to ``folder``.

    ``paths`` maps the inputs (claims, table1, audit, …) to their files.
    """
    rows = [
        (
            j.claim.id,
            j.claim.section,
            j.claim.claim,
            paper_text(j.claim.paper),
            j.claim.statistic,
            j.measured,
            tolerance_text(j.claim.tolerance),
            j.verdict,
            j.analogue,
            j.reason,
            links(j, paths, folder)[0],
        )
        for j in judgements
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def about(suite: Mapping) -> str:
    """What the page is about, and what it may not be taken for."""
    if suite["name"] == PRINTED_SUITE:
        return (
            "Nothing was measured for this page. It holds the claims against the numbers that the "
            "paper prints and against public facts."
        )
    if suite["is_paper_model"]:
        return f"The claims against the measurements of {suite['label']}, the paper's model."
    size = "a small experiment" if suite["name"] == "mini" else "an experiment"
    subject = "Pythia" if suite["name"] == "mini" else PAPER_SUITE
    return (
        f"{suite['label']} is {size} of its own: nothing measured on it is a result about "
        f"{subject}. Where a row is about the text of the paper its verdict does not depend on "
        "the suite."
    )


def summary(judgements: Sequence[Judgement]) -> str:
    """One paragraph from the counts."""
    counts = pd.Series([j.verdict for j in judgements]).value_counts()
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict in counts]
    text = f"{len(judgements)} rows: {', '.join(parts)}."
    holding = [j.analogue for j in judgements if j.analogue.startswith("analogue")]
    if holding:
        hold = sum(a.startswith("analogue holds") for a in holding)
        text += (
            f" Of {len(holding)} statements that mean something for any run, {hold} hold for this "
            f"suite and {len(holding) - hold} do not."
        )
    if NOT_RUN in counts:
        never = sum(j.verdict == NOT_RUN and "extended" in j.claim.needs for j in judgements)
        text += (
            f" Rows that were not run: {counts[NOT_RUN] - never} wait for files that a command "
            f"makes, {never} for measurements that no rule makes."
        )
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _group(judgement: Judgement) -> tuple[int, str]:
    """Sorting key and title of the section a row is shown in."""
    letter = judgement.claim.id[0]
    if letter in GROUPS:
        return len(SECTIONS) + list(GROUPS).index(letter), GROUPS[letter]
    first = judgement.claim.section.split(",")[0]
    title = f"Section {first}" if first[0].isdigit() else first
    return SECTIONS.index(first), f"Appendix {first}" if first in ("A", "B") else title


def page(
    judgements: Sequence[Judgement], suite: Mapping, paths: Mapping[str, str], folder: Path
) -> str:
    """The ledger as Markdown, a table per section of the paper, links relative to ``folder``."""
    rows = table(judgements, paths, folder).map(_cell).to_dict("records")
    ledger = Path(os.path.relpath(paths["claims"], folder)).as_posix()
    for row, j in zip(rows, judgements, strict=True):
        row["ledger"] = f"{ledger}#L{j.claim.line}"
        row["links"] = ", ".join(
            f"[{Path(paths[source]).name}]({link})"
            for source, link in zip(j.sources, links(j, paths, folder), strict=True)
        )
    ordered = sorted(zip(judgements, rows, strict=True), key=lambda pair: _group(pair[0])[0])
    sections = [
        (title, [row for _, row in pairs])
        for (_, title), pairs in groupby(ordered, key=lambda pair: _group(pair[0]))
    ]
    counts = dict.fromkeys(VERDICTS, 0)
    for j in judgements:
        counts[j.verdict] += 1
    template = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return template.from_string(PAGE).render(
        label=suite["label"],
        about=about(suite),
        summary=summary(judgements),
        verdicts=VERDICTS,
        counts=counts,
        ledger=ledger,
        sections=sections,
        analogues=not suite["is_paper_model"],
    )


def write(
    judgements: Sequence[Judgement], suite: Mapping, paths: Mapping[str, str], output: str
) -> None:
    """Write the ledger in the format that the suffix of ``output`` names.

    ``.csv`` and ``.md`` hold all rows; ``.json`` the one whose id is the file's stem.
    """
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = table(judgements, paths, path.parent)
    if path.suffix == ".csv":
        rows.to_csv(path, index=False, lineterminator="\n")
    elif path.suffix == ".md":
        path.write_text(page(judgements, suite, paths, path.parent), encoding="utf-8")
    elif path.suffix == ".json":
        chosen = rows[rows["id"] == path.stem]
        if chosen.empty:
            raise ValueError(f"{output}: no claim '{path.stem}'; ids run from C01, X01 and L01")
        text = json.dumps(chosen.iloc[0].to_dict(), ensure_ascii=False, indent=2)
        path.write_text(text + "\n", encoding="utf-8")
    else:
        raise ValueError(f"{output}: the ledger is written as .csv, .md or .json")
