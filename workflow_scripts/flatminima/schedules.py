"""Learning-rate schedules as pure functions of the absolute training step.

Convention: ``schedule(step)`` is the learning rate of the update that takes the
weights from ``step`` to ``step + 1``. The first update of a run with warm-up has
a learning rate of zero, which is why step 0 and step 1 of Pythia hold the same
weights. A checkpoint at ``step`` was therefore last moved by ``schedule(step - 1)``.

Nothing here imports torch; learning rates are Python floats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Schedule = Callable[[int], float]
OliPhase = Literal["bump", "cool"]


def _check_step(step: int) -> None:
    if step < 0:
        raise ValueError(f"step {step}: a training step is 0 or larger")


def _half_cosine(progress: float) -> float:
    """1 at progress 0, 0 at progress 1, along half a cosine period."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up, then a cosine that reaches ``lr_min`` at ``total_steps``.

    The formula behind the learning-rate column of the paper's Table 1:
    lr_min + (lr_max - lr_min)/2 * (1 + cos(pi * (s - W) / (T - W))).
    After ``total_steps`` the rate stays at ``lr_min``.
    """

    lr_max: float
    lr_min: float
    warmup_steps: int
    total_steps: int

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        _check_step(step)
        if step < self.warmup_steps:
            return self.lr_max * step / self.warmup_steps
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.lr_min + (self.lr_max - self.lr_min) * _half_cosine(progress)


@dataclass(frozen=True)
class CosineNeoxV1:
    """The schedule Pythia really ran: a cosine to zero with ``lr_min`` as a floor.

    max(lr_min, lr_max/2 * (1 + cos(pi * (min(s, T - W) - W) / T))), from the
    ``AnnealingLR`` of gpt-neox v1.0 (the release Pythia was trained with; the
    formula was changed later by gpt-neox pull request 1008). With Pythia's
    numbers the floor is met at step 115,139 and the last 27,861 steps run at a
    constant rate.
    """

    lr_max: float
    lr_min: float
    warmup_steps: int
    total_steps: int

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        _check_step(step)
        if step < self.warmup_steps:
            return self.lr_max * step / self.warmup_steps
        clamped = min(step, self.total_steps - self.warmup_steps)
        progress = (clamped - self.warmup_steps) / self.total_steps
        return max(self.lr_min, self.lr_max * _half_cosine(progress))

    @property
    def floor_step(self) -> int:
        """First step after the warm-up whose rate is ``lr_min``."""
        cosine = 2.0 * self.lr_min / self.lr_max - 1.0
        exact = self.warmup_steps + self.total_steps * math.acos(cosine) / math.pi
        last_moving = self.total_steps - self.warmup_steps
        if exact > last_moving:
            raise ValueError(
                f"lr_min {self.lr_min} is never reached: the cosine stops moving at "
                f"step {last_moving}"
            )
        return math.ceil(exact)


@dataclass(frozen=True)
class Sgdr:
    """Cosine warm restarts from ``lr_max`` every ``period`` steps after ``start``.

    Condition B of section 5.1 (Loshchilov and Hutter's SGDR without period
    multiplication); each cycle decays from ``lr_max`` towards ``lr_min``.
    """

    lr_max: float
    lr_min: float
    start: int
    period: int

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        _check_step(step)
        if step < self.start:
            raise ValueError(f"step {step}: this schedule starts at {self.start}")
        progress = ((step - self.start) % self.period) / self.period
        return self.lr_min + (self.lr_max - self.lr_min) * _half_cosine(progress)


@dataclass(frozen=True)
class OscillatoryLockIn:
    """Oscillatory Lock-In: short bumps above a baseline schedule.

    Condition C of section 5.1. A cycle has ``bump_steps`` at
    ``amplitude * baseline(step)`` and ``cool_steps`` at ``baseline(step)``. The
    value of the amplitude (lambda) and the order of the two phases are lost in
    the paper's text; both are parameters.
    """

    baseline: Schedule
    start: int
    bump_steps: int
    cool_steps: int
    amplitude: float
    first: OliPhase = "cool"

    def __post_init__(self) -> None:
        if self.first not in ("bump", "cool"):
            raise ValueError(f"first {self.first!r}: either 'bump' or 'cool'")

    @property
    def period(self) -> int:
        """Steps in one bump-and-cool cycle."""
        return self.bump_steps + self.cool_steps

    def phase(self, step: int) -> OliPhase:
        """Phase of the update that takes the weights from ``step`` to ``step + 1``."""
        if step < self.start:
            raise ValueError(f"step {step}: this schedule starts at {self.start}")
        position = (step - self.start) % self.period
        if self.first == "bump":
            return "bump" if position < self.bump_steps else "cool"
        return "cool" if position < self.cool_steps else "bump"

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        _check_step(step)
        factor = self.amplitude if self.phase(step) == "bump" else 1.0
        return factor * self.baseline(step)


PRETRAINING_SCHEDULES = {"cosine": Cosine, "cosine_neox_v1": CosineNeoxV1}
FORK_SCHEDULES = ("cosine", "sgdr", "oli")


def pretraining_schedule(
    kind: str, *, lr_max: float, lr_min: float, warmup_steps: int, total_steps: int
) -> Cosine | CosineNeoxV1:
    """Schedule of a whole training run, by its name in ``config.yaml``.

    Raises ``ValueError`` for another name.
    """
    if kind not in PRETRAINING_SCHEDULES:
        raise ValueError(f"schedule {kind!r}: known are {', '.join(PRETRAINING_SCHEDULES)}")
    return PRETRAINING_SCHEDULES[kind](lr_max, lr_min, warmup_steps, total_steps)


def fork_schedule(definition: dict, *, baseline: Cosine | CosineNeoxV1, start: int) -> Schedule:
    """Schedule of a fork that leaves the run of ``baseline`` at step ``start``.

    ``definition`` is one entry of ``forks.schedules`` in ``config.yaml``; its
    ``kind`` is one of ``FORK_SCHEDULES``. Raises ``ValueError`` for another kind.
    """
    kind = definition["kind"]
    if kind == "cosine":
        return baseline
    if kind == "sgdr":
        return Sgdr(baseline.lr_max, baseline.lr_min, start, definition["period"])
    if kind == "oli":
        return OscillatoryLockIn(
            baseline,
            start,
            definition["bump_steps"],
            definition["cool_steps"],
            definition["amplitude"],
            definition["first"],
        )
    raise ValueError(f"schedule kind {kind!r}: known are {', '.join(FORK_SCHEDULES)}")


def last_update_phase(schedule: Schedule, step: int) -> OliPhase | None:
    """Whether the update that made the weights of ``step`` was a bump or a cool one.

    ``None`` for schedules without such phases. The last update before a probe at
    ``step`` is the one at ``step - 1``.
    """
    if isinstance(schedule, OscillatoryLockIn):
        return schedule.phase(step - 1)
    return None


def visible_phases(schedule: OscillatoryLockIn, probe_every: int) -> list[int]:
    """Positions in the cycle at which probes every ``probe_every`` steps can land.

    Position p means that p updates of the current cycle lie behind the probe
    (``period`` itself: the cycle has just ended). Probing at a cadence that shares
    a factor with the period sees only some of them: 1,000 mod 375 = 250 leaves
    three (250, 125 and 375), which is what the paper's probes could see.
    """
    period = schedule.period
    positions = {(probe_every * k) % period or period for k in range(1, period + 1)}
    return sorted(positions)
