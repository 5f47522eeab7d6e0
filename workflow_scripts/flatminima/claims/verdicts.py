"""From findings to verdicts: what is concluded about each claim, and why.

The order of the questions is the order of ``decide``: do the paper's own numbers
contradict the claim; are the measurements there; is the suite the paper's model; can
the design decide; does the value agree within the tolerance.
"""

from dataclasses import dataclass

# Imported for their effect: each of these registers its functions.
from flatminima.claims import (  # noqa: F401
    arithmetic,
    audit,
    beyond,
    consistency,
    fork_text,
    forks,
    kurtosis,
    mechanism,
    onset,
    significance,
    sources,
    variants,
)
from flatminima.claims.model import (
    MEASURED,
    NEEDS,
    PRINTED,
    Claim,
    Finding,
    Ledger,
    Measurements,
    NotMeasured,
)

REPRODUCED = "REPRODUCED"
DIFFERS = "DIFFERS"
CONTRADICTED = "CONTRADICTED BY THE PAPER'S OWN NUMBERS"
UNDERPOWERED = "UNDERPOWERED"
NOT_APPLICABLE = "NOT APPLICABLE"
NOT_RUN = "NOT RUN"
VERDICTS = {
    REPRODUCED: "the computed value agrees with the claim within the tolerance of its row",
    DIFFERS: "it does not, or a public source says otherwise",
    CONTRADICTED: "other numbers or words of the paper exclude the claim; the arithmetic is given",
    UNDERPOWERED: "the design cannot decide: the smallest p it can reach is above 0.05",
    NOT_APPLICABLE: "the suite is not Pythia-160m; its own value is given beside the verdict",
    NOT_RUN: "a measurement is missing; it is named, with the command that makes it",
}

PAPER_SUITE = "pythia-160m"
PRINTED_SUITE = "paper"
TARGETS = {
    "suite": "suite.csv",
    "audit": "audit.csv",
    "sequences": "audit_sequences.parquet",
    "kurtosis": "kurtosis.csv",
    "phases": "phases.json",
    "forks": "forks.csv",
    "statistics": "statistics.csv",
    "early_warning": "early_warning.csv",
    "mechanism": "mechanism/findings.csv",
    "rivals": "rivals.csv",
    "pilot": "pilot.csv",
    "amplitudes": "amplitudes.csv",
    "calibration": "calibration.json",
}
# Made by the target `extended`; the ledger that reads them is a page of its own.
BEYOND_THE_PAPER = {"mechanism", "rivals", "pilot", "amplitudes", "calibration"}
EXTENDED_LEDGER = "claims_extended.md"
WITHOUT_SUITE = {"paper", "lambada"}
ALPHA = 0.05


@dataclass(frozen=True)
class Judgement:
    """One row of the ledger.

    ``measured`` is about the paper's model, ``analogue`` about any other suite.
    ``sources`` names the inputs behind the row, the one the verdict rests on first.
    """

    claim: Claim
    verdict: str
    measured: str
    analogue: str
    reason: str
    sources: tuple[str, ...]


def judge(m: Measurements) -> list[Judgement]:
    """Judge every claim of the ledger on the measurements of one suite."""
    check_registered(m.ledger)
    return [judge_claim(m, claim) for claim in m.ledger.claims]


def check_registered(ledger: Ledger) -> None:
    """Every claim has a function and every function a claim; ``ValueError`` names the rest."""
    rows, functions = {claim.id for claim in ledger.claims}, PRINTED.keys() | MEASURED.keys()
    if rows != functions:
        raise ValueError(
            f"claims.yaml: without a function {sorted(rows - functions)}, "
            f"functions without a row {sorted(functions - rows)}"
        )


def judge_claim(m: Measurements, claim: Claim) -> Judgement:
    """Run the functions of one claim and say what follows."""
    missing = [NEEDS[n] for n in claim.needs if not m.has(n)]
    about_text = set(claim.needs) <= WITHOUT_SUITE
    available = not about_text or all(m.has(n) for n in claim.also)
    printed = measured = None
    if claim.id in PRINTED and all(m.has(n) for n in set(claim.needs) & WITHOUT_SUITE):
        printed = PRINTED[claim.id](m, claim)
    if claim.id in MEASURED and not missing and available:
        try:
            measured = MEASURED[claim.id](m, claim)
        except NotMeasured as lacking:
            if not about_text:
                missing = [str(lacking)]
    is_paper_model = bool(m.suite["is_paper_model"])
    verdict = decide(
        claim, printed=printed, measured=measured, missing=missing, is_paper_model=is_paper_model
    )
    return Judgement(
        claim,
        verdict,
        _measured_text(m, printed, measured if is_paper_model else None),
        "" if is_paper_model else _analogue(claim, measured),
        _reason(m, claim, verdict, printed, measured, missing),
        _sources(m, claim, verdict, measured),
    )


def decide(
    claim: Claim,
    *,
    printed: Finding | None,
    measured: Finding | None,
    missing: list[str],
    is_paper_model: bool,
) -> str:
    """The verdict on one claim.

    ``printed`` and ``measured`` are what its functions found, ``missing`` the
    measurements it needs and does not have. A claim about the text alone is judged the
    same for every suite, and once more by the measurement where the suite is the
    paper's model.
    """
    if printed and printed.holds is False and printed.against == "paper":
        return CONTRADICTED
    if missing:
        return UNDERPOWERED if _undecidable(printed) else NOT_RUN
    if measured and measured.holds is not None and is_paper_model:
        if _undecidable(measured):
            return UNDERPOWERED
        return REPRODUCED if measured.holds else DIFFERS
    if _undecidable(printed):
        return UNDERPOWERED
    if set(claim.needs) <= WITHOUT_SUITE:
        if printed is None or printed.holds is None:
            raise ValueError(
                f"claim {claim.id} is about the text, yet its function does not decide"
            )
        return REPRODUCED if printed.holds else DIFFERS
    return NOT_APPLICABLE


def _undecidable(finding: Finding | None) -> bool:
    return finding is not None and finding.smallest_p is not None and finding.smallest_p > ALPHA


def _measured_text(m: Measurements, printed: Finding | None, measured: Finding | None) -> str:
    if measured:
        name = "computed" if m.suite["name"] == PRINTED_SUITE else m.suite["name"]
        return f"{name}: {measured.value}"
    return _printed_text(printed) if printed else ""


def _printed_text(printed: Finding) -> str:
    kind = "printed numbers" if printed.against == "paper" else "public facts"
    return f"{kind}: {printed.value}"


def _analogue(claim: Claim, measured: Finding | None) -> str:
    """The suite's own value, and whether a statement that is free of scale holds for it."""
    if measured is None:
        return ""
    if measured.holds is None or not claim.scale_free:
        return f"value only: {measured.value}"
    words = "analogue holds" if measured.holds else "analogue does not hold"
    if _undecidable(measured):
        words += f" (not decidable: smallest attainable p = {measured.smallest_p:.2f})"
    return f"{words}: {measured.value}"


def _reason(
    m: Measurements,
    claim: Claim,
    verdict: str,
    printed: Finding | None,
    measured: Finding | None,
    missing: list[str],
) -> str:
    parts = []
    if verdict == NOT_RUN:
        parts.append(_how_to_run(m, claim, missing))
    if verdict == UNDERPOWERED:
        smallest = next(f.smallest_p for f in (measured, printed) if _undecidable(f))
        parts.append(f"smallest attainable p = {smallest:.2f}, above {ALPHA}")
        if missing:
            parts.append(_how_to_run(m, claim, missing))
    if verdict == NOT_APPLICABLE:
        parts.append(f"{m.suite['label']} is not {PAPER_SUITE}")
    twice = (
        m.suite["name"] == PRINTED_SUITE
        and printed
        and measured
        and (printed.value == measured.value)
    )
    if printed and measured and m.suite["is_paper_model"] and not twice:
        parts.append(_printed_text(printed))
    notes = [finding.note for finding in (printed, measured) if finding and finding.note]
    parts += dict.fromkeys(notes)
    if claim.reference.get("source"):
        parts.append(f"source: {claim.reference['source']}")
    return "; ".join(parts)


def _how_to_run(m: Measurements, claim: Claim, missing: list[str]) -> str:
    """What is missing and the command that makes it, or that no command does."""
    if "extended" in claim.needs:
        return f"missing: {claim.missing}; no rule of this workflow makes it"
    suite = PAPER_SUITE if m.suite["name"] == PRINTED_SUITE else m.suite["name"]
    wanted = [n for n in claim.needs if n in TARGETS and not m.has(n)]
    files = [TARGETS[n] for n in wanted]
    on_its_own_page = not BEYOND_THE_PAPER.isdisjoint(wanted)
    if on_its_own_page:
        files = [EXTENDED_LEDGER]
    targets = " ".join(f"results/{suite}/{name}" for name in files)
    command = f"; make it with `snakemake --cores all {targets}`" if targets else ""
    where = ", which judges this row" if on_its_own_page else ""
    return f"missing: {', '.join(missing)}{command}{where}"


def _sources(
    m: Measurements, claim: Claim, verdict: str, measured: Finding | None
) -> tuple[str, ...]:
    """Inputs behind a row: files of the suite and the printed table, the decisive one first."""
    needed = [n for n in claim.needs + claim.also if n in TARGETS and m.has(n)] if measured else []
    files = ["suite_table" if n == "suite" else n for n in needed]
    by_suite = verdict == NOT_APPLICABLE or (m.suite["is_paper_model"] and verdict != CONTRADICTED)
    order = [*files, claim.evidence] if by_suite else [claim.evidence, *files]
    return tuple(dict.fromkeys(order))
