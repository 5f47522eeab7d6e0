"""Learning-rate schedules: one class a kind is its entry in the configuration, check and formula.

Convention: ``schedule(step)`` is the learning rate of the update that takes the weights from
``step`` to ``step + 1``. The first update of a run with warm-up has a learning rate of zero,
which is why step 0 and step 1 of Pythia hold the same weights. A checkpoint at ``step`` was
therefore last moved by ``schedule(step - 1)``.

A whole run has a ``RunSchedule``; what leaves it has a ``ScheduleKind``, which a suite may
name under ``fork.schedules`` and under ``fork.rivals`` alike. A new kind is one subclass.
Nothing here imports torch; learning rates are Python floats.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from flatminima.config_section import Count, Factor, Mistakes, Section

Schedule = Callable[[int], float]
OliPhase = Literal["bump", "cool"]


def _half_cosine(progress: float) -> float:
    """1 at progress 0, 0 at progress 1, along half a cosine period."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


# Schedules of whole runs.


class RunSchedule(Section):
    """Learning rate of a whole training run; ``schedule(step)`` by absolute step."""

    model_config = ConfigDict(frozen=True)

    kind: str
    lr_max: float = Field(gt=0, description="Highest learning rate.")
    lr_min: float = Field(ge=0, description="Lowest learning rate after the warm-up.")
    warmup_steps: int = Field(ge=0, description="Steps of the linear warm-up.")
    total_steps: Count

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        if step < 0:
            raise ValueError(f"step {step}: a training step is 0 or larger")
        warming = step < self.warmup_steps
        return self.lr_max * step / self.warmup_steps if warming else self.lr(step)

    def lr(self, step: int) -> float:
        """The rate at ``step`` once the warm-up is over."""
        raise NotImplementedError

    @property
    def floor_step(self) -> int:
        """First step after the warm-up whose rate is ``lr_min``; rates fall until there.

        Raises ``ValueError`` where the cosine stops moving above ``lr_min``.
        """
        steps = range(self.warmup_steps, self.total_steps + 1)
        found = bisect_left(steps, True, key=lambda step: self.lr(step) <= self.lr_min)
        if found == len(steps):
            raise ValueError(f"lr_min {self.lr_min} is never reached by step {self.total_steps}")
        return steps[found]


class Cosine(RunSchedule):
    """Linear warm-up, then a cosine that reaches ``lr_min`` at ``total_steps``.

    The formula behind the learning-rate column of the paper's Table 1:
    lr_min + (lr_max - lr_min)/2 * (1 + cos(pi * (s - W) / (T - W))), lr_min after T.
    """

    kind: Literal["cosine"] = "cosine"

    def lr(self, step: int) -> float:
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.lr_min + (self.lr_max - self.lr_min) * _half_cosine(progress)


class CosineNeoxV1(RunSchedule):
    """The schedule Pythia really ran: a cosine to zero with ``lr_min`` as a floor.

    max(lr_min, lr_max/2 * (1 + cos(pi * (min(s, T - W) - W) / T))), from the ``AnnealingLR`` of
    gpt-neox v1.0 (pull request 1008 changed it later). With Pythia's numbers the floor is met
    at step 115,139 and the last 27,861 steps run at a constant rate.
    """

    kind: Literal["cosine_neox_v1"] = "cosine_neox_v1"

    def lr(self, step: int) -> float:
        clamped = min(step, self.total_steps - self.warmup_steps)
        progress = (clamped - self.warmup_steps) / self.total_steps
        return max(self.lr_min, self.lr_max * _half_cosine(progress))


RUN_SCHEDULES = {c.model_fields["kind"].default: c for c in RunSchedule.__subclasses__()}


def read_schedule(training: Mapping, total_steps: int) -> RunSchedule:
    """The schedule of a whole run from its section ``training``; ``ValueError`` for no kind."""
    kind = training["schedule"]
    if kind not in RUN_SCHEDULES:
        raise ValueError(f"schedule {kind!r}: known are {', '.join(RUN_SCHEDULES)}")
    numbers = {key: training[key] for key in ("lr_max", "lr_min", "warmup_steps")}
    return RUN_SCHEDULES[kind](**numbers, total_steps=total_steps)


# Schedules of what leaves a run.


@dataclass(frozen=True)
class ForkSchedule:
    """A kind of schedule where it leaves ``run`` at ``start``; ``schedule(step)`` by absolute step.

    ``stop`` is the step after the last update. With ``rewarm_steps`` the rate rises from zero, for
    forks whose moments are fresh: Adam's first updates would otherwise be full steps in the
    direction of a single batch's signs.
    """

    kind: "ScheduleKind"
    run: RunSchedule
    start: int
    stop: int
    rewarm_steps: int = 0

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        if step < self.start:
            raise ValueError(f"step {step}: this schedule starts at {self.start}")
        warm = min(1.0, (step - self.start) / self.rewarm_steps) if self.rewarm_steps else 1.0
        return self.kind.lr(step, self) * warm

    def last_update_phase(self, step: int) -> OliPhase | None:
        """Phase of the update that made the weights of ``step``; ``None`` without such phases."""
        if step <= self.start:
            raise ValueError(f"step {step - 1}: this schedule starts at {self.start}")
        return self.kind.phase(step - 1 - self.start)


class ConditionKind(Section):
    """One entry of ``fork.schedules`` or ``fork.rivals``, by its ``kind``."""

    model_config = ConfigDict(frozen=True)

    kind: str


class ScheduleKind(ConditionKind):
    """One that is trained; ``modifiers`` change the suite's ``training`` and ``compute`` for it."""

    modifiers: ClassVar = {"training": ("weight_decay", "sam_radius"), "compute": ("precision",)}

    weight_decay: float | None = Field(None, ge=0, le=1000, description="In place of the run's.")
    sam_radius: float | None = Field(
        None, gt=0, le=1000, description="Of sharpness-aware minimization."
    )
    precision: Literal["float32", "bf16"] | None = Field(None, description="In place of compute's.")

    def lr(self, step: int, fork: ForkSchedule) -> float:
        """The rate at ``step``, which is not before ``fork.start``."""
        raise NotImplementedError

    def phase(self, updates: int) -> OliPhase | None:
        """Phase of the update that follows ``updates`` others; ``None`` without such phases."""
        return None

    def settled(self, steps: int) -> list[int]:
        """Updates after which a fork of ``steps`` is probed so that all kinds are alike, rising."""
        return [steps]

    def mistakes(self, steps: int) -> Mistakes:
        """Key and mistake of every number that does not go with a fork of ``steps`` updates."""
        yield from ()


class Continued(ScheduleKind):
    """The run's own schedule goes on: condition A of section 5.1, the control."""

    kind: Literal["cosine"] = "cosine"

    def lr(self, step: int, fork: ForkSchedule) -> float:
        return fork.run(step)


def _restart(lr_max: float, lr_min: float, position: int, period: int) -> float:
    return lr_min + (lr_max - lr_min) * _half_cosine((position % period) / period)


class Sgdr(ScheduleKind):
    """Cosine warm restarts from the run's ``lr_max``, each falling towards its ``lr_min``.

    Condition B of section 5.1 (Loshchilov and Hutter's SGDR without period multiplication).
    """

    kind: Literal["sgdr"] = "sgdr"
    period: Count = Field(description="Steps between restarts.")

    def lr(self, step: int, fork: ForkSchedule) -> float:
        return _restart(fork.run.lr_max, fork.run.lr_min, step - fork.start, self.period)


class OscillatoryLockIn(ScheduleKind):
    """Oscillatory Lock-In: short bumps above the run's own schedule.

    Condition C of section 5.1. A cycle has ``bump_steps`` at ``amplitude`` times the run's
    rate and ``cool_steps`` at that rate. The value of the amplitude (lambda) and the order of
    the two phases are lost in the paper's text; both are keys.
    """

    kind: Literal["oli"] = "oli"
    bump_steps: Count = Field(description="Steps at the raised rate.")
    cool_steps: Count = Field(description="Steps at the run's own rate.")
    amplitude: Factor = Field(description="Lambda: the raised rate in multiples of the run's.")
    first: OliPhase = Field(description="Phase that a cycle begins with.")

    @property
    def period(self) -> int:
        """Steps in one bump-and-cool cycle."""
        return self.bump_steps + self.cool_steps

    def phase(self, updates: int) -> OliPhase:
        position = updates % self.period
        lead = self.bump_steps if self.first == "bump" else self.cool_steps
        return "bump" if (position < lead) == (self.first == "bump") else "cool"

    def lr(self, step: int, fork: ForkSchedule) -> float:
        factor = self.amplitude if self.phase(step - fork.start) == "bump" else 1.0
        return factor * fork.run(step)

    def settled(self, steps: int) -> list[int]:
        """The end, and the last ends of both phases: a fork that ends on a bump is not at rest."""
        updates = range(max(0, steps - self.period), steps)
        return sorted({self.phase(update): update + 1 for update in updates}.values())

    def visible_phases(self, probe_every: int) -> list[int]:
        """Positions in the cycle at which probes every ``probe_every`` steps can land.

        At position p that many updates of the cycle lie behind the probe. A cadence that shares a
        factor with the period sees few: 1,000 and 375 share 125, so that the paper's probes could
        see three (125, 250 and 375).
        """
        shared = math.gcd(probe_every, self.period)
        return list(range(shared, self.period + 1, shared))


def _stable_then_linear(step: int, fork: ForkSchedule, decay_start: int) -> float:
    """The fork point's rate until ``decay_start``, then a line that is zero at the fork's end."""
    rate = fork.run(fork.start)
    if step < decay_start:
        return rate
    return rate * max(fork.stop - step, 0) / (fork.stop - decay_start)


class Constant(ScheduleKind):
    """The rate of the fork point."""

    kind: Literal["constant"] = "constant"

    def lr(self, step: int, fork: ForkSchedule) -> float:
        return fork.run(fork.start)


class Linear(ScheduleKind):
    """A straight line from the fork point's rate to zero at the end."""

    kind: Literal["linear"] = "linear"

    def lr(self, step: int, fork: ForkSchedule) -> float:
        return _stable_then_linear(step, fork, fork.start)


class Cooldown(ScheduleKind):
    """A straight line to the run's ``lr_min``: the branch that compares forks at equal rates."""

    kind: Literal["cooldown"] = "cooldown"

    def lr(self, step: int, fork: ForkSchedule) -> float:
        top, bottom = fork.run(fork.start), fork.run.lr_min
        left = min(max((fork.stop - step) / (fork.stop - fork.start), 0.0), 1.0)
        return bottom + (top - bottom) * left


class WarmupStableDecay(ScheduleKind):
    """Warm-up, stable, decay without the warm-up, which the run has behind it."""

    kind: Literal["wsd"] = "wsd"
    decay_steps: Count = Field(description="Steps of the decay to zero at the end.")

    def lr(self, step: int, fork: ForkSchedule) -> float:
        return _stable_then_linear(step, fork, fork.stop - self.decay_steps)

    def mistakes(self, steps: int) -> Mistakes:
        if self.decay_steps > steps:
            yield "decay_steps", f"{self.decay_steps} is more than fork.steps {steps}"


class Restarts(ScheduleKind):
    """SGDR whose restarts are ``amplitude`` times the run's rate there instead of ``lr_max``.

    With OLI's amplitude it tells SGDR's shape from its amplitude, which the paper changes together.
    """

    kind: Literal["restarts"] = "restarts"
    period: Count = Field(description="Steps between restarts.")
    amplitude: Factor = Field(description="Rate of a restart in multiples of the run's.")

    def lr(self, step: int, fork: ForkSchedule) -> float:
        position = (step - fork.start) % self.period
        peak = self.amplitude * fork.run(step - position)
        return _restart(peak, fork.run.lr_min, position, self.period)


# Conditions without training: weights made from the run's own checkpoints.


class AverageKind(ConditionKind):
    """One entry of ``fork.rivals`` that is an average of the run's checkpoints."""

    def steps(self, grid: Sequence[int], start: int, end: int) -> list[int]:
        """Which of the run's revisions ``grid`` are averaged, for forks from start to end."""
        raise NotImplementedError

    def weights(self, count: int) -> list[float]:
        """Weight of each of ``count`` checkpoints, oldest first; they sum to one."""
        return [1.0 / count] * count

    def mistakes(self, grid: Sequence[int], start: int, end: int) -> Mistakes:
        """Key and mistake of everything that does not go with these revisions."""
        if end not in self.steps(grid, start, end):
            ends = f"checkpoints up to step {end}, the end of the fork, which is not on the grid"
            yield "kind", f"{self.kind} averages the run's {ends}"


class EarlyStop(AverageKind):
    """The checkpoint of the fork point itself."""

    kind: Literal["early_stop"] = "early_stop"

    def steps(self, grid: Sequence[int], start: int, end: int) -> list[int]:
        return [start]

    def mistakes(self, grid: Sequence[int], start: int, end: int) -> Mistakes:
        yield from ()  # the fork point is a revision


class Average(AverageKind):
    """A trailing average with equal weights (LAWA: Kaddour, arXiv 2209.14981)."""

    kind: Literal["average"] = "average"
    window: Count = Field(description="Checkpoints in the trailing average.")

    def steps(self, grid: Sequence[int], start: int, end: int) -> list[int]:
        return [step for step in grid if step <= end][-self.window :]

    def mistakes(self, grid: Sequence[int], start: int, end: int) -> Mistakes:
        yield from super().mistakes(grid, start, end)
        if (count := len(self.steps(grid, start, end))) < self.window:
            text = f"checkpoints up to step {end} are more than there are; valid: 1 to {count}"
            yield "window", f"{self.window} {text}"


class Ema(AverageKind):
    """From the fork point on: average = decay * average + (1 - decay) * checkpoint."""

    kind: Literal["ema"] = "ema"
    decay: float = Field(
        gt=0, lt=1, description="Part of the average that each older checkpoint keeps."
    )

    def steps(self, grid: Sequence[int], start: int, end: int) -> list[int]:
        return [step for step in grid if start <= step <= end]

    def weights(self, count: int) -> list[float]:
        later = [(1.0 - self.decay) * self.decay ** (count - 1 - n) for n in range(1, count)]
        return [self.decay ** (count - 1), *later]


_KINDS = reduce(or_, ScheduleKind.__subclasses__())
AnySchedule = Annotated[_KINDS, Field(discriminator="kind")]
AnyRival = Annotated[reduce(or_, AverageKind.__subclasses__(), _KINDS), Field(discriminator="kind")]
_RIVALS: TypeAdapter = TypeAdapter(AnyRival)


def read_kind(definition: Mapping) -> ScheduleKind | AverageKind:
    """The class behind an entry of ``fork.schedules`` or ``fork.rivals``, else a ``ValueError``."""
    return _RIVALS.validate_python(dict(definition))
