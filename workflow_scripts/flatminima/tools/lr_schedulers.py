"""The schedules of ``schedules`` as PyTorch schedulers, with the signatures of Hugging Face.

Each factory returns a ``LambdaLR`` for ``Trainer(optimizers=(optimizer, scheduler))`` or any
loop that calls ``scheduler.step()`` after ``optimizer.step()``. Its rate at every step is
that of the pure function, to the last bit but one: PyTorch multiplies a group's initial
rate by a factor. The highest rate is each group's own ``lr``; ``min_lr_rate`` is the lowest
as a share of it (a tenth by default), or ``min_lr`` the lowest itself. The state of a
scheduler is its step counter, so ``load_state_dict`` on one that was made alike resumes
exactly. To leave a run at step s with a new optimizer, set ``initial_lr`` of its groups and
pass ``last_epoch=s - 1``. A number that makes no sense is a ``ValueError`` of one line.
"""

from functools import partial
from typing import Literal

from pydantic import ValidationError
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from flatminima.schedules import (
    ForkSchedule,
    OliPhase,
    OscillatoryLockIn,
    RunSchedule,
    ScheduleKind,
    Sgdr,
    pretraining_schedule,
)

Baseline = Literal["cosine", "cosine_neox_v1"]


def _factor(step: int, run: RunSchedule, fork: ForkSchedule | None) -> float:
    rate = fork(step) if fork and step >= fork.start else run(step)
    return rate / run.lr_max


def _scheduler(
    optimizer: Optimizer, warmup: int, total: int, baseline: str, min_lr_rate: float | None,
    min_lr: float | None, last_epoch: int, kind: ScheduleKind | None = None,
    start: int | None = None,
) -> LambdaLR:  # fmt: skip
    """``baseline`` up to ``start``, ``kind`` from there on, with each group's own highest rate."""
    if min_lr_rate is not None and min_lr is not None:
        raise ValueError(f"min_lr_rate {min_lr_rate} and min_lr {min_lr}: give one of the two")
    if not 0 <= warmup < total:
        raise ValueError(f"num_warmup_steps {warmup}: 0 to num_training_steps - 1, {total - 1}")
    start = warmup if start is None else start
    if not warmup <= start < total:
        raise ValueError(
            f"start {start}: from num_warmup_steps {warmup} to num_training_steps - 1, {total - 1}"
        )
    factors = []
    for group in optimizer.param_groups:
        highest = float(group.get("initial_lr", group["lr"]))
        if not highest > 0.0:
            raise ValueError(f"lr {highest} of a parameter group: a schedule needs more than 0")
        share = 0.1 if min_lr_rate is None else min_lr_rate
        lowest = share * highest if min_lr is None else min_lr
        if not 0.0 <= lowest <= highest:
            raise ValueError(f"lowest learning rate {lowest}: 0 to the highest, {highest}")
        run = pretraining_schedule(
            baseline, lr_max=highest, lr_min=lowest, warmup_steps=warmup, total_steps=total
        )
        fork = kind and ForkSchedule(kind, run, start, total)
        factors.append(partial(_factor, run=run, fork=fork))
    return LambdaLR(optimizer, factors, last_epoch)


def _kind(kind: type[ScheduleKind], **numbers: object) -> ScheduleKind:
    try:
        return kind(**numbers)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(f"{wrong['loc'][0]} {wrong['input']!r}: {wrong['msg']}") from None


def get_cosine_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    *,
    min_lr_rate: float | None = None,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Linear warm-up, then a cosine that ends at the lowest rate (``schedules.Cosine``)."""
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, "cosine", min_lr_rate,
                      min_lr, last_epoch)  # fmt: skip


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
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, "cosine_neox_v1",
                      min_lr_rate, min_lr, last_epoch)  # fmt: skip


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
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, baseline, min_lr_rate,
                      min_lr, last_epoch, _kind(Sgdr, period=period), start)  # fmt: skip


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
    kind = _kind(OscillatoryLockIn, bump_steps=bump_steps, cool_steps=cool_steps,
                 amplitude=amplitude, first=first)  # fmt: skip
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, baseline, min_lr_rate,
                      min_lr, last_epoch, kind, start)  # fmt: skip
