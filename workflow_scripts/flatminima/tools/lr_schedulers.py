"""The schedules of ``schedules`` as PyTorch schedulers, with the signatures of Hugging Face.

Each factory returns a ``LambdaLR`` for ``Trainer(optimizers=(optimizer, scheduler))`` or any
loop that calls ``scheduler.step()`` after ``optimizer.step()``. Its rate at every step is
that of the pure function, to the last bit but one: PyTorch multiplies a group's initial
rate by a factor. The highest rate is each group's own ``lr``; ``min_lr_rate`` is the lowest
as a share of it, or ``min_lr`` the lowest itself. The state of a scheduler is its
step counter, so ``load_state_dict`` on one that was made alike resumes exactly. To leave a
run at step s with a new optimizer, set ``initial_lr`` of its groups and pass ``last_epoch=s - 1``.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from flatminima.schedules import (
    RUN_SCHEDULES,
    ForkSchedule,
    OliPhase,
    OscillatoryLockIn,
    RunSchedule,
    Schedule,
    ScheduleKind,
    Sgdr,
    pretraining_schedule,
)

Baseline = Literal["cosine", "cosine_neox_v1"]


def _factor(step: int, schedule: Schedule, lr_max: float) -> float:
    return schedule(step) / lr_max


def _after(step: int, fork: ForkSchedule) -> float:
    return fork.run(step) if step < fork.start else fork(step)


def _leaving(
    build: Callable[[float], RunSchedule], kind: ScheduleKind, start: int
) -> Callable[[float], Schedule]:
    """The run's schedule up to ``start``, ``kind`` from there on, by the highest rate."""

    def schedule(lr_max: float) -> Schedule:
        run = build(lr_max)
        return partial(_after, fork=ForkSchedule(kind, run, start, run.total_steps))

    return schedule


def _scheduler(
    optimizer: Optimizer, build: Callable[[float], Schedule], last_epoch: int
) -> LambdaLR:
    """One factor per group: ``build`` makes the schedule whose highest rate is the group's."""
    factors = []
    for group in optimizer.param_groups:
        lr_max = float(group.get("initial_lr", group["lr"]))
        if not lr_max > 0.0:
            raise ValueError(f"lr {lr_max} of a parameter group: a schedule needs more than 0")
        factors.append(partial(_factor, schedule=build(lr_max), lr_max=lr_max))
    return LambdaLR(optimizer, factors, last_epoch)


def _lowest(lr_max: float, min_lr_rate: float | None, min_lr: float | None) -> float:
    if min_lr_rate is not None and min_lr is not None:
        raise ValueError(f"min_lr_rate {min_lr_rate} and min_lr {min_lr}: give one of the two")
    lowest = 0.1 * lr_max if min_lr is None else min_lr
    lowest = lowest if min_lr_rate is None else min_lr_rate * lr_max
    if not 0.0 <= lowest <= lr_max:
        raise ValueError(f"lowest learning rate {lowest}: 0 to the highest, {lr_max}")
    return lowest


def _baseline(
    kind: str, warmup: int, total: int, min_lr_rate: float | None, min_lr: float | None
) -> Callable[[float], RunSchedule]:
    if kind not in RUN_SCHEDULES:
        raise ValueError(f"baseline {kind!r}: {', '.join(RUN_SCHEDULES)}")
    if not 0 <= warmup < total:
        raise ValueError(f"num_warmup_steps {warmup}: 0 to num_training_steps - 1, {total - 1}")
    return lambda lr_max: pretraining_schedule(
        kind, lr_max=lr_max, lr_min=_lowest(lr_max, min_lr_rate, min_lr), warmup_steps=warmup,
        total_steps=total,
    )  # fmt: skip


def _start(start: int | None, warmup: int, total: int) -> int:
    start = warmup if start is None else start
    if not warmup <= start < total:
        raise ValueError(
            f"start {start}: from num_warmup_steps {warmup} to num_training_steps - 1, {total - 1}"
        )
    return start


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} {count}: 1 or more")


def get_cosine_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    *,
    min_lr_rate: float | None = None,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Linear warm-up, then a cosine that ends at the lowest rate (``schedules.Cosine``).

    The lowest rate is a tenth of the highest where neither option is given.
    """
    build = _baseline("cosine", num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    return _scheduler(optimizer, build, last_epoch)


def get_cosine_neox_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    *,
    min_lr_rate: float | None = None,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Pythia's own schedule, the lowest rate as a floor (``schedules.CosineNeoxV1``)."""
    build = _baseline("cosine_neox_v1", num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    return _scheduler(optimizer, build, last_epoch)


def get_sgdr_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    period: int,
    *,
    start: int | None = None,
    baseline: Baseline = "cosine_neox_v1",
    min_lr_rate: float | None = None,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warm restarts every ``period`` steps from ``start`` on (``schedules.Sgdr``).

    Before ``start`` the run follows ``baseline``; without a ``start`` the restarts begin
    after the warm-up.
    """
    _at_least_one(period=period)
    build = _baseline(baseline, num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    start = _start(start, num_warmup_steps, num_training_steps)

    return _scheduler(optimizer, _leaving(build, Sgdr(period=period), start), last_epoch)


def get_oli_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    bump_steps: int = 75,
    cool_steps: int = 300,
    *,
    amplitude: float = 5.0,
    first: OliPhase = "cool",
    start: int | None = None,
    baseline: Baseline = "cosine_neox_v1",
    min_lr_rate: float | None = None,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Oscillatory Lock-In: bumps above ``baseline`` from ``start`` on.

    ``schedules.OscillatoryLockIn``, condition C of section 5.1. Without a ``start`` the
    cycles begin after the warm-up; the paper begins them late, where FP32 loss has converged.
    """
    _at_least_one(bump_steps=bump_steps, cool_steps=cool_steps)
    if first not in ("bump", "cool"):
        raise ValueError(f"first {first!r}: either bump or cool")
    if not 0.0 < amplitude < float("inf"):
        raise ValueError(f"amplitude {amplitude}: a number above 0")
    build = _baseline(baseline, num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    start = _start(start, num_warmup_steps, num_training_steps)

    kind = OscillatoryLockIn(
        bump_steps=bump_steps, cool_steps=cool_steps, amplitude=amplitude, first=first
    )
    return _scheduler(optimizer, _leaving(build, kind, start), last_epoch)
