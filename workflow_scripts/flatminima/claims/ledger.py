"""Rows of the ledger, read from ``claims.yaml``, and the answers that the evidence gives.

The ledger lists the paper's claims. A row has quotations, the numbers in them, and expressions
over both and over the accessors of ``evidence``. Each row has up to four questions: whether the
text agrees with itself, with public sources, and with a measurement on its own model, and
whether the experiment can show the claim. An answer is computed by an expression of the row, or
it is a reader's judgement, which is marked as one and has a reason.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml

from flatminima.claims.evidence import (
    FUNCTIONS,
    Evidence,
    Measured,
    NotFound,
    NotMeasured,
    Printed,
    TooFew,
)
from flatminima.claims.interval_arithmetic import Interval, interval, printed
from flatminima.errors import ConfigError, suggest

REPLICATED = "replicated"
NOT_REPLICATED = "not replicated"
INCONCLUSIVE = "cannot be told"
NOT_MEASURED = "not measured"
# Answers to each question with their meaning, from the favourable one to the severest. The chips
# of the main claims use this order.
ANSWERS = {
    "self": {
        "consistent": "what this row compares agrees; rows that bear on it are named beside it",
        "loose wording": "a fair reading agrees with the numbers; the words claim more",
        "slip": "one cell or one reference is wrong; no other statement depends on it",
        "expectation not met": "the paper expects it and prints numbers that do not show it",
        "inconsistent": "two places of the paper contradict each other",
    },
    "sources": {
        "agrees": "a public source agrees",
        "partly": "a public source agrees in part",
        "not found": "searched for in public sources and not found",
        "differs": "a public source disagrees",
    },
    "measured": {
        REPLICATED: "measured on Pythia-160m: the 95 % interval is inside the bound set beforehand",
        NOT_REPLICATED: "the interval is outside the bound, or the claimed effect was not found",
        INCONCLUSIVE: "the interval crosses an end of the bound, or the data are too few",
        NOT_MEASURED: "not measured on Pythia-160m so far",
    },
    "design": {
        "adequate": "the experiment can show this",
        "not generalizable": "one run, one checkpoint or one model",
        "not significant": "the printed effect may be chance at the printed number of runs",
        "three runs a side": "at most three runs on each side, which exclude little",
        "confounded": "several things change at once and cannot be separated",
        "not tested": "according to the text, the necessary measurement was not made",
    },
}
QUESTIONS = tuple(ANSWERS)
ANALOGUE_ANSWERS = {
    REPLICATED: "would meet",
    NOT_REPLICATED: "would not meet",
    INCONCLUSIVE: "can neither meet nor miss",
}
# Measurements beyond the paper. Only claims_extended reads them.
BEYOND = ("mechanism", "factorial", "rivals", "pilot", "amplitudes", "calibration")
_NEGATIVE_ZERO = re.compile(r"(?<![\w.])-(0(?:\.0+)?)(?![\d.])")  # as "-0.00" is printed
_EXPRESSION = re.compile(r"\{(.+?)(?::([,.%\d+a-z]*))?\}")  # {expression} or {expression:format}


# ---- claims.yaml -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Quotation:
    """A passage of the paper, its section, and its line in the file of excerpts."""

    section: str
    text: str
    line: int = 0

    @property
    def shown(self) -> str:
        """The passage with an ellipsis where it starts or stops within a sentence."""
        if self.section.startswith(("Table", "Title", "Figure")) or self.text.startswith("("):
            return self.text
        starts = "… " if self.text[0].islower() else ""
        stops = "" if self.text.endswith((".", "?", "!")) else " …"
        return f"{starts}{self.text}{stops}"

    def shares_words_with(self, other: "Quotation") -> bool:
        """Whether one of two passages of a section contains the other."""
        return self.section == other.section and (
            self.text in other.text or other.text in self.text
        )

    @property
    def place(self) -> str:
        """The section in words. A caption is only known from an article."""
        if self.section[0].isdigit():
            return f"section {self.section}"
        if self.section.startswith("Figure"):
            return f"caption of {self.section}, as an article has it"
        return f"appendix {self.section}" if len(self.section) == 1 else self.section


@dataclass(frozen=True)
class Row:
    """One row of ``claims.yaml``; the head of the file describes the fields.

    ``consistency`` is the key ``self`` of the file: whether the paper agrees with itself. ``line``
    is the row's line in the file.
    """

    id: str
    theme: str
    title: str
    quotes: tuple[Quotation, ...]
    numbers: Mapping[str, Interval]
    line: int
    primary: bool = False
    bears: tuple[str, ...] = ()
    merges: tuple[str, ...] = ()
    short: str = ""
    arithmetic: str = ""
    charitable: str = ""
    found: str = ""
    analogue: str = ""
    source: str = ""
    consistency: Mapping = field(default_factory=dict)
    sources: Mapping = field(default_factory=dict)
    measured: Mapping = field(default_factory=dict)
    design: Mapping = field(default_factory=dict)
    forest: Mapping = field(default_factory=dict)

    def shares_words_with(self, other: "Row") -> bool:
        """Whether the two rows quote the same words."""
        return any(
            quote.shares_words_with(other_quote)
            for quote in self.quotes
            for other_quote in other.quotes
        )

    def definition(self, question: str) -> Mapping:
        """How the row answers a question of ``QUESTIONS``; empty if it has no such question."""
        return getattr(self, "consistency" if question == "self" else question)


_ROW_KEYS = [
    "self" if row_field.name == "consistency" else row_field.name
    for row_field in fields(Row)
    if row_field.name != "line"
]


@dataclass(frozen=True)
class Ledger:
    """The content of ``claims.yaml``."""

    rows: tuple[Row, ...]
    themes: Mapping[str, str]
    pythia: Mapping
    summary: Mapping
    provenance: Mapping
    changes: tuple[Mapping, ...]

    @cached_property
    def successors(self) -> dict[str, str]:
        """The present row of every id that was ever used."""
        row_by_id = {row.id: row.id for row in self.rows}
        for row in self.rows:
            for old_id in row.merges:
                row_by_id[old_id] = row.id
        return row_by_id

    def bearing_on(self, row: Row) -> tuple[str, ...]:
        """Ids of the rows that bear on a row: those it names, then those that quote its words."""
        sharing = [
            other.id for other in self.rows if other.id != row.id and row.shares_words_with(other)
        ]
        return tuple(dict.fromkeys((*row.bears, *sharing)))


def flat(text: str) -> str:
    """Text with single spaces."""
    return " ".join(text.split())


def read_excerpts(path: str | Path) -> list[Quotation]:
    """The quoted passages with their sections and their lines in the file."""
    text = Path(path).read_text(encoding="utf-8")
    passages = yaml.safe_load(text)["passages"]
    return [
        Quotation(str(passage["section"]), flat(passage["text"]), line)
        for passage, line in zip(passages, _lines_that_begin(text, "- section:"), strict=True)
    ]


def _lines_that_begin(text: str, start: str) -> list[int]:
    """Numbers of the lines that begin with ``start``; YAML itself forgets its lines."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(start)]


def read_ledger(path: str | Path, excerpts: str | Path) -> Ledger:
    """Read ``claims.yaml``. Raises ``ConfigError`` with one line for a row that is not valid.

    Every quotation must occur in the excerpts under its section, and every number of a row in
    one of its quotations. Each id, present or former, belongs to one row.
    """
    text = Path(path).read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    passages = read_excerpts(excerpts)
    rows = tuple(
        _read_row(row_content, passages, line, content["themes"])
        for row_content, line in zip(
            content.pop("rows"), _lines_that_begin(text, "- id:"), strict=True
        )
    )
    uses_of_id = Counter(row_id for row in rows for row_id in (row.id, *row.merges))
    repeated = [row_id for row_id, uses in uses_of_id.items() if uses > 1]
    if repeated:
        raise ConfigError(f"{path}: {', '.join(repeated)} occurs twice; ids are unique")
    for row in rows:
        for bearing_id in row.bears:
            _check_word(bearing_id, [row.id for row in rows], f"claims.yaml, {row.id}, bears")
    return Ledger(rows, **content)


def _read_row(content: dict, passages: list[Quotation], line: int, themes: Mapping) -> Row:
    where = f"claims.yaml, {content['id']}"
    for key in content:
        _check_word(key, _ROW_KEYS, where)
    _check_word(content["theme"], themes, where)
    for question in QUESTIONS:
        _check_question(content.get(question, {}), question, where)

    quotes = [_read_quotation(quote, passages, where) for quote in content.get("quotes", ())]
    row_fields = {
        **content,
        "quotes": tuple(quotes),
        "numbers": {
            name: _read_number(name, str(number), quotes, where)
            for name, number in content.get("numbers", {}).items()
        },
        "bears": tuple(content.get("bears", ())),
        "merges": tuple(content.get("merges", ())),
        "consistency": content.get("self", {}),
    }
    row_fields.pop("self", None)
    return Row(**row_fields, line=line)


def _check_word(word: str, valid_words: Iterable[str], where: str) -> None:
    if word not in valid_words:
        raise ConfigError(f"{where}: {suggest(word, valid_words)}")


def _check_question(definition: Mapping, question: str, where: str) -> None:
    """Check that the answer of a row exists, and that a judgement has a reason."""
    answer = definition.get("judgement", definition.get("otherwise"))
    if answer:
        _check_word(answer, ANSWERS[question], f"{where}, {question}")
    if "judgement" in definition and not definition.get("because"):
        raise ConfigError(f"{where}, {question}: a judgement needs a reason")


def _read_quotation(quote: str, passages: list[Quotation], where: str) -> Quotation:
    """The quotation ``section: text``, with the line of the passage that contains it."""
    section, _, text = quote.partition(": ")
    text = flat(text)
    for passage in passages:
        if passage.section == section and text in passage.text:
            return replace(passage, text=text)
    raise ConfigError(f"{where}: not in the excerpts under {section}: {text!r}")


def _read_number(name: str, text: str, quotes: list[Quotation], where: str) -> Interval:
    """The number that a quotation prints. ``text`` may add a half width or explain a word."""
    shown = re.split(r"[±=]", text)[0].strip()
    # Not as a part of a longer number: 7 does not occur in 7.7 or 77.
    pattern = rf"(?<![\d.,]){re.escape(shown)}(?![\d]|[.,]\d)"
    if not any(re.search(pattern, quote.text) for quote in quotes):
        raise ConfigError(f"{where}: no quotation prints {name} = {shown}")
    return printed(text)


# ---- answers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An answer to one question, the rule that gives it, and a remark."""

    text: str = ""
    rule: str = ""
    because: str = ""


@dataclass(frozen=True)
class Judged:
    """A row with everything that was computed for it.

    ``effect`` and ``suite_effect`` are the statistic that the opening figure draws, from the
    paper's numbers and from the suite's. ``bound`` on its axis would count as replication.
    ``files`` are the names of the paper's and public files that were read, ``suite_files`` those
    of the suite.
    """

    row: Row
    answers: Mapping[str, Answer]
    short: str
    arithmetic: str
    charitable: str
    found: str
    criterion: str
    analogue: str
    bound: tuple[float, float] | None
    effect: Interval | None
    suite_effect: Interval | None
    files: tuple[str, ...]
    suite_files: tuple[str, ...]


class Chip(NamedTuple):
    """An answer on the card of a main claim, and the ids of the rows that give it."""

    text: str
    rows: tuple[str, ...]


def combined(judged: Judged, bearing: Iterable[Judged]) -> dict[str, Chip]:
    """The chips of a main claim: for each question the severest answer of all rows that bear on it.

    ``ANSWERS`` has the order. A measurement is the exception: it is held against the bound of the
    row itself. Questions without an answer have no chip.
    """
    rows = [judged, *bearing]
    chips = {}
    for question, valid_answers in ANSWERS.items():
        candidates = [judged] if question == "measured" else rows
        severity = list(valid_answers).index
        answers = [row.answers[question].text for row in candidates if row.answers[question].text]
        if answers:
            severest = max(answers, key=severity)
            ids = [row.row.id for row in candidates if row.answers[question].text == severest]
            chips[question] = Chip(severest, tuple(ids))
    return chips


class Scope:
    """Evaluates the expressions of a row on one kind of evidence.

    An expression may use the row's numbers, the accessors of the evidence and ``FUNCTIONS``.
    """

    def __init__(self, row: Row, evidence: Evidence) -> None:
        accessors = {
            name: getattr(evidence, name) for name in dir(evidence) if not name.startswith("_")
        }
        self.row = row
        self.names = FUNCTIONS | accessors | row.numbers | {"__builtins__": {}}

    def value(self, expression: object) -> object:
        """The value of an expression. An error in it is reported with the row."""
        if not isinstance(expression, str):
            return expression
        try:
            return eval(expression, self.names)
        except (NotMeasured, NotFound, TooFew):
            raise
        except Exception as error:
            raise ConfigError(f"claims.yaml, {self.row.id}: {expression!r}: {error}") from error

    def text(self, template: str) -> str:
        """A text in which each ``{expression:format}`` is replaced by its value."""

        def fill(match: re.Match) -> str:
            value = self.value(match[1])
            text = value if isinstance(value, str) else f"{value:{match[2] or ''}}"
            return _NEGATIVE_ZERO.sub(r"\1", text)

        return flat(_EXPRESSION.sub(fill, template))

    def bound(self) -> tuple[float, float]:
        """The bound that would count as replication; an open end is infinity."""
        low, high = map(self.value, self.row.measured["bound"])
        return -math.inf if low is None else float(low), math.inf if high is None else float(high)

    def drawn_effect(self, side: str) -> Interval | None:
        """The statistic of a row in the opening figure, if it can be computed.

        ``side`` is paper or suite.
        """
        forest = self.row.forest
        if not forest or forest.get(side) == "none":
            return None
        expression = forest.get(side) or forest.get("value") or self.row.measured["value"]
        try:
            return interval(self.value(expression))
        except (NotFound, NotMeasured, TooFew):
            return None


def judge(ledger: Ledger, paper: Printed, suite: Measured | None = None) -> list[Judged]:
    """Judge every row of the ledger on the printed numbers and, if given, on a suite."""
    return [judge_row(row, paper, suite) for row in ledger.rows]


def judge_row(row: Row, paper: Printed, suite: Measured | None = None) -> Judged:
    """Answer the four questions of one row, and compute what the pages show with them."""
    paper.used.clear()
    paper_scope = Scope(row, paper)
    suite_scope = None
    replica_scope = None  # a suite of the paper's model: only it can replicate a claim
    if suite is not None:
        suite.used.clear()
        suite_scope = Scope(row, suite)
        if suite.is_paper_model:
            replica_scope = suite_scope

    answers = {
        "self": _answer("self", paper_scope),
        "sources": _answer("sources", paper_scope),
        "measured": _measured_answer(paper_scope, replica_scope),
        "design": _answer("design", paper_scope),
    }
    analogue = ""
    if suite_scope is not None and replica_scope is None:
        analogue = _analogue(paper_scope, suite_scope)
    return Judged(
        row,
        answers,
        short=paper_scope.text(row.short),
        arithmetic=paper_scope.text(row.arithmetic),
        charitable=paper_scope.text(row.charitable),
        found=paper_scope.text(row.found),
        criterion=_criterion(paper_scope),
        analogue=analogue,
        bound=_drawn_bound(paper_scope),
        effect=paper_scope.drawn_effect("paper"),
        suite_effect=suite_scope.drawn_effect("suite") if suite_scope else None,
        # Read last: computing the fields above fills them.
        files=tuple(sorted(paper.used)),
        suite_files=tuple(sorted(suite.used)) if suite else (),
    )


def _drawn_bound(scope: Scope) -> tuple[float, float] | None:
    """The bound of a row on the axis of the opening figure."""
    forest = scope.row.forest
    if "bound" in forest:
        low, high = forest["bound"]
        return float(scope.value(low)), float(scope.value(high))
    # The figure may draw another statistic than is measured. Its axis has another unit then.
    if "value" not in forest and "bound" in scope.row.measured:
        return scope.bound()
    return None


def _answer(question: str, scope: Scope) -> Answer:
    """The answer to a question that needs no measurement."""
    definition = scope.row.definition(question)
    if not definition:
        return Answer()
    because = scope.text(definition.get("because", ""))
    if "judgement" in definition:
        return Answer(definition["judgement"], "judgement", because)

    # If rounding leaves the expression open (None), the paper has the benefit of the doubt.
    text = next(iter(ANSWERS[question]))
    if scope.value(definition["holds"]) is False:
        text = definition["otherwise"]
    return Answer(text, definition["holds"], because)


def within(value: object, low: float, high: float) -> str:
    """The answer for an interval that is inside a bound, outside it, or across one of its ends."""
    measured = interval(value)
    if low <= measured.low and measured.high <= high:
        return REPLICATED
    if measured.high < low or measured.low > high:
        return NOT_REPLICATED
    return INCONCLUSIVE


def _measured_answer(paper_scope: Scope, replica_scope: Scope | None) -> Answer:
    """The answer of a suite of the paper's model, or the command that would measure it."""
    definition = paper_scope.row.measured
    if not definition:
        return Answer()
    if "never" in definition:
        return Answer(NOT_MEASURED, "judgement", definition["never"])

    needs_extended = not set(BEYOND).isdisjoint(definition["needs"])
    page = "claims_extended.html" if needs_extended else "claims.html"
    command = f"`snakemake --cores all results/pythia-160m/{page}`"
    if replica_scope is None:
        return Answer(NOT_MEASURED, definition["value"], command)

    rule = f"{definition['value']} in {definition['bound']}"
    try:
        value = replica_scope.value(definition["value"])
    except NotMeasured as missing:
        return Answer(NOT_MEASURED, rule, f"needs {missing}; {command}")
    except TooFew as reason:
        return Answer(INCONCLUSIVE, rule, str(reason))
    except NotFound as reason:
        return Answer(NOT_REPLICATED, rule, str(reason))
    number = f"{interval(value):{definition.get('format', '.2f')}}"
    number_with_unit = f"{number} {definition['unit']}".strip()
    return Answer(within(value, *paper_scope.bound()), rule, number_with_unit)


def _criterion(scope: Scope) -> str:
    """What would count as a replication, in words."""
    definition = scope.row.measured
    if "bound" not in definition:
        return flat(definition.get("criterion", definition.get("never", "")))
    low, high = scope.bound()
    spec = definition.get("format", ".2f")
    if math.isinf(high):
        span = f"not below {low:{spec}}"
    elif math.isinf(low):
        span = f"not above {high:{spec}}"
    else:
        span = f"within {low:{spec}} to {high:{spec}}"
    criterion = f"{definition['what']}: 95 % interval {span} {definition['unit']}".rstrip()
    if "criterion" in definition:
        criterion += f" ({scope.text(definition['criterion'])})"
    return criterion


def _analogue(paper_scope: Scope, suite_scope: Scope) -> str:
    """The number of a suite that is not the paper's model, in one line; empty without one.

    If the bound means the same for any run (``alike``), the line also compares with it.
    """
    row = paper_scope.row
    if not row.analogue:
        return ""
    try:
        text = suite_scope.text(row.analogue)
        if not row.measured.get("alike"):
            return text
        answer = within(suite_scope.value(row.measured["value"]), *paper_scope.bound())
    except NotFound as reason:
        text = str(reason)
        answer = NOT_REPLICATED
    except TooFew as reason:
        text = str(reason)
        answer = INCONCLUSIVE
    except NotMeasured:
        return ""
    return f"{text}; this suite {ANALOGUE_ANSWERS[answer]} the bound, which is no test of the paper"
