"""Rows of the ledger, read from ``claims.yaml``, and what follows from the evidence.

A row holds quotations, the numbers in them, and expressions over both and over the accessors
of ``evidence``. Four questions are asked of it, each on its own: does the text agree with
itself, with public sources, with a measurement on its own model, and what can its design
carry. An answer is computed by the row's expression, or it is a reader's judgement and says
so with its reason.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import yaml

from flatminima.claims.evidence import (
    FUNCTIONS,
    Evidence,
    Measured,
    NotFound,
    NotMeasured,
    Printed,
)
from flatminima.claims.interval_arithmetic import Interval, interval, printed
from flatminima.errors import ConfigError, suggest

REPLICATED, NOT_REPLICATED = "replicated", "not replicated"
INCONCLUSIVE, NOT_MEASURED = "inconclusive", "not measured"
# Answers to each question with their meaning; the first is the favourable one.
ANSWERS = {
    "self": {
        "consistent": "nothing else that the paper prints speaks against it",
        "loose wording": "a fair reading saves it; the words say more, or other, than the numbers",
        "slip": "one cell or one reference is wrong; nothing rests on it",
        "expectation not met": "the paper expects it and prints numbers that do not show it",
        "inconsistent": "two places of the paper exclude each other",
    },
    "sources": {
        "agrees": "a public source says the same",
        "partly": "a public source agrees in part",
        "differs": "a public source says otherwise",
        "not found": "looked for in public and not found",
    },
    "measured": {
        REPLICATED: "measured on Pythia-160m: the 95 % interval lies within the bound set before",
        NOT_REPLICATED: "the interval lies outside it, or what is claimed was not there",
        INCONCLUSIVE: "the interval crosses it",
        NOT_MEASURED: "not measured on Pythia-160m so far",
    },
    "design": {
        "adequate": "what was done can carry the statement",
        "confounded": "several things change at once; they cannot be told apart",
        "three runs a side": "at most three runs on each side; little can be excluded",
        "not significant": "the printed number could be chance at the printed size",
        "not generalizable": "one run, one checkpoint or one model",
        "not tested": "what the statement needs was not measured, as far as the text says",
    },
}
QUESTIONS = tuple(ANSWERS)
ALIKE = {REPLICATED: "as claimed", NOT_REPLICATED: "not as claimed", INCONCLUSIVE: "undecided"}
# Read by claims_extended alone.
BEYOND = ("mechanism", "rivals", "pilot", "amplitudes", "calibration")
_FIELD = re.compile(r"\{(.+?)(?::([,.%\d+a-z]*))?\}")


@dataclass(frozen=True)
class Quotation:
    """A passage of the paper, where it stands, and its line in the file of excerpts."""

    section: str
    text: str
    line: int = 0

    @property
    def place(self) -> str:
        """The section in words; what is known at second hand says so."""
        if self.section[0].isdigit():
            return f"section {self.section}"
        if self.section.startswith("Figure"):
            return f"caption of {self.section}, as an article has it"
        return f"appendix {self.section}" if len(self.section) == 1 else self.section


@dataclass(frozen=True)
class Row:
    """One row of ``claims.yaml``; the file's head describes the fields."""

    id: str
    theme: str
    title: str
    quotes: tuple[Quotation, ...]
    numbers: Mapping[str, Interval]
    line: int
    primary: bool = False
    merges: tuple[str, ...] = ()
    arithmetic: str = ""
    charitable: str = ""
    found: str = ""
    analogue: str = ""
    source: str = ""
    self: Mapping = field(default_factory=dict)
    sources: Mapping = field(default_factory=dict)
    measured: Mapping = field(default_factory=dict)
    design: Mapping = field(default_factory=dict)
    forest: Mapping = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """An answer to one question, the rule it follows from and what there is to add."""

    text: str = ""
    rule: str = ""
    because: str = ""


@dataclass(frozen=True)
class Judged:
    """A row with everything that was computed for it.

    ``effect`` and ``own`` are the statistic that the opening figure draws, in the paper's
    numbers and in the suite's, ``bound`` what would count as replication on its axis;
    ``files`` names what was read.
    """

    row: Row
    answers: Mapping[str, Answer]
    arithmetic: str
    found: str
    criterion: str
    analogue: str
    bound: tuple[float, float] | None
    effect: Interval | None
    own: Interval | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class Ledger:
    """``claims.yaml`` as a whole."""

    rows: tuple[Row, ...]
    themes: Mapping[str, str]
    pythia: Mapping
    provenance: Mapping
    changes: tuple[Mapping, ...]

    @cached_property
    def successors(self) -> dict[str, str]:
        """Every id that was ever used, and the row that holds it now."""
        pairs = [(row.id, row.id) for row in self.rows]
        return dict(pairs + [(old, row.id) for row in self.rows for old in row.merges])


def flat(text: str) -> str:
    """Text with single spaces."""
    return " ".join(text.split())


def read_excerpts(path: str | Path) -> list[Quotation]:
    """The quoted passages with their places; lines are those of the file."""
    text = Path(path).read_text(encoding="utf-8")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("- section:")]
    passages = yaml.safe_load(text)["passages"]
    return [
        Quotation(str(p["section"]), flat(p["text"]), line)
        for p, line in zip(passages, lines, strict=True)
    ]


def read_ledger(path: str | Path, excerpts: str | Path) -> Ledger:
    """Read ``claims.yaml``; raises ``ConfigError`` with one line for a row that is not valid.

    Every quotation must stand in the excerpts under its section, and every number of a row
    in one of its quotations; an id, of now or of before, leads to one row.
    """
    text = Path(path).read_text(encoding="utf-8")
    data, passages = yaml.safe_load(text), read_excerpts(excerpts)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("- id:")]
    rows = tuple(
        _row(entry, passages, line, data["themes"])
        for entry, line in zip(data.pop("rows"), lines, strict=True)
    )
    ids = Counter(name for row in rows for name in (row.id, *row.merges))
    if repeated := [name for name, count in ids.items() if count > 1]:
        raise ConfigError(f"{path}: {', '.join(repeated)} occurs twice; ids are unique")
    return Ledger(rows, **data)


def _row(entry: dict, passages: list[Quotation], line: int, themes: Mapping) -> Row:
    where = f"claims.yaml, {entry['id']}"

    def known(word: str, words: Iterable[str], place: str = "") -> None:
        if word not in words:
            raise ConfigError(f"{where}{place}: {suggest(word, words)}")

    for key in entry:
        known(key, Row.__dataclass_fields__)
    known(entry["theme"], themes)
    quotes, numbers = [], {}
    for quote in entry.get("quotes", ()):
        section, _, text = quote.partition(": ")
        found = [p for p in passages if p.section == section and flat(text) in p.text]
        if not found:
            raise ConfigError(f"{where}: not in the excerpts under {section}: {text!r}")
        quotes.append(replace(found[0], text=flat(text)))
    for key, value in entry.get("numbers", {}).items():
        shown = re.split(r"[±=]", str(value))[0].strip()
        pattern = rf"(?<![\d.,]){re.escape(shown)}(?![\d]|[.,]\d)"
        if not any(re.search(pattern, quote.text) for quote in quotes):
            raise ConfigError(f"{where}: no quotation prints {key} = {shown}")
        numbers[key] = printed(str(value))
    for question in QUESTIONS:
        given = entry.get(question, {})
        if answer := given.get("judgement", given.get("otherwise")):
            known(answer, ANSWERS[question], f", {question}")
        if "judgement" in given and not given.get("because"):
            raise ConfigError(f"{where}, {question}: a judgement needs a reason")
    merges = tuple(entry.get("merges", ()))
    return Row(**entry | {"quotes": tuple(quotes), "numbers": numbers, "merges": merges}, line=line)


class Scope:
    """A row's expressions on one kind of evidence: over its numbers, accessors and functions."""

    def __init__(self, row: Row, evidence: Evidence) -> None:
        names = {n: getattr(evidence, n) for n in dir(evidence) if not n.startswith("_")}
        self.row, self.names = row, FUNCTIONS | names | row.numbers | {"__builtins__": {}}

    def value(self, expression: object) -> object:
        """Value of an expression; a mistake in it names the row."""
        if not isinstance(expression, str):
            return expression
        try:
            return eval(expression, self.names)
        except (NotMeasured, NotFound):
            raise
        except Exception as error:
            raise ConfigError(f"claims.yaml, {self.row.id}: {expression!r}: {error}") from error

    def text(self, template: str) -> str:
        """A text with ``{expression:format}`` filled in."""

        def fill(match: re.Match) -> str:
            value, spec = self.value(match[1]), match[2] or ""
            return value if isinstance(value, str) else f"{value:{spec}}"

        return flat(_FIELD.sub(fill, template))

    def bound(self) -> tuple[float, float]:
        """What would count as replication; without an end on one side, infinity."""
        low, high = map(self.value, self.row.measured["bound"])
        return -math.inf if low is None else float(low), math.inf if high is None else float(high)

    def drawn(self, side: str) -> Interval | None:
        """The statistic of a row in the opening figure, where it can be computed."""
        forest = self.row.forest
        if not forest or forest.get(side) == "none":
            return None
        expression = forest.get(side) or forest.get("value") or self.row.measured["value"]
        try:
            return interval(self.value(expression))
        except (NotFound, NotMeasured):
            return None


def judge(ledger: Ledger, paper: Printed, suite: Measured | None = None) -> list[Judged]:
    """Every row of the ledger on the printed numbers and, where there is one, on a suite."""
    return [judge_row(row, paper, suite) for row in ledger.rows]


def judge_row(row: Row, paper: Printed, suite: Measured | None = None) -> Judged:
    """Ask the four questions of one row, and compute what is shown beside them."""
    own, scope = Scope(row, suite) if suite else None, Scope(row, paper)
    another = own and not suite.is_paper_model
    for evidence in filter(None, (paper, suite)):
        evidence.used.clear()
    answers = {
        q: _measured(scope, None if another else own) if q == "measured" else _answer(q, scope)
        for q in QUESTIONS
    }
    bound = None
    if "bound" in row.forest:
        bound = tuple(float(scope.value(end)) for end in row.forest["bound"])
    elif "value" not in row.forest and "bound" in row.measured:  # in the unit of the axis
        bound = scope.bound()
    return Judged(
        row,
        answers,
        arithmetic=scope.text(row.arithmetic),
        found=scope.text(row.found),
        criterion=_criterion(scope),
        analogue=_analogue(scope, own) if another else "",
        bound=bound,
        effect=scope.drawn("paper"),
        own=own.drawn("suite") if own else None,
        files=(*sorted(suite.used if suite else ()), *sorted(paper.used)),
    )


def _answer(question: str, scope: Scope) -> Answer:
    if not (asked := getattr(scope.row, question)):
        return Answer()
    because = scope.text(asked.get("because", ""))
    if "judgement" in asked:
        return Answer(asked["judgement"], "judgement", because)
    holds = scope.value(asked["holds"])
    # Where rounding leaves it open the paper has the benefit of the doubt.
    text = asked["otherwise"] if holds is False else next(iter(ANSWERS[question]))
    return Answer(text, asked["holds"], because)


def within(value: object, low: float, high: float) -> str:
    """Where an interval lies: inside a bound, outside it, or across one of its ends."""
    found = interval(value)
    if low <= found.low and found.high <= high:
        return REPLICATED
    return NOT_REPLICATED if found.high < low or found.low > high else INCONCLUSIVE


def _measured(scope: Scope, own: Scope | None) -> Answer:
    """The answer of a suite of the paper's model, or the command that would give one."""
    asked = scope.row.measured
    if not asked:
        return Answer()
    if "never" in asked:
        return Answer(NOT_MEASURED, "judgement", asked["never"])
    page = "claims.html" if set(BEYOND).isdisjoint(asked["needs"]) else "claims_extended.html"
    command = f"`snakemake --cores all results/pythia-160m/{page}`"
    if own is None:
        return Answer(NOT_MEASURED, asked["value"], command)
    rule = f"{asked['value']} in {asked['bound']}"
    try:
        value = own.value(asked["value"])
    except NotMeasured as lacking:
        return Answer(NOT_MEASURED, rule, f"{lacking} is missing; {command}")
    except NotFound as absent:
        return Answer(NOT_REPLICATED, rule, str(absent))
    shown = f"{interval(value):{asked.get('format', '.2f')}} {asked['unit']}".strip()
    return Answer(within(value, *scope.bound()), rule, shown)


def _criterion(scope: Scope) -> str:
    asked = scope.row.measured
    if "bound" not in asked:
        return flat(asked.get("criterion", asked.get("never", "")))
    ends = scope.bound()
    low, high = (f"{x:{asked.get('format', '.2f')}}" for x in ends)
    span = f"within {low} to {high}"
    if math.inf in map(abs, ends):
        span = f"not below {low}" if math.isinf(ends[1]) else f"not above {high}"
    why = f" ({scope.text(asked['criterion'])})" if "criterion" in asked else ""
    return f"{asked['what']}: 95 % interval {span} {asked['unit']}".rstrip() + why


def _analogue(scope: Scope, own: Scope) -> str:
    """The suite's own value in one line; empty where it says nothing.

    Where the bound means the same for any run (``alike``) it is applied as well.
    """
    row = scope.row
    if not row.analogue:
        return ""
    try:
        text = own.text(row.analogue)
        if not row.measured.get("alike"):
            return text
        answer = within(own.value(row.measured["value"]), *scope.bound())
    except NotFound as absent:
        text, answer = str(absent), NOT_REPLICATED
    except NotMeasured:
        return ""
    return f"{text}; by the same bound {ALIKE[answer]}"
