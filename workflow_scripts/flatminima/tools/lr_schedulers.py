"""The schedules of ``schedules`` as PyTorch schedulers, with the signatures of Hugging Face.

Each factory returns a ``LambdaLR`` for ``Trainer(optimizers=(optimizer, scheduler))`` or any
loop that calls ``scheduler.step()`` after ``optimizer.step()``. Its rate at every step is
that of the pure function, to the last bit but one: PyTorch multiplies a group's initial
rate by a factor. The highest rate is each group's own ``lr``; by name all take ``min_lr_rate``
(the lowest as a share of it, a tenth by default) or ``min_lr`` (the lowest itself). SGDR and OLI
leave a ``baseline`` (``cosine`` or ``cosine_neox_v1``, the default) at ``start``, by default
where the warm-up ends.

The state of a scheduler is its step counter, so ``load_state_dict`` on one that was made alike
resumes exactly. To leave a run at step s with a new optimizer, set ``initial_lr`` of its groups
and pass ``last_epoch=s - 1``. A number that makes no sense is a ``ValueError`` of one line.
"""

from collections.abc import Callable, Mapping

from pydantic import ValidationError
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from flatminima.schedules import OliPhase, fork_schedule, read_schedule


def get_cosine_schedule(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, **options: float
) -> LambdaLR:
    """Linear warm-up, then a cosine that ends at the lowest rate (``schedules.Cosine``)."""
    run = {"baseline": "cosine", **options}
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, None, **run)


def get_cosine_neox_schedule(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, **options: float
) -> LambdaLR:
    """Pythia's own schedule, the lowest rate as a floor (``schedules.CosineNeoxV1``)."""
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, None, **options)


def get_sgdr_schedule(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, period: int, **options
) -> LambdaLR:
    """Warm restarts every ``period`` steps (``schedules.Sgdr``)."""
    kind = {"kind": "sgdr", "period": period}
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, kind, **options)


def get_oli_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    bump_steps: int = 75,
    cool_steps: int = 300,
    *,
    amplitude: float = 5.0,
    first: OliPhase = "cool",
    **options,
) -> LambdaLR:
    """Oscillatory Lock-In: bumps above the baseline (``schedules.OscillatoryLockIn``).

    Condition C of section 5.1, which begins the cycles late, where FP32 loss has converged.
    """
    cycle = {"bump_steps": bump_steps, "cool_steps": cool_steps, "first": first}
    kind = {"kind": "oli", "amplitude": amplitude, **cycle}
    return _scheduler(optimizer, num_warmup_steps, num_training_steps, kind, **options)


def _scheduler(
    optimizer: Optimizer,
    warmup: int,
    total: int,
    kind: Mapping | None,
    *,
    start: int | None = None,
    baseline: str = "cosine_neox_v1",
    min_lr_rate: float = 0.1,
    min_lr: float | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """``baseline`` up to ``start``, ``kind`` from there on, with each group's own highest rate."""
    start = warmup if start is None else start
    if not 0 <= warmup <= start < total:
        raise ValueError(
            f"num_warmup_steps {warmup}, start {start}, num_training_steps {total}: none may be "
            "below the one before it, and the last must be above"
        )

    def factor(highest: float) -> Callable[[int], float]:
        lowest = min_lr_rate * highest if min_lr is None else min_lr
        if not 0.0 <= lowest <= highest:
            raise ValueError(f"lowest learning rate {lowest}: from 0 to a group's lr, {highest}")
        numbers = {"lr_max": highest, "lr_min": lowest, "warmup_steps": warmup}
        run = read_schedule({"schedule": baseline, **numbers}, total)
        fork = kind and fork_schedule(kind, baseline=run, start=start, stop=total)
        return lambda step: (fork if fork and step >= start else run)(step) / highest

    try:
        groups = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        return LambdaLR(optimizer, [factor(highest) for highest in groups], last_epoch)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(f"{wrong['loc'][-1]} {wrong['input']!r}: {wrong['msg']}") from None
