"""What a claim, a finding and the measurements of a suite are, and which function tests what.

A claim has up to two functions under its id. ``printed`` looks at nothing but the
numbers the paper prints and at public facts; ``measured`` looks at a suite. What
follows from both is decided in ``verdicts``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd
import yaml

from flatminima.revisions.missing import missing_steps
from flatminima.schedules import Cosine, CosineNeoxV1, pretraining_schedule

NEEDS = {
    "paper": "the printed tables and public facts",
    "config": "the settings of the suite",
    "suite": "suite.csv",
    "audit": "audit.csv",
    "sequences": "audit_sequences.parquet",
    "kurtosis": "kurtosis.csv",
    "phases": "phases.json",
    "forks": "forks.csv",
    "statistics": "statistics.csv",
    "early_warning": "early_warning.csv",
    "lambada": "the published LAMBADA results",
    "mechanism": "mechanism/findings.csv",
    "rivals": "rivals.csv",
    "pilot": "pilot.csv",
    "amplitudes": "amplitudes.csv",
    "calibration": "calibration.json",
    "extended": "not measured by this workflow",
}


class NotMeasured(Exception):
    """A measurement exists but lacks what a claim asks for; the message names it."""


@dataclass(frozen=True)
class Claim:
    """One row of ``claims.yaml``; ``line`` is where it starts in the file."""

    id: str
    section: str
    claim: str
    paper: Mapping
    statistic: str
    tolerance: Mapping
    needs: tuple[str, ...]
    also: tuple[str, ...] = ()
    scale_free: bool = False
    evidence: str = "claims"
    missing: str = ""
    reference: Mapping = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True)
class Finding:
    """What a function computed.

    ``value`` is the number with its unit, in words. ``holds`` says whether it agrees
    with the claim (``None``: nothing follows). ``smallest_p`` is the smallest p the
    design could have reached; ``against`` names what a failed check is held against.
    """

    value: str
    holds: bool | None
    note: str = ""
    smallest_p: float | None = None
    against: Literal["paper", "source"] = "paper"


@dataclass(frozen=True)
class Ledger:
    """``claims.yaml`` as a whole: the claims in order and the public facts beside them."""

    claims: tuple[Claim, ...]
    pythia: Mapping
    prior_work: tuple[Mapping, ...]
    paper_year: int


def read_ledger(path: str | Path) -> Ledger:
    """Read ``claims.yaml``; raises ``ValueError`` with one line for a row that is not valid."""
    text = Path(path).read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    lines = {
        line.split("id:")[1].split(",")[0].strip(): number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.lstrip("-{ ").startswith("id:")
    }
    claims = []
    for row in data["claims"]:
        lists = {key: tuple(row.get(key, ())) for key in ("needs", "also")}
        for need in lists["needs"] + lists["also"]:
            if need not in NEEDS:
                known = ", ".join(NEEDS)
                raise ValueError(f"{path}: {row['id']} needs '{need}'; known are {known}")
        claims.append(Claim(**(row | lists), line=lines[row["id"]]))
    ids = [claim.id for claim in claims]
    for name in ids:
        if ids.count(name) > 1:
            raise ValueError(f"{path}: claim {name} occurs {ids.count(name)} times; ids are unique")
    return Ledger(tuple(claims), data["pythia"], tuple(data["prior_work"]), data["paper_year"])


@dataclass(frozen=True)
class Measurements:
    """Everything the functions may look at; a measurement that is not there is ``None``.

    ``suite`` has the keys name, label, is_paper_model, lr_max, lr_min, warmup_steps,
    last, spacing, tokens_per_step and, where forks are defined, fork (start, steps,
    probe_every, seeds, schedules). Tables are in the formats of ``results/{suite}``.
    """

    ledger: Ledger
    table1: pd.DataFrame
    table2: pd.DataFrame
    suite: Mapping
    lambada: pd.DataFrame | None = None
    audit: pd.DataFrame | None = None
    kurtosis: pd.DataFrame | None = None
    phases: Mapping | None = None
    forks: pd.DataFrame | None = None
    statistics: pd.DataFrame | None = None
    early_warning: pd.DataFrame | None = None
    suite_table: pd.DataFrame | None = None
    mechanism: pd.DataFrame | None = None
    rivals: pd.DataFrame | None = None
    pilot: pd.DataFrame | None = None
    amplitudes: pd.DataFrame | None = None
    calibration: Mapping | None = None

    def has(self, need: str) -> bool:
        """Whether the measurement called ``need`` (a key of ``NEEDS``) is there."""
        if need in ("paper", "config"):
            return True
        if need in ("extended", "sequences"):
            return False
        return getattr(self, {"suite": "suite_table"}.get(need, need)) is not None

    def knows(self, *names: str) -> bool:
        """Whether these findings beyond the paper are there."""
        return self.mechanism is not None and set(names) <= set(self.mechanism["finding"])

    def finding(self, name: str) -> pd.Series:
        """One finding beyond the paper (value, low, high, n); ``NotMeasured`` without it."""
        rows = self.mechanism.set_index("finding")
        if name not in rows.index:
            raise NotMeasured(f"{name} in mechanism/findings.csv")
        return rows.loc[name]

    @property
    def pythia(self) -> Mapping:
        """Public facts about Pythia-160m."""
        return self.ledger.pythia

    def printed(self, step: int) -> pd.Series:
        """Row of the paper's Table 1."""
        return self.table1.set_index("step").loc[step]

    def condition(self, schedule: str, probes: str = "all") -> pd.Series:
        """Row of the paper's Table 2."""
        table = self.table2
        return table[(table["schedule"] == schedule) & (table["probes"] == probes)].iloc[0]

    def schedule(self) -> Cosine | CosineNeoxV1:
        """Pretraining schedule of the suite; gpt-neox v1.0's where the suite names none."""
        return _schedule(self.suite, self.suite.get("schedule", "cosine_neox_v1"))

    def pythia_schedule(self, kind: str) -> Cosine | CosineNeoxV1:
        """Pythia's numbers in one of the two formulas of ``lib/schedules.py``."""
        return _schedule(self.pythia, kind)

    def step(self, paper_step: int) -> int:
        """The evenly spaced step of this suite that lies as far along as ``paper_step``."""
        spacing, last = self.suite["spacing"], self.suite["last"]
        return spacing * max(1, round(paper_step / self.pythia["last"] * last / spacing))

    def curve(self, role: str, column: str) -> pd.Series:
        """One column of the audit by step, all revisions of one role."""
        rows = self.audit[self.audit["role"] == role]
        return rows.set_index("step")[column].sort_index()

    def even(self, role: str, column: str) -> pd.Series:
        """The same on the evenly spaced steps."""
        curve = self.curve(role, column)
        return curve[(curve.index > 0) & (curve.index % self.suite["spacing"] == 0)]

    def at(self, role: str, column: str, step: int) -> float:
        """One value of the audit; ``NotMeasured`` where ``step`` was not probed."""
        curve = self.curve(role, column)
        if step not in curve.index:
            lost = self.suite_table is not None and step in missing_steps(self.suite_table)
            why = ", whose revision could not be had" if lost else ""
            raise NotMeasured(f"step {step} in audit.csv{why}")
        return float(curve[step])


def _schedule(numbers: Mapping, kind: str) -> Cosine | CosineNeoxV1:
    return pretraining_schedule(
        kind,
        lr_max=float(numbers["lr_max"]),
        lr_min=float(numbers["lr_min"]),
        warmup_steps=numbers["warmup_steps"],
        total_steps=numbers["last"],
    )


Test = Callable[[Measurements, Claim], Finding]
PRINTED: dict[str, Test] = {}
MEASURED: dict[str, Test] = {}


def _register(registry: dict[str, Test], ids: tuple[str, ...]) -> Callable[[Test], Test]:
    def add(function: Test) -> Test:
        for name in ids:
            if name in registry:
                raise ValueError(f"claim {name} has two functions")
            registry[name] = function
        return function

    return add


def printed(*ids: str) -> Callable[[Test], Test]:
    """Register the check of these claims against the paper's own numbers."""
    return _register(PRINTED, ids)


def measured(*ids: str) -> Callable[[Test], Test]:
    """Register the test of these claims on the measurements of a suite."""
    return _register(MEASURED, ids)


def within(value: float, target: float, tolerance: Mapping) -> bool:
    """Whether ``value`` lies within the numeric tolerances of a claim around ``target``.

    Keys: relative_pct (of the target), points, absolute, steps and rounding (all in the
    unit of the value), exact. A hair of 1e-9 keeps decimal edges inside.
    """
    allowed = [abs(target) * tolerance["relative_pct"] / 100] if "relative_pct" in tolerance else []
    allowed += [tolerance[k] for k in ("points", "absolute", "steps", "rounding") if k in tolerance]
    if "exact" in tolerance:
        allowed.append(0)
    return abs(value - target) <= max(allowed) + 1e-9
