"""The evidence for claims: the paper's printed tables, and a suite's measurements.

Both are an ``Evidence``: they have the same accessors by the paper's steps, and statistics that
are written once for both. An accessor records which file it read (``used``), so that a row can
link to its sources. It raises ``NotMeasured`` if a file or a step is missing, ``TooFew`` if the
checkpoints are too few for its rule, and ``NotFound`` if the claimed effect was looked for and
does not exist.
"""

# Methods that override others are documented in Evidence.
# ruff: noqa: D102

import math
from collections.abc import Iterable, Mapping
from functools import partialmethod

import numpy as np
import pandas as pd
from scipy import signal, stats

from flatminima.absent_steps import diverged_steps, even_steps, missing_steps
from flatminima.claims.interval_arithmetic import (
    Interval,
    every,
    interval,
    log,
    meets,
    printed,
    read_interval,
)
from flatminima.equivalents import equivalent_step, grid_steps, schedule_of_kind
from flatminima.hypothesis_tests import correlate, smallest_p
from flatminima.intervals import CONFIDENCE, t_interval
from flatminima.paper import PAPER_LAYERS
from flatminima.phases import SPARE, Phases, find_phases, fit_broken_line
from flatminima.scaling_law import printed_excess
from flatminima.schedules import RunSchedule, read_schedule

FEWEST_CHECKPOINTS = 4 + SPARE  # a broken line has four parameters
KINDS = ("cosine", "sgdr", "oli")  # the three arms of the fork experiment
WIDER_BITS = (5, 6, 7, 8)  # from which the INT4 loss is predicted
# Role and column of the audit, by column of the printed Table 1.
TABLE_1 = {
    "fp32_ppl": ("fp32", "ppl"),
    "int4_gap_pct": ("low_bit", "gap_pct"),
    "int8_gap_pct": ("high_bit", "gap_pct"),
}


class NotMeasured(Exception):
    """A measurement that a claim needs is missing; the message names it."""


class TooFew(Exception):
    """The run has too few checkpoints for the rule of a claim; the message has the number."""


class NotFound(Exception):
    """The effect of a claim was looked for and does not exist; the message has the reason."""


def p_of_t(t: object, df: float) -> float:
    """Two-sided p of Student's t."""
    return float(2 * stats.t.sf(abs(float(t)), df))


def fewest_df(t: object, p: float) -> int:
    """Fewest degrees of freedom at which ``t`` has a two-sided p below ``p``."""
    # p falls with every degree of freedom, so the first that fits is the fewest.
    return next(df for df in range(1, 10**6) if p_of_t(t, df) < p)


def p_of_r(r: object, n: int) -> float:
    """Two-sided p of a Pearson correlation of ``n`` independent pairs."""
    return p_of_t(float(r) * math.sqrt((n - 2) / (1 - float(r) ** 2)), n - 2)


def interval_of_r(r: object, n: float) -> Interval:
    """Fisher's 95 % interval of a correlation of ``n`` independent pairs."""
    r = float(r)
    if n <= 3 or not abs(r) < 1.0:
        return Interval(r, -1.0, 1.0)
    half_width = stats.norm.ppf(0.5 + CONFIDENCE / 2) / math.sqrt(n - 3)
    low = math.tanh(math.atanh(r) - half_width)
    high = math.tanh(math.atanh(r) + half_width)
    return Interval(r, low, high)


def welch(a: tuple[float, float, int], b: tuple[float, float, int]) -> tuple[Interval, float]:
    """Difference of two means (mean, sd, n each) with Welch's 95 % interval, and its p."""
    mean_a, sd_a, n_a = a
    mean_b, sd_b, n_b = b
    variance_a = sd_a**2 / n_a
    variance_b = sd_b**2 / n_b
    total = variance_a + variance_b
    # Welch and Satterthwaite: degrees of freedom for unequal variances.
    df = total**2 / (variance_a**2 / (n_a - 1) + variance_b**2 / (n_b - 1))
    difference = mean_a - mean_b
    error = math.sqrt(total)
    low, high = t_interval(difference, error, df)
    return Interval(difference, low, high), p_of_t(difference / error, df)


def student(mean: float, sd: float, n: int) -> Interval:
    """Student's 95 % interval of a mean. The range of a single run is unknown, and so infinite."""
    if n <= 1:
        return Interval(mean, -math.inf, math.inf)
    low, high = t_interval(mean, sd / math.sqrt(n), n - 1)
    return Interval(mean, low, high)


def interval_of_mean(values: pd.Series) -> Interval:
    """``student`` of one value per run; runs without a finite value are left out.

    Raises ``NotMeasured`` if no value is finite.
    """
    finite = values[np.isfinite(values.astype(float))]
    if finite.empty:
        raise NotMeasured("a run with a finite value")
    return student(float(finite.mean()), float(finite.std()), len(finite))


def _ends(number: Interval) -> tuple[float, float, float]:
    return number.value, number.low, number.high


# ---- the common accessors --------------------------------------------------------------------


class Evidence:
    """Accessors by the paper's steps and the statistics on top of them.

    A ``place`` is a step of the paper, or ``best`` (the best FP32 perplexity), or ``end``. A suite
    of another length uses its step at the same share of the run. Gaps are percent, losses nats
    per token, learning rates percent of the maximum. Both kinds below have these methods:

    - ``curve(role, column)``: a column of the audit by the evidence's own evenly spaced steps.
    - ``best()``, ``onset()`` by the rule of ``flatminima.phases``, and ``lag()``, in steps.
    - ``excess()`` over the scaling law.
    - ``final(kind, probes, column)`` of a kind of fork, and its ``difference(kind, probes,
      measure)`` from cosine: means over runs with their 95 % interval.

    Names of methods without an underscore are the words of the expressions in ``claims.yaml``.
    """

    is_paper_model = True

    def __init__(self, pythia: Mapping, lambada: pd.DataFrame) -> None:
        self.pythia = pythia
        self.lambada = lambada
        self.used = set()

    def at(self, role: str, column: str, place: int | str) -> Interval:
        """One value of the audit."""
        return self._at_own_step(role, column, self._step(place))

    def _loss(self, role: str, place: int | str) -> Interval:
        return log(1 + self.at(role, "gap_pct", place) / 100)

    def _cells_by_step(self, role: str, column: str, first: int, last: int) -> dict[int, Interval]:
        """``curve``, which must be complete between two steps of the paper."""
        return self.curve(role, column)

    def _growth(self, role: str, start: int | str = "best") -> Interval:
        return self._loss(role, "end") / self._loss(role, start)

    def _in_paper_steps(self, step: float) -> float:
        """A step of this evidence, or a number of steps, in steps of the paper."""
        return step * self.pythia["last"] / self._step("end")

    def _span(self, role: str, column: str, first: int, last: int) -> Interval:
        inside = []
        for step, cell in self._cells_by_step(role, column, first, last).items():
            if first <= self._in_paper_steps(step) <= last:
                inside.append(float(cell))
        if not inside:
            raise NotMeasured(f"checkpoints between steps {first:,} and {last:,}")
        return Interval(inside[-1], min(inside), max(inside))

    def _outside(
        self, role: str, column: str, first: int, last: int, low: float, high: float
    ) -> Interval:
        """Largest distance of a value between two steps from a range; negative if all are inside.

        Its ends are the largest distances of the ends of the values' intervals.
        """
        distances = []
        for step, cell in self.curve(role, column).items():
            if first <= self._in_paper_steps(step) <= last:
                # Below the range the first is positive, above it the second. Inside both are
                # negative.
                distances += [_ends(low - cell), _ends(cell - high)]
        if not distances:
            raise NotMeasured(f"checkpoints between steps {first:,} and {last:,}")
        return Interval(*np.max(distances, axis=0).tolist())

    # FP32 perplexity, and gaps of INT4 and INT8, at a place.
    ppl = partialmethod(at, "fp32", "ppl")
    gap = partialmethod(at, "low_bit", "gap_pct")
    gap8 = partialmethod(at, "high_bit", "gap_pct")
    # Loss that INT4 and INT8 add, and the factor by which it grows from a place to the end.
    loss = partialmethod(_loss, "low_bit")
    loss8 = partialmethod(_loss, "high_bit")
    growth = partialmethod(_growth, "low_bit")
    growth8 = partialmethod(_growth, "high_bit")
    # Range between two steps of the paper; the value is that at the last step.
    gap_span = partialmethod(_span, "low_bit", "gap_pct")
    ppl_span = partialmethod(_span, "fp32", "ppl")
    # By how much a value between two steps leaves a range.
    gap_outside = partialmethod(_outside, "low_bit", "gap_pct")
    ppl_outside = partialmethod(_outside, "fp32", "ppl")

    def ppl4(self, place: int | str) -> Interval:
        """Absolute INT4 perplexity."""
        return self.ppl(place) * (1 + self.gap(place) / 100)

    def rate(self, first: int | str, last: int | str) -> Interval:
        """Growth of the INT4 loss between two places, in nats per 10,000 of the paper's steps."""
        return (self.loss(last) - self.loss(first)) * self._per_10_000(first, last)

    def log_rate(self, first: int | str, last: int | str) -> Interval:
        """Growth of the logarithm of the INT4 loss per 10,000 of the paper's steps."""
        return log(self.loss(last) / self.loss(first)) * self._per_10_000(first, last)

    def _per_10_000(self, first: int | str, last: int | str) -> float:
        steps_between = self._step(last) - self._step(first)
        if steps_between <= 0:
            raise NotMeasured(f"checkpoints between {first} and {last}")
        return 10_000 / self._in_paper_steps(steps_between)

    def acceleration(self) -> Interval:
        """Growth of the INT4 loss after the best step, over its growth from 10,000 to the best."""
        return self.rate("best", "end") / self.rate(10_000, "best")

    def rise(self) -> Interval:
        """Rise of FP32 perplexity from its best to the end, percent."""
        return 100 * (self.ppl("end") / self.ppl("best") - 1)

    def largest8(self) -> Interval:
        """Largest INT8 gap of all checkpoints."""
        return max(self.curve("high_bit", "gap_pct").values(), key=float)

    def onset_in_words(self) -> str:
        """The step of the onset, or why there is none."""
        try:
            return f"onset at step {self.onset():,.0f}"
        except NotFound as reason:
            return str(reason)

    def falls(self) -> int:
        """Number of checkpoints whose INT4 gap is smaller than at the previous checkpoint."""
        gaps = [float(gap) for gap in self.curve("low_bit", "gap_pct").values()]
        return int((np.diff(gaps) < 0).sum())

    def best4(self) -> Interval:
        """Step of the smallest absolute INT4 perplexity."""
        ppl = self.curve("fp32", "ppl")
        gap = self.curve("low_bit", "gap_pct")
        low_bit_ppl = {step: float(ppl[step]) * (1 + float(gap[step]) / 100) for step in ppl}
        return interval(min(low_bit_ppl, key=low_bit_ppl.get))

    def control_ratio(self) -> Interval:
        """Final gap of the cosine forks over the gap of the original run at the same step."""
        end = self.pythia["fork"]["start"] + self.pythia["fork"]["steps"]
        return self.final("cosine") / self.gap(end)

    def lr(self, step: float, kind: str = "cosine") -> float:
        """Learning rate of Pythia, in the paper's formula or ``cosine_neox_v1``."""
        schedule = self._pythia_schedule(kind)
        return 100 * schedule(int(step)) / schedule.lr_max

    def floor_step(self) -> int:
        """First step from which gpt-neox v1.0 kept Pythia's rate at its minimum."""
        return self._pythia_schedule("cosine_neox_v1").floor_step

    def steepest(self, kind: str = "cosine") -> int:
        """Step at which Pythia's learning rate falls fastest."""
        schedule = self._pythia_schedule(kind)
        rates = [schedule(step) for step in range(self.pythia["last"] + 1)]
        # Differences over two steps: those over one are largest on both sides of the middle.
        return int(np.argmin(np.gradient(rates)))

    def _pythia_schedule(self, kind: str) -> RunSchedule:
        return read_schedule({**self.pythia, "schedule": kind}, self.pythia["last"])

    def published(self, model: str) -> pd.Series:
        """LAMBADA perplexity by step that the authors of Pythia published."""
        self.used.add("lambada")
        rows = self.lambada[self.lambada["model"] == model]
        return rows.set_index("step")["lambada_openai_ppl"].sort_index()


class Printed(Evidence):
    """The paper's Tables 1 and 2; ranges follow from rounding or from the number of runs.

    Tables are read as text, because the digits show how a number was rounded.
    """

    def __init__(
        self,
        pythia: Mapping,
        table1: pd.DataFrame,
        table2: pd.DataFrame,
        lambada: pd.DataFrame,
    ) -> None:
        super().__init__(pythia, lambada)
        self._table1 = table1
        self._table2 = table2

    def cells(self, column: str, phase: int | None = None) -> list[str]:
        """A column of Table 1 as printed, of one phase or of all rows."""
        self.used.add("table1")
        rows = self._table1
        if phase is not None:
            rows = rows[rows["phase"] == str(phase)]
        return list(rows[column])

    def _by_step(self, column: str) -> dict[int, str]:
        return dict(zip(map(int, self.cells("step")), self.cells(column), strict=True))

    def rows_that_fit(self, kind: str) -> list[int]:
        """Steps of Table 1 at which a formula gives the learning rate, to the printed digit."""
        rates = self._by_step("lr_pct").items()
        return [step for step, lr in rates if meets(self.lr(step, kind), printed(lr))]

    def excess(self) -> Interval:
        names = ("step", "fp32_ppl", "int4_gap_pct")
        numbers = pd.DataFrame({name: map(float, self.cells(name)) for name in names})
        return read_interval(printed_excess(numbers), "excess", "excess_low", "excess_high")

    def _step(self, place: int | str) -> int:
        steps = list(self._by_step("step"))
        if place in ("best", "end"):
            return steps[-1] if place == "end" else self.best().value
        if place not in steps:
            raise NotMeasured(f"step {place:,} in Table 1")
        return place

    def _at_own_step(self, role: str, column: str, step: int) -> Interval:
        return self.curve(role, column)[step]

    def curve(self, role: str, column: str) -> dict[int, Interval]:
        # Exactly one printed column has this role; otherwise the unpacking fails.
        [printed_column] = (name for name, place in TABLE_1.items() if place == (role, column))
        return {step: printed(cell) for step, cell in self._by_step(printed_column).items()}

    def best(self) -> Interval:
        ppl = self.curve("fp32", "ppl")
        return self._between_neighbours(min(ppl, key=lambda step: float(ppl[step])))

    def phases(self) -> Phases:
        """The rule for convergence and onset, applied to the ten printed rows."""
        ppl = self.curve("fp32", "ppl")
        nll = np.log([float(cell) for cell in ppl.values()])
        delta = np.array([float(self.loss(step)) for step in ppl])
        return find_phases(np.array(list(ppl)), nll, delta)

    def onset(self) -> Interval:
        onset = self.phases().onset
        if onset.step is None:
            raise NotFound(f"no onset: {onset.reason}")
        return self._between_neighbours(onset.step)

    def lag(self) -> Interval:
        # The text prints the best step of all 154 checkpoints, so only the onset has a range.
        return self.onset() - self.best().alone

    def breaks_in_words(self) -> str:
        """Steps of all breaks that the rule for the onset finds."""
        return " and ".join(f"{step:,}" for step in self.phases().onset.breaks)

    def single_break(self, scale: str) -> int:
        """Break of the best two-piece line, from the end of rapid learning on.

        ``scale`` is ``logarithm`` for ln of the INT4 loss, or ``nats``.
        """
        start = self.phases().rapid_learning_end
        steps = [step for step in self.curve("fp32", "ppl") if step >= start]
        losses = np.array([float(self.loss(step)) for step in steps])
        curve = np.log(losses) if scale == "logarithm" else losses
        line = fit_broken_line(np.array(steps, float), curve, breaks=1)
        return steps[line.breaks[0]]

    def _between_neighbours(self, step: int) -> Interval:
        """A step of Table 1; it may be anywhere between the rows before and after it."""
        steps = list(self._by_step("step"))
        row = steps.index(step)
        previous_row = max(row - 1, 0)
        next_row = min(row + 1, len(steps) - 1)
        return Interval(step, steps[previous_row], steps[next_row])

    def _arm(self, kind: str, probes: str) -> pd.Series:
        self.used.add("table2")
        return self._table2.set_index(["schedule", "probes"]).loc[(kind, probes)]

    def arm(self, kind: str, probes: str = "all") -> tuple[float, float, int]:
        """Mean, deviation and number of runs of a row of Table 2."""
        row = self._arm(kind, probes)
        return float(row["mean_gap_pct"]), float(row["sd_gap_pct"]), self.pythia["fork"]["seeds"]

    def final(self, kind: str, probes: str = "all", column: str = "gap_pct") -> Interval:
        if column != "gap_pct":
            return printed(self._arm(kind, probes)[column.replace("ppl", "fp32_ppl")])
        return student(*self.arm(kind, probes))

    def prediction(self, kind: str, probes: str = "all") -> Interval:
        """The range of the mean of as many new runs, with probability 0.95."""
        mean, sd, n = self.arm(kind, probes)
        # The old mean and the new one have the same variance, and their difference has both.
        return student(mean, sd * math.sqrt(2), n)

    def difference(self, kind: str, probes: str = "all", measure: str = "final") -> Interval:
        if measure != "final":
            raise NotMeasured("the averages over the run have no deviation over runs in the paper")
        return welch(self.arm(kind, probes), self.arm("cosine"))[0]

    def p_of_difference(self, kind: str, probes: str = "all", base: str = "cosine") -> float:
        """Welch's p from the means and deviations of Table 2; ``base`` is the other kind."""
        return welch(self.arm(kind, probes), self.arm(base))[1]


def _last_probes(table: pd.DataFrame, role: str) -> pd.DataFrame:
    """The last probe of each run of a table of forks, of one role."""
    rows = table[table["role"] == role]
    # Each run ends at its own last probe, even if another one went further.
    return rows[rows["step"] == rows.groupby(["schedule", "seed"])["step"].transform("max")]


class Measured(Evidence):
    """The measurements of one suite; ranges are the 95 % intervals of its files.

    ``settings`` has name, label, is_paper_model, lr_max, lr_min, warmup_steps, last, spacing (of
    the complete run), tokens_per_step and fork (start, steps, probe_every, seeds, schedules, or
    ``None`` without forks).
    ``files`` maps the names of files below ``results/{suite}`` to their content, without those
    that were not measured.
    """

    def __init__(self, pythia: Mapping, paper: Printed, settings: Mapping, files: Mapping) -> None:
        super().__init__(pythia, paper.lambada)
        self.paper = paper
        self.settings = settings
        self._files = files
        self.is_paper_model = settings["is_paper_model"]

    def file(self, name: str) -> object:
        """A measurement by its name. Raises ``NotMeasured`` if the suite does not have it."""
        if self._files.get(name) is None:
            raise NotMeasured(name)
        self.used.add(name)
        return self._files[name]

    def _step(self, place: int | str) -> int:
        last = self.settings["last"]
        if place == "end":
            return last
        if place == "best":
            return int(self.best().value)
        if place == 0:
            return 0
        return equivalent_step(place, grid_steps(self.settings["spacing"], last), last)

    def _check_complete(
        self, measured_steps: Iterable[int], first: float = 0, last: float = math.inf
    ) -> None:
        """Raise ``NotMeasured`` unless every evenly spaced checkpoint of a range was measured.

        ``first`` and ``last`` are steps of the paper. A checkpoint counts as measured if its
        revision is missing or has diverged, since nothing more can be measured there. A suite
        without an even grid has no checkpoints but its own.
        """
        spacing = self.settings["spacing"]
        if spacing == 1:
            return
        expected_steps = [
            step
            for step in grid_steps(spacing, self.settings["last"])
            if first <= self._in_paper_steps(step) <= last
        ]
        examined_steps = set(measured_steps)
        if self._files.get("suite_table") is not None:
            examined_steps |= set(self._files["suite_table"]["step"])
        n_measured = len(examined_steps.intersection(expected_steps))
        if n_measured < len(expected_steps):
            span = ""
            if first > 0:
                span = f" from step {expected_steps[0]:,} to {expected_steps[-1]:,}"
            raise NotMeasured(
                f"all {len(expected_steps)} evenly spaced checkpoints{span} ({n_measured} measured)"
            )

    def _check_run(self) -> None:
        """Raise ``NotMeasured`` for an incomplete run, and ``TooFew`` for a complete short one."""
        rows = self._files.get("audit")
        if rows is None:
            return
        self._check_complete(rows["step"])
        n_checkpoints = len(even_steps(rows["step"], self.settings["spacing"]))
        if n_checkpoints < FEWEST_CHECKPOINTS:
            raise TooFew(
                f"{n_checkpoints} evenly spaced checkpoints are too few; "
                f"the rule needs {FEWEST_CHECKPOINTS}"
            )

    def excess(self) -> Interval:
        self._check_run()
        law = self.file("scaling_law")
        if "reason" in law:
            raise TooFew(law["reason"])
        return read_interval(law, "excess", "excess_low", "excess_high")

    def _rows(self, role: str) -> pd.DataFrame:
        return self.file("audit").query("role == @role").set_index("step").sort_index()

    def _at_own_step(self, role: str, column: str, step: int) -> Interval:
        rows = self._rows(role)
        if step not in rows.index:
            raise NotMeasured(f"step {step:,} in audit.csv{self._reason_without_numbers(step)}")
        return self._cell(rows.loc[step], column)

    def _reason_without_numbers(self, step: int) -> str:
        suite_table = self.file("suite_table")
        if step in missing_steps(suite_table):
            return ", whose revision is missing"
        if step in diverged_steps(suite_table, self.file("audit")):
            return ", which diverged"
        return ""

    def curve(self, role: str, column: str) -> dict[int, Interval]:
        return self._cells_by_step(role, column)

    def _cells_by_step(
        self, role: str, column: str, first: float = 0, last: float = math.inf
    ) -> dict[int, Interval]:
        rows = self._rows(role)
        self._check_complete(rows.index, first, last)
        even = rows.loc[even_steps(rows.index, self.settings["spacing"])]
        return {int(step): self._cell(row, column) for step, row in even.iterrows()}

    @staticmethod
    def _cell(row: pd.Series, column: str) -> Interval:
        if column != "gap_pct":
            return interval(row[column])
        return read_interval(row, "gap_pct", "gap_low_pct", "gap_high_pct")

    def best(self) -> Interval:
        self._check_run()
        return read_interval(self.file("phases")["convergence"], "step", "step_low", "step_high")

    def onset(self) -> Interval:
        self._check_run()
        onset = self.file("phases")["onset"]
        if onset["step"] is None and onset["delta_bic"] is None:  # nothing could be fitted
            raise TooFew(onset["reason"])
        if onset["step"] is None:
            raise NotFound(f"no onset found: {onset['reason']}")
        return read_interval(onset, "step", "step_low", "step_high")

    def lag(self) -> Interval:
        self.onset()  # raises NotFound without an onset
        lag = read_interval(self.file("phases"), "lag_steps", "lag_low", "lag_high")
        return lag * self._in_paper_steps(1)

    def worst_error(self, column: str, steps: tuple[int, ...] | None = None) -> Interval:
        """Largest distance from a column of Table 1, in percent of the printed value."""
        role, audit_column = TABLE_1[column]
        printed_cells = self.paper.curve(role, audit_column)
        errors = []
        for step in steps or printed_cells:
            ratio = self.at(role, audit_column, step) / printed_cells[step].value
            errors.append(_ends(100 * abs(ratio - 1)))
        return Interval(*np.max(errors, axis=0).tolist())

    # Forks.

    def _name(self, kind: str) -> str:
        """The name of the suite's forks of a kind."""
        fork = self.settings["fork"]
        if fork is None:
            raise NotMeasured("forks")
        name = schedule_of_kind(fork["schedules"], kind)
        if name is None:
            raise NotMeasured(f"forks of the kind {kind}")
        return name

    def probes(self, kind: str, probes: str = "all", role: str = "low_bit") -> pd.DataFrame:
        """Rows of forks.csv of one kind, of all or of only cool or bump probes."""
        table = self.file("forks")
        name = self._name(kind)
        rows = table[(table["schedule"] == name) & (table["role"] == role)]
        if probes != "all":
            rows = rows[rows["update_phase"] == probes]
        if rows.empty:
            raise NotMeasured(f"{probes} probes of {name} in forks.csv")
        return rows.sort_values("step")

    def by_run(self, kind: str, probes: str = "all", column: str = "gap_pct") -> pd.Series:
        """Value of each run's last probe; ``ppl`` is FP32's, ``ppl4`` the low-bit model's."""
        rows = self.probes(kind, probes, "fp32" if column == "ppl" else "low_bit")
        return rows.groupby("seed")["ppl" if column == "ppl4" else column].last()

    def final(self, kind: str, probes: str = "all", column: str = "gap_pct") -> Interval:
        return interval_of_mean(self.by_run(kind, probes, column))

    def difference(self, kind: str, probes: str = "all", measure: str = "final") -> Interval:
        challenger = self._name(kind) + (f" {probes}" if kind == "oli" else "")
        comparison = f"{challenger} v {self._name('cosine')}"
        row = ("Welch t", "seed", comparison, f"{measure}_gap_pct")
        rows = self.file("statistics").set_index(["test", "unit", "comparison", "measure"])
        if row not in rows.index:
            raise NotMeasured(f"{', '.join(row)} in statistics.csv")
        return Interval(*rows.loc[row, ["difference", "interval_low", "interval_high"]])

    def mean_of_runs(self, kind: str, column: str = "gap_pct") -> float:
        """Mean over runs without its range, for bounds that expect as many runs as the paper's."""
        self._check_runs(self.by_run(kind, column=column))
        return self.final(kind, column=column).value

    def _check_runs(self, by_run: pd.Series) -> None:
        """Raise ``NotMeasured`` if there are fewer runs than in the paper."""
        n_paper = self.pythia["fork"]["seeds"]
        if len(by_run) < n_paper:
            raise NotMeasured(f"{n_paper} runs a side, of which {len(by_run)} are there")

    def wins(self, kind: str, probes: str = "all") -> int:
        """Pairs of runs in which a kind of fork ends with the smaller gap."""
        gaps = self.by_run(kind, probes).to_numpy()
        cosine_gaps = self.by_run("cosine").to_numpy()
        return int(np.less.outer(gaps, cosine_gaps).sum())

    def _cool_and_cosine(self, role: str, column: str) -> tuple[pd.Series, pd.Series]:
        """Averages by run over OLI's cool probes, and over cosine's probes at the same steps."""
        cool = self.probes("oli", "cool", role)
        cosine = self.probes("cosine", "all", role)
        cosine = cosine[cosine["step"].isin(cool["step"])]
        return cool.groupby("seed")[column].mean(), cosine.groupby("seed")[column].mean()

    def smallest_improvement(self) -> float:
        """By how many points OLI's cool average is below cosine's, in the worst of the runs."""
        cool, cosine = self._cool_and_cosine("low_bit", "gap_pct")
        self._check_runs(cool)
        return float((cosine - cool).min())

    def unrecovered(self) -> Interval:
        """By how many percent the FP32 perplexity of cool probes is above cosine's, same steps."""
        cool, cosine = self._cool_and_cosine("fp32", "ppl")
        return interval_of_mean(100 * (cool / cosine - 1).dropna())

    def end_rates(self) -> str:
        """Learning rate of each kind of fork at its last probe, in percent of the maximum."""
        words = []
        for kind in KINDS:
            rate = self.by_run(kind, "all", "lr_fraction_last_update").mean()
            words.append(f"{kind} {100 * rate:.0f} %")
        return ", ".join(words)

    # Kurtosis.

    def kurtosis(self, definition: str = "mean_over_tensors") -> pd.Series:
        """Excess kurtosis by step: mean_over_tensors, pooled, or the largest matrix."""
        statistic = "per_tensor" if definition == "largest" else definition
        table = self.file("kurtosis")
        self._check_complete(table["step"])
        rows = table[table["statistic"] == statistic]
        return rows.groupby("step")["excess_kurtosis"].max()

    def kurtosis_error(self, first: object, peak: object, place: object, last: object) -> float:
        """The worst error of the closest definition on four printed numbers, in percent.

        The numbers are the first value, the peak, the last value, and the place of the peak, whose
        relative error counts five times. One definition has to fit all four.
        """
        printed_numbers = [float(first), float(peak), float(last), float(place)]
        errors = []
        for definition in ("mean_over_tensors", "pooled", "largest"):
            curve = self.kurtosis(definition)
            place_of_peak = self._in_paper_steps(curve.idxmax())
            measured = (curve.iloc[0], curve.max(), curve.iloc[-1], place_of_peak)
            *value_errors, place_error = np.abs(np.divide(measured, printed_numbers) - 1)
            errors.append(100 * max(*value_errors, 5 * place_error))
        return min(errors)

    def kurtosis_correlation(self, *, detrended: bool = False) -> Interval:
        """Pearson r of mean kurtosis and INT4 gap from the best FP32 step on.

        The interval is Fisher's, for the number of independent checkpoints that two
        autocorrelated series are worth. ``detrended`` subtracts a straight line from both.
        """
        gap = pd.Series(self.curve("low_bit", "gap_pct")).map(float)
        curves = pd.concat([self.kurtosis(), gap], axis=1, join="inner")
        late_curves = curves.loc[self.best().value :]
        if len(late_curves) < 5 or (late_curves.nunique() < 2).any():
            raise NotMeasured("five different checkpoints after the best FP32 step")
        series = late_curves.to_numpy(float).T
        if detrended:
            series = signal.detrend(series)
        correlation = correlate(series[0], series[1])
        return read_interval(correlation, "value", "interval_low", "interval_high")

    # Beyond the paper.

    def finding(self, name: str) -> Interval:
        """One row of mechanism/findings.csv."""
        rows = self.file("mechanism").set_index("finding")
        if name not in rows.index:
            raise NotMeasured(f"{name} in mechanism/findings.csv")
        return read_interval(rows.loc[name], "value", "low", "high")

    def jump(self) -> Interval:
        """Measured low-bit loss at the last step, over what wider numbers of bits predict.

        The prediction is one sensitivity times step²: the losses at 5 to 8 bits, summed, over
        their squared steps, summed, times the squared step of the low-bit quantizer. All have its
        symmetry and granularity. Sums need no logarithm, so that a loss at 8 bits may be negative.
        """
        probed = self.settings.get("low_bit_cell")
        if probed is None:
            raise NotMeasured("the design's cell of the low-bit quantizer")
        cells = self.file("factorial")
        cells = cells[(cells["step"] == cells["step"].max()) & (cells["layers"] == PAPER_LAYERS)]
        same_layout = (
            (cells["format"] == "int")
            & (cells["symmetric"].astype(str) == str(probed["symmetric"]))
            & (cells["granularity"] == probed["granularity"])
        )
        by_bits = cells[same_layout].set_index("bits").sort_index()
        wider = by_bits.loc[WIDER_BITS[0] : WIDER_BITS[-1]]
        missing = {probed["bits"], *WIDER_BITS} - set(by_bits.index)
        if missing:
            bits = ", ".join(f"{number:g}" for number in sorted(missing))
            raise NotMeasured(f"{bits} bits in mechanism/factorial.csv")

        measured_loss = self._factorial_loss(by_bits.loc[probed["bits"]])
        wider_loss = sum(self._factorial_loss(row) for _, row in wider.iterrows())
        squared_steps = by_bits.loc[probed["bits"], "step_variance"] / wider["step_variance"].sum()
        return measured_loss / (wider_loss * float(squared_steps))

    def _factorial_loss(self, row: pd.Series) -> Interval:
        """Added loss of a cell of the factorial, nats per token."""
        return log(1 + self._cell(row, "gap_pct") / 100)

    def pilot(self, column: str | None = None) -> Interval:
        """FP32 perplexity of the pilot over that of its fork point, or an effect on its log.

        ``length`` compares shorter with longer windows, ``optimizer_state`` fresh with rewarmed
        moments, both at the largest update. Effects are differences of means per run, as ratios
        of the perplexity.
        """
        ends = _last_probes(self.file("pilot"), "fp32")
        tokens = ends["length"] * ends["batch_size"]
        if column is None:
            small = ends[tokens == tokens.min()]
            before = self._at_own_step("fp32", "ppl", int(small["fork_step"].iloc[0]))
            return interval_of_mean(small["ppl"] / float(before))
        ends = ends[(tokens == tokens.max()) & ends["optimizer_state"].isin(["fresh", "rewarmed"])]
        means = np.log(ends["ppl"]).groupby([ends["seed"], ends[column]]).mean().unstack()
        if means.shape[1] != 2:
            raise NotMeasured(f"two kinds of {column} in pilot.csv")
        return interval_of_mean(means.iloc[:, 0] - means.iloc[:, 1]).map(math.exp)

    def calibrated(self, reading: str | None = None) -> float:
        """Amplitude that a calibration rule gives at the fork point."""
        calibration = self.file("calibration")
        return float(calibration["amplitudes"][reading or calibration["assumed"]])

    def amplitude_share(self) -> float:
        """Percent of the variance over amplitudes and cadences that is due to the amplitude."""
        ends = _last_probes(self.file("amplitudes"), "low_bit")
        cells = ends.pivot_table(index="amplitude", columns="period", values="gap_pct").to_numpy()
        if min(cells.shape) < 2 or np.isnan(cells).any():
            raise NotMeasured("every amplitude at two cadences in amplitudes.csv")
        return float(100 * cells.mean(axis=1).var() / cells.var())

    def average_gain(self) -> float:
        """Smallest INT4 perplexity of averaged checkpoints over that of the cosine forks."""
        rows = self.file("rivals").query("role == 'low_bit'")
        averages = rows[rows["group"] == "average"]
        cosine = rows[rows["schedule"] == "cosine"]
        if averages.empty or cosine.empty:
            raise NotMeasured("averages in rivals.csv")
        return float(averages["ppl"].min() / cosine["ppl"].mean())

    def alarms(self) -> str:
        """Alarms of the paper's rule over all windows, in words."""
        rows = self.file("early_warning")
        rows = rows[rows["rule"].str.contains("slope")]
        first = rows["first_alarm_step"].dropna().astype(int)
        false = rows["false_alarms"].astype(int)
        if first.empty:
            return "no alarm"
        return (
            f"first alarm at step {first.min():,} to {first.max():,}, "
            f"{false.min()} to {false.max()} false ones by the window over which the slope is taken"
        )

    def revisions(self) -> str:
        """Number of present revisions, of different models among them, and of missing revisions."""
        table = self.file("suite_table")
        missing = len(missing_steps(table))
        models = table["weights_sha256"].nunique()
        text = f"{len(table) - missing} revisions, {models} distinct models"
        return f"{text}, {missing} missing" if missing else text


_NAMED_FUNCTIONS = (
    abs,
    every,
    fewest_df,
    float,
    interval_of_r,
    len,
    log,
    max,
    meets,
    min,
    p_of_r,
    p_of_t,
    round,
)
FUNCTIONS = {function.__name__: function for function in _NAMED_FUNCTIONS}
FUNCTIONS["smallest_p"] = lambda runs: smallest_p(runs, runs)
