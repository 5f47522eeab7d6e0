"""The paper's headline: few checkpoints, measured, beside what the paper prints.

``make headline`` measures two revisions of Pythia-160m and ``make table1`` ten. The page has each
measured number beside the printed one, and the ledger's verdict on each claim that these
revisions can decide. All bounds are those of the ledger (``claims.yaml``), which were set before
anything was measured. A claim that needs more than was measured is listed as undecided.

For another model the page has the measured numbers alone.
"""

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from flatminima.claims.evidence import TABLE_1, Measured, Printed
from flatminima.claims.interval_arithmetic import Interval, interval, read_interval
from flatminima.claims.ledger import (
    INCONCLUSIVE,
    NOT_MEASURED,
    NOT_REPLICATED,
    REPLICATED,
    Judged,
    Ledger,
    Scope,
    judge,
    within,
)
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT

VERDICTS = {
    REPLICATED: "confirmed",
    NOT_REPLICATED: "refuted",
    INCONCLUSIVE: "cannot be told",
}
# The same answers for one number, which alone decides no claim.
PLACES = {
    REPLICATED: "inside",
    NOT_REPLICATED: "outside",
    INCONCLUSIVE: "across an end",
}
# A claim about some cells of Table 1 bounds the error of each, in percent of the printed value.
_WORST_ERROR = "worst_error"
_FINAL_GAP = "gap('end')"


@dataclass(frozen=True)
class Bound:
    """What would count as a replication of one number, and the claim that says so.

    ``counts_interval`` says whether the claim's rule compares the complete 95 % interval or the
    number alone.
    """

    low: float
    high: float
    claim: str
    counts_interval: bool = False


@dataclass(frozen=True)
class Number:
    """One measured number of one checkpoint.

    ``measured`` has its 95 % interval. ``paper`` has the range of its rounding, and is ``None``
    where the paper prints nothing. ``is_computed`` marks a number that follows from printed ones.
    ``digits`` are those after the point.
    """

    step: int
    name: str
    digits: int
    measured: Interval
    paper: Interval | None = None
    is_computed: bool = False
    bound: Bound | None = None

    @property
    def place(self) -> str:
        """Where the measured number is: inside the bound, outside it, or across an end."""
        if self.bound is None:
            return ""
        compared = self.measured if self.bound.counts_interval else self.measured.alone
        return PLACES[within(compared, self.bound.low, self.bound.high)]

    def shown(self, number: object) -> str:
        """A number with this one's digits, with a thousands comma and without a minus zero."""
        return "" if number is None else f"{float(number):z,.{self.digits}f}"

    @property
    def interval_text(self) -> str:
        """The 95 % interval of the measured number."""
        low, high = map(self.shown, self.measured.range)
        return f"[{low}, {high}]"

    @property
    def paper_text(self) -> str:
        """The printed number; one that was computed from printed ones is marked."""
        return self.shown(self.paper) + (" *" if self.is_computed else "")

    @property
    def bound_text(self) -> str:
        """Both ends of the bound, and where the measured number is."""
        if self.bound is None:
            return ""
        low, high = map(self.shown, (self.bound.low, self.bound.high))
        return f"{low} to {high} ({self.bound.claim}): {self.place}"


@dataclass(frozen=True)
class Decided:
    """A claim that the measured checkpoints decide. ``verdict`` is one of ``VERDICTS``."""

    judged: Judged
    value: Interval
    paper: Interval | None
    bound: tuple[float, float]

    @property
    def sentence(self) -> str:
        """What was measured, what the paper prints, and the bound."""
        row = self.judged.row
        digits = row.measured.get("format", ".2f")
        paper = "" if self.paper is None else f" The paper: {float(self.paper):{digits}}."
        measured = self.judged.answers["measured"].because
        return f"Measured: {measured}.{paper} Set beforehand: {self.judged.criterion}."

    @property
    def verdict(self) -> str:
        """Confirmed, refuted, or cannot be told."""
        return VERDICTS[self.judged.answers["measured"].text]


def bounds_of_cells(ledger: Ledger, paper: Printed) -> dict[tuple[str, int], Bound]:
    """The ledger's bound on each cell of Table 1 that has one, by column and step.

    A claim about the largest error of several cells bounds each of them. One cell alone cannot
    confirm such a claim.
    """
    bounds = {}
    for row in ledger.rows:
        value = row.measured.get("value", "")
        if value.startswith(_WORST_ERROR):
            arguments = value.removeprefix(f"{_WORST_ERROR}(").removesuffix(")")
            column, *chosen = ast.literal_eval(f"({arguments},)")
            printed_cells = paper.curve(*TABLE_1[column])
            largest_error = Scope(row, paper).bound()[1] / 100
            # Without steps of its own the row is about every printed cell of the column.
            steps = chosen[0] if chosen else printed_cells
            for step in steps:
                cell = float(printed_cells[step])
                bound = Bound(
                    cell * (1 - largest_error),
                    cell * (1 + largest_error),
                    row.id,
                    counts_interval=column != "fp32_ppl",  # the audit's perplexities have no range
                )
                bounds[column, step] = bound
        elif value == _FINAL_GAP:
            low, high = Scope(row, paper).bound()
            bounds["int4_gap_pct", paper.pythia["last"]] = Bound(low, high, row.id, True)
    return bounds


def numbers(
    audit: pd.DataFrame,
    steps: Iterable[int],
    quantizers: Mapping[str, str],
    paper: Printed | None,
    bounds: Mapping[tuple[str, int], Bound],
) -> list[Number]:
    """The measured numbers of ``steps``, beside those of the paper's Table 1 if given.

    ``quantizers`` maps roles to printed names. Steps without rows in ``audit`` are left out.
    """
    rows = audit.set_index(["step", "role"])
    all_numbers = []
    for step in steps:
        if (step, FP32) in rows.index:
            rows_of_step = rows.loc[step]
            all_numbers += _numbers_of_step(step, rows_of_step, quantizers, paper, bounds)
    return all_numbers


def _numbers_of_step(
    step: int,
    rows: pd.DataFrame,
    quantizers: Mapping[str, str],
    paper: Printed | None,
    bounds: Mapping[tuple[str, int], Bound],
) -> list[Number]:
    def printed_cell(column: str) -> Interval | None:
        return paper.curve(*TABLE_1[column]).get(step) if paper else None

    def measured_cell(role: str, column: str) -> Interval:
        if column == "ppl":
            return read_interval(rows.loc[role], "ppl", "ppl_low", "ppl_high")
        return read_interval(rows.loc[role], "gap_pct", "gap_low_pct", "gap_high_pct")

    def added_loss(gap: Interval) -> Interval:
        return gap.map(lambda percent: math.log1p(percent / 100))

    further = [role for role in quantizers if role not in (LOW_BIT, HIGH_BIT)]
    low_bit = quantizers[LOW_BIT]
    high_bit = quantizers[HIGH_BIT]
    printed_ppl = printed_cell("fp32_ppl")
    printed_gap = printed_cell("int4_gap_pct")
    low_bit_gap = measured_cell(LOW_BIT, "gap_pct")
    computed_ppl = None
    computed_loss = None
    if printed_ppl and printed_gap:
        computed_ppl = printed_ppl * (1 + printed_gap / 100)
        computed_loss = added_loss(printed_gap)
    return [
        Number(
            *(step, "FP32 perplexity", 2, measured_cell(FP32, "ppl"), printed_ppl),
            bound=bounds.get(("fp32_ppl", step)),
        ),
        Number(
            *(step, f"{low_bit} gap (%)", 1, low_bit_gap, printed_gap),
            bound=bounds.get(("int4_gap_pct", step)),
        ),
        Number(
            *(step, f"{high_bit} gap (%)", 2, measured_cell(HIGH_BIT, "gap_pct")),
            printed_cell("int8_gap_pct"),
            bound=bounds.get(("int8_gap_pct", step)),
        ),
        Number(
            *(step, f"{low_bit} perplexity", 2, measured_cell(LOW_BIT, "ppl"), computed_ppl),
            is_computed=computed_ppl is not None,
        ),
        Number(
            *(step, f"{low_bit} loss added (nats)", 3, added_loss(low_bit_gap), computed_loss),
            is_computed=computed_loss is not None,
        ),
        # Quantizers beyond the paper, such as INT4 after equalization.
        *(
            Number(step, f"{quantizers[role]}: gap (%)", 1, measured_cell(role, "gap_pct"))
            for role in further
        ),
    ]


def decided_claims(
    ledger: Ledger, paper: Printed, measured: Measured
) -> tuple[list[Decided], dict[str, list[Judged]]]:
    """Claims that ``measured`` decides, and the others by what they need."""
    decided = []
    undecided: dict[str, list[Judged]] = {}
    for judged in judge(ledger, paper, measured):
        answer = judged.answers["measured"]
        if answer.text in VERDICTS:
            decided.append(_decided(judged, paper, measured))
        elif answer.text == NOT_MEASURED:
            need = answer.because.partition(";")[0]
            if "never" in judged.row.measured:
                need = "cannot be measured with this workflow"
            undecided.setdefault(need, []).append(judged)
    return decided, undecided


def _decided(judged: Judged, paper: Printed, measured: Measured) -> Decided:
    row = judged.row
    expression = row.measured["value"]
    value = interval(Scope(row, measured).value(expression))
    # A distance from the printed numbers exists only for a measurement.
    printed_value = None
    if hasattr(Printed, expression.partition("(")[0]):
        printed_value = interval(Scope(row, paper).value(expression))
    return Decided(judged, value, printed_value, Scope(row, paper).bound())


def about(suite: Mapping, decided: Sequence[Decided]) -> list[str]:
    """What was measured and decided, in short sentences: the first one says what was measured."""
    steps = ", ".join(f"{step:,}" for step in suite["steps"])
    count = f"{len(suite['steps'])} of {suite['revisions']} revisions"
    sentences = [f"{suite['label']}, {count}: steps {steps}."]
    if not suite["is_paper_model"]:
        return [
            *sentences,
            "The paper measured another model, so no number of the paper stands beside these.",
        ]
    for claim in decided:
        row = claim.judged.row
        sentences.append(f"{row.id}, {row.title}: {claim.verdict}. {claim.sentence}")
    if not decided:
        sentences.append("These revisions decide no claim of the paper.")
    return sentences


def table(all_numbers: Sequence[Number], decided: Sequence[Decided]) -> pd.DataFrame:
    """The content of ``headline.csv``: one row per number, then one per decided claim."""
    rows = []
    for number in all_numbers:
        bound = number.bound
        rows.append(
            {
                "kind": "number",
                "step": number.step,
                "name": number.name,
                "paper": None if number.paper is None else float(number.paper),
                "measured": float(number.measured),
                "low": number.measured.low,
                "high": number.measured.high,
                "bound_low": bound.low if bound else None,
                "bound_high": bound.high if bound else None,
                "claim": bound.claim if bound else "",
                "answer": number.place,
            }
        )
    for claim in decided:
        rows.append(
            {
                "kind": "claim",
                "step": None,
                "name": claim.judged.row.measured["what"],
                "paper": None if claim.paper is None else float(claim.paper),
                "measured": float(claim.value),
                "low": claim.value.low,
                "high": claim.value.high,
                "bound_low": claim.bound[0],
                "bound_high": claim.bound[1],
                "claim": claim.judged.row.id,
                "answer": claim.verdict,
            }
        )
    return pd.DataFrame(rows).astype({"step": "Int64"})
