"""Learning rates of the conditions that the paper does not have, as functions of the step.

The convention is that of ``schedules``: the rate at ``step`` belongs to the update that
takes the weights from ``step`` to ``step + 1``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flatminima.schedules import (
    FORK_SCHEDULES,
    Cosine,
    CosineNeoxV1,
    OliPhase,
    Schedule,
    Sgdr,
    fork_schedule,
    last_update_phase,
)

RIVAL_SCHEDULES = ("constant", "wsd", "linear", "restarts")


@dataclass(frozen=True)
class StableThenLinear:
    """``rate`` until ``decay_start``, then a straight line that reaches zero at ``stop``.

    Warm-up, stable, decay (WSD) without the warm-up, which the run has behind it;
    without ``decay_start`` the rate is constant, and with the first step it is a linear decay.
    """

    rate: float
    decay_start: int | None
    stop: int

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        if self.decay_start is None or step < self.decay_start:
            return self.rate
        if step >= self.stop:
            return 0.0
        return self.rate * (self.stop - step) / (self.stop - self.decay_start)


@dataclass(frozen=True)
class Restarts:
    """SGDR whose restarts are ``amplitude`` times the baseline instead of ``lr_max``.

    With OLI's amplitude it tells SGDR's shape and cadence from its amplitude, which the
    paper's two conditions (section 5.1) change together.
    """

    baseline: Cosine | CosineNeoxV1
    start: int
    period: int
    amplitude: float

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        if step < self.start:
            raise ValueError(f"step {step}: this schedule starts at {self.start}")
        restart = step - (step - self.start) % self.period
        peak = self.amplitude * self.baseline(restart)
        return Sgdr(peak, self.baseline.lr_min, restart, self.period)(step)


@dataclass(frozen=True)
class Rewarmed:
    """A schedule whose rate rises from zero over its first ``steps`` updates after ``start``.

    For forks whose moments are fresh: Adam's first updates would otherwise be full steps
    in the direction of a single batch's signs.
    """

    schedule: Schedule
    start: int
    steps: int

    def __call__(self, step: int) -> float:
        """Learning rate of the update that takes the weights from ``step`` to ``step + 1``."""
        return self.schedule(step) * min(1.0, (step - self.start) / self.steps)


def condition_schedule(
    definition: Mapping,
    *,
    baseline: Cosine | CosineNeoxV1,
    start: int,
    stop: int,
    rewarm_steps: int = 0,
) -> Schedule:
    """Schedule of any trained condition: the paper's three kinds and the rivals'.

    ``definition`` is an entry of ``fork.schedules`` or of ``fork.rivals``, for a fork from
    ``start`` to ``stop``; ``rewarm_steps`` above 0 warms the rate up at the fork. Raises
    ``ValueError`` for another kind.
    """
    schedule = _without_warm_up(definition, baseline, start, stop)
    return Rewarmed(schedule, start, rewarm_steps) if rewarm_steps else schedule


def _without_warm_up(
    definition: Mapping, baseline: Cosine | CosineNeoxV1, start: int, stop: int
) -> Schedule:
    kind = definition["kind"]
    if kind in FORK_SCHEDULES:
        return fork_schedule(dict(definition), baseline=baseline, start=start)
    if kind == "constant":
        return StableThenLinear(baseline(start), None, stop)
    if kind == "linear":
        return StableThenLinear(baseline(start), start, stop)
    if kind == "wsd":
        return StableThenLinear(baseline(start), stop - definition["decay_steps"], stop)
    if kind == "restarts":
        return Restarts(baseline, start, definition["period"], definition["amplitude"])
    known = ", ".join((*FORK_SCHEDULES, *RIVAL_SCHEDULES))
    raise ValueError(f"schedule kind {kind!r}: known are {known}")


def update_phase(schedule: Schedule, step: int) -> OliPhase | None:
    """``schedules.last_update_phase`` of a schedule with or without a warm-up."""
    inner = schedule.schedule if isinstance(schedule, Rewarmed) else schedule
    return last_update_phase(inner, step)


def settled_offsets(definition: Mapping, steps: int) -> list[int]:
    """Updates after the fork at which a condition is probed so that all are alike, rising.

    The end of the fork, and for OLI also the ends of its last cool phase and of its last
    bump up to there: a fork that ends on a bump is not at rest.
    """
    if definition["kind"] != "oli":
        return [steps]
    parts = {"bump": definition["bump_steps"], "cool": definition["cool_steps"]}
    first = parts[definition["first"]]
    position = (steps - 1) % sum(parts.values())
    begin = steps - 1 - position  # updates before the cycle that the last update is in
    other = begin if position < first else begin + first
    return sorted({steps, other} - {0})
