"""The schedules of ``schedules`` as PyTorch schedulers, with the signatures of Hugging Face.

Each factory returns a ``LambdaLR``, for ``Trainer(optimizers=(optimizer, scheduler))`` or for a
loop that calls ``scheduler.step()`` after ``optimizer.step()``. The rates are those of the pure
functions. The last bit may differ, because PyTorch multiplies a group's initial rate by a factor.

The highest rate is the ``lr`` of each parameter group. All factories accept the lowest rate as
``min_lr``, or as ``min_lr_rate``, its share of the highest rate (default: a tenth). SGDR and OLI
also accept ``baseline``, the schedule until they start (``cosine`` or ``cosine_neox_v1``, the
default), and ``start``, their first step (default: the end of the warm-up).

A scheduler's state is its step counter, so ``load_state_dict`` resumes exactly on a scheduler with
the same arguments. To leave a run at step s with a new optimizer, set ``initial_lr`` of its groups
and pass ``last_epoch=s - 1``. Invalid numbers raise ``ValueError`` with one line.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    read_schedule,
)

Baseline = Literal["cosine", "cosine_neox_v1"]


def get_cosine_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    *,
    min_lr_rate: float = 0.1,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Linear warm-up, then a cosine that ends at the lowest rate (``schedules.Cosine``)."""
    run = _Run("cosine", num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    return _scheduler(optimizer, run, None, None, last_epoch)


def get_cosine_neox_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    *,
    min_lr_rate: float = 0.1,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Pythia's own schedule, the lowest rate as a floor (``schedules.CosineNeoxV1``)."""
    run = _Run("cosine_neox_v1", num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    return _scheduler(optimizer, run, None, None, last_epoch)


def get_sgdr_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    period: int,
    *,
    start: int | None = None,
    baseline: Baseline = "cosine_neox_v1",
    min_lr_rate: float = 0.1,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warm restarts every ``period`` steps (``schedules.Sgdr``)."""
    run = _Run(baseline, num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    return _scheduler(optimizer, run, partial(Sgdr, period=period), start, last_epoch)


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
    min_lr_rate: float = 0.1,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """Oscillatory Lock-In: bumps above the baseline (``schedules.OscillatoryLockIn``).

    For the paper's condition C (section 5.1) set ``start`` to the step at which FP32 loss has
    converged. By default the cycles begin at the end of the warm-up.
    """
    run = _Run(baseline, num_warmup_steps, num_training_steps, min_lr_rate, min_lr)
    kind = partial(
        OscillatoryLockIn,
        bump_steps=bump_steps,
        cool_steps=cool_steps,
        amplitude=float(amplitude),
        first=first,
    )
    return _scheduler(optimizer, run, kind, start, last_epoch)


@dataclass(frozen=True)
class _Run:
    """The schedule of the run without its highest rate, which each parameter group has itself."""

    baseline: Baseline
    warmup_steps: int
    total_steps: int
    min_lr_rate: float
    min_lr: float | None

    def schedule(self, lr_max: float) -> RunSchedule:
        """The schedule of a group whose highest rate is ``lr_max``."""
        lr_min = self.min_lr_rate * lr_max if self.min_lr is None else self.min_lr
        if not 0.0 <= lr_min <= lr_max:
            raise ValueError(f"lowest learning rate {lr_min}; valid: 0 to a group's lr, {lr_max}")
        numbers = {"lr_max": lr_max, "lr_min": lr_min, "warmup_steps": self.warmup_steps}
        return read_schedule({"schedule": self.baseline, **numbers}, self.total_steps)


def _scheduler(
    optimizer: Optimizer,
    run: _Run,
    make_kind: Callable[[], ScheduleKind] | None,
    start: int | None,
    last_epoch: int,
) -> LambdaLR:
    """The run's schedule until ``start``, then the schedule that ``make_kind`` builds.

    It is only the run's schedule if ``make_kind`` is ``None``.
    """
    warmup = run.warmup_steps
    total = run.total_steps
    start = warmup if start is None else start
    if not 0 <= warmup <= start < total:
        raise ValueError(
            f"num_warmup_steps {warmup}, start {start}, num_training_steps {total}; "
            "valid: num_warmup_steps <= start < num_training_steps"
        )

    def factor(lr_max: float) -> Callable[[int], float]:
        baseline = run.schedule(lr_max)
        if make_kind is None:
            return lambda step: baseline(step) / lr_max
        fork = ForkSchedule(make_kind(), baseline, start, total)
        # LambdaLR multiplies the group's initial rate by this factor.
        return lambda step: (fork if step >= start else baseline)(step) / lr_max

    # ``make_kind`` and ``run.schedule`` validate their numbers only when ``factor`` calls them.
    try:
        rates = []
        for group in optimizer.param_groups:
            # A scheduler stores the highest rate here. A second scheduler must not start from a
            # reduced one.
            lr_max = group.get("initial_lr", group["lr"])
            if lr_max is None:  # Adafactor with relative steps
                raise ValueError("the optimizer's lr is None; a schedule needs a learning rate")
            rates.append(float(lr_max))
        return LambdaLR(optimizer, [factor(lr_max) for lr_max in rates], last_epoch)
    except ValidationError as error:
        first_error = error.errors()[0]
        raise ValueError(
            f"{first_error['loc'][-1]} {first_error['input']!r}: {first_error['msg']}"
        ) from None
