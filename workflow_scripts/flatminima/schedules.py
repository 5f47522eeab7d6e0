"""Learning-rate schedules. One class per kind has its configuration keys, checks and formula.

Convention: ``schedule(step)`` is the learning rate of the update that takes the weights from
``step`` to ``step + 1``. A checkpoint at ``step`` was therefore last changed at the rate
``schedule(step - 1)``. With a warm-up, the first update has a rate of zero. This is why steps 0
and 1 of Pythia have the same weights.

A training run has a ``RunSchedule``. A fork, which starts from one of the run's checkpoints, has
a ``ScheduleKind``. A suite may list these under ``fork.schedules`` and under ``fork.rivals``. A new
kind needs one subclass. Nothing here imports torch; learning rates are Python floats.
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


# Schedules of training runs.


class RunSchedule(Section):
    """Learning rate of a training run from its first step; ``schedule(step)`` by absolute step."""

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
        if step < self.warmup_steps:
            return self.lr_max * step / self.warmup_steps
        return self.lr(step)

    def lr(self, step: int) -> float:
        """The rate at ``step`` once the warm-up is over."""
        raise NotImplementedError

    @property
    def floor_step(self) -> int:
        """First step after the warm-up whose rate is ``lr_min``; rates fall until this step.

        Raises ``ValueError`` if the cosine ends above ``lr_min``.
        """
        steps = range(self.warmup_steps, self.total_steps + 1)
        # Bisection works because the rates only fall: "at the floor" is false, then true.
        position = bisect_left(steps, True, key=lambda step: self.lr(step) <= self.lr_min)
        if position == len(steps):
            raise ValueError(f"lr_min {self.lr_min} is never reached by step {self.total_steps}")
        return steps[position]


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
    """The schedule that Pythia was trained with: a cosine to zero with ``lr_min`` as a floor.

    max(lr_min, lr_max/2 * (1 + cos(pi * (min(s, T - W) - W) / T))), from the ``AnnealingLR`` of
    gpt-neox v1.0 (pull request 1008 changed it later). With Pythia's numbers, the rate reaches
    the floor at step 115,139 and stays there for the last 27,861 steps.
    """

    kind: Literal["cosine_neox_v1"] = "cosine_neox_v1"

    def lr(self, step: int) -> float:
        clamped = min(step, self.total_steps - self.warmup_steps)
        progress = (clamped - self.warmup_steps) / self.total_steps
        return max(self.lr_min, self.lr_max * _half_cosine(progress))


RUN_SCHEDULES = {
    schedule_class.model_fields["kind"].default: schedule_class
    for schedule_class in RunSchedule.__subclasses__()
}


def read_schedule(training: Mapping, total_steps: int) -> RunSchedule:
    """The schedule of a run from its section ``training``; ``ValueError`` for an unknown kind."""
    kind = training["schedule"]
    if kind not in RUN_SCHEDULES:
        raise ValueError(f"schedule: {kind!r} is not valid; valid: {', '.join(RUN_SCHEDULES)}")
    numbers = {key: training[key] for key in ("lr_max", "lr_min", "warmup_steps")}
    return RUN_SCHEDULES[kind](**numbers, total_steps=total_steps)


# Schedules of forks.


@dataclass(frozen=True)
class ForkSchedule:
    """The schedule of a fork that leaves ``run`` at ``start``; ``schedule(step)`` by absolute step.

    ``stop`` is the step after the last update. With ``rewarm_steps`` the rate rises from zero.
    This is for forks with fresh Adam moments. Adam's first updates would otherwise be full steps
    in the direction of the signs of a single batch's gradient.
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
        rate = self.kind.lr(step, self)
        if self.rewarm_steps:
            rate *= min(1.0, (step - self.start) / self.rewarm_steps)
        return rate

    def last_update_phase(self, step: int) -> OliPhase | None:
        """OLI phase of the update that made the weights of ``step``; ``None`` for other kinds."""
        if step <= self.start:
            raise ValueError(f"step {step - 1}: this schedule starts at {self.start}")
        return self.kind.phase(step - 1 - self.start)


class ConditionKind(Section):
    """One entry of ``fork.schedules`` or ``fork.rivals``, by its ``kind``."""

    model_config = ConfigDict(frozen=True)

    kind: str


class ScheduleKind(ConditionKind):
    """An entry that is trained. ``lr`` is its formula.

    ``modifiers`` lists its keys that change the suite's sections ``training`` and ``compute``.
    """

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
        """OLI phase of the update after ``updates`` others; ``None`` for other kinds."""
        return None

    def settled(self, steps: int) -> list[int]:
        """Numbers of updates, rising, at which a fork of ``steps`` is compared with other kinds."""
        return [steps]

    def mistakes(self, steps: int) -> Mistakes:
        """Key and mistake of each number that does not fit a fork of ``steps`` updates."""
        yield from ()


class Continued(ScheduleKind):
    """The run's own schedule continues: condition A of section 5.1, the control."""

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

    Condition C of section 5.1. A cycle has ``bump_steps`` at ``amplitude`` times the run's rate,
    and ``cool_steps`` at the run's rate. The amplitude (lambda) and the order of the two phases
    are missing from the paper's text, so both are keys.
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
        if self.first == "bump":
            return "bump" if position < self.bump_steps else "cool"
        return "cool" if position < self.cool_steps else "bump"

    def lr(self, step: int, fork: ForkSchedule) -> float:
        factor = self.amplitude if self.phase(step - fork.start) == "bump" else 1.0
        return factor * fork.run(step)

    def settled(self, steps: int) -> list[int]:
        """The last end of a bump and the last end of a cool phase.

        A fork that ends on a bump is not comparable at its end, because its rate is raised.
        """
        last_end_by_phase = {}
        # Later updates of the last cycle overwrite earlier ones of the same phase.
        for update in range(max(0, steps - self.period), steps):
            last_end_by_phase[self.phase(update)] = update + 1
        return sorted(last_end_by_phase.values())

    def visible_phases(self, probe_every: int) -> list[int]:
        """Positions in the cycle that probes every ``probe_every`` steps can measure.

        Position p is after p updates of a cycle. If ``probe_every`` and the period share a large
        factor, there are few. The paper's 1,000 and 375 share 125, so its probes could measure
        three positions: 125, 250 and 375.
        """
        shared = math.gcd(probe_every, self.period)
        # Multiples of the common divisor: probes can reach these positions and no others.
        return list(range(shared, self.period + 1, shared))


def _stable_then_linear(step: int, fork: ForkSchedule, decay_start: int) -> float:
    """The fork point's rate until ``decay_start``, then a straight line to zero at the end."""
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
        top = fork.run(fork.start)
        bottom = fork.run.lr_min
        remaining = min(max((fork.stop - step) / (fork.stop - fork.start), 0.0), 1.0)
        return bottom + (top - bottom) * remaining


class WarmupStableDecay(ScheduleKind):
    """Warm-up, stable, decay (WSD), without the warm-up, which the run has already done."""

    kind: Literal["wsd"] = "wsd"
    decay_steps: Count = Field(description="Steps of the decay to zero at the end.")

    def lr(self, step: int, fork: ForkSchedule) -> float:
        return _stable_then_linear(step, fork, fork.stop - self.decay_steps)

    def mistakes(self, steps: int) -> Mistakes:
        if self.decay_steps > steps:
            yield "decay_steps", f"{self.decay_steps} is more than fork.steps {steps}"


class Restarts(ScheduleKind):
    """SGDR that restarts at ``amplitude`` times the run's rate there, instead of at ``lr_max``.

    The paper's SGDR differs from OLI in both shape and amplitude. With OLI's amplitude, this kind
    differs in shape only.
    """

    kind: Literal["restarts"] = "restarts"
    period: Count = Field(description="Steps between restarts.")
    amplitude: Factor = Field(description="Rate of a restart in multiples of the run's.")

    def lr(self, step: int, fork: ForkSchedule) -> float:
        position = (step - fork.start) % self.period
        # ``step - position`` is the step of the last restart.
        peak = self.amplitude * fork.run(step - position)
        return _restart(peak, fork.run.lr_min, position, self.period)


# Rivals without training: averages of the run's own checkpoints.


class AverageKind(ConditionKind):
    """One entry of ``fork.rivals`` that is an average of the run's checkpoints."""

    def steps(self, grid: Sequence[int], start: int, end: int) -> list[int]:
        """Steps of the run's ``grid`` that are averaged, for forks from ``start`` to ``end``."""
        raise NotImplementedError

    def weights(self, count: int) -> list[float]:
        """Weight of each of ``count`` checkpoints, oldest first; they sum to one."""
        return [1.0 / count] * count

    def mistakes(self, grid: Sequence[int], start: int, end: int) -> Mistakes:
        """Key and mistake of each number that does not fit these checkpoints."""
        if end not in self.steps(grid, start, end):
            yield (
                "kind",
                f"{self.kind} averages checkpoints up to the end of the fork, step {end}, "
                "but the grid of the suite does not contain this step",
            )


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
        count = len(self.steps(grid, start, end))
        if count < self.window:
            yield (
                "window",
                f"{self.window} is more than the number of checkpoints up to step {end}; "
                f"valid: 1 to {count}",
            )


class Ema(AverageKind):
    """Exponential average from the fork point: decay * average + (1 - decay) * checkpoint."""

    kind: Literal["ema"] = "ema"
    decay: float = Field(
        gt=0, lt=1, description="Part of the average that each older checkpoint keeps."
    )

    def steps(self, grid: Sequence[int], start: int, end: int) -> list[int]:
        return [step for step in grid if start <= step <= end]

    def weights(self, count: int) -> list[float]:
        # The oldest checkpoint starts the average, so it has no factor 1 - decay.
        later = [(1.0 - self.decay) * self.decay ** (count - 1 - n) for n in range(1, count)]
        return [self.decay ** (count - 1), *later]


_KINDS = reduce(or_, ScheduleKind.__subclasses__())
AnySchedule = Annotated[_KINDS, Field(discriminator="kind")]
AnyRival = Annotated[reduce(or_, AverageKind.__subclasses__(), _KINDS), Field(discriminator="kind")]
_RIVALS: TypeAdapter = TypeAdapter(AnyRival)


def read_kind(definition: Mapping) -> ScheduleKind | AverageKind:
    """The class behind an entry of ``fork.schedules`` or ``fork.rivals``, else a ``ValueError``."""
    return _RIVALS.validate_python(dict(definition))
