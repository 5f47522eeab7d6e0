"""A training step: of the embedded suite's model, and of Pythia's 14m and 160m shapes."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from flatminima.training.gradients import next_token_loss
from flatminima.training.loop import Recipe, build_optimizer, train
from workflow_scripts.bench.models import VOCABULARY, fresh_model, random_tokens
from workflow_scripts.bench.results import Result, Target, judged
from workflow_scripts.bench.timing import Settings, median, ratio

ROW = "training_step"
TRAINER, EAGER, COMPILED = "Hugging Face Trainer", "plain eager loop", "torch.compile, warm"
LR = 1e-3
# Batch, length, steps a round, rounds, target against Trainer.
CASES = {
    "mini": (16, 64, 60, 5, 1.5),
    "14m": (4, 512, 4, 4, 1.2),
    "160m": (1, 512, 2, 3, 1.2),
}
Steps = Callable[[int], list[float]]


def _recipe(batch: int) -> Recipe:
    return Recipe(batch, 0.0, 0.9, 0.95, 1e-8, 1.0)


def _ours(model: nn.Module, tokens: np.ndarray, batch: int, settings: Settings) -> Steps:
    recipe = _recipe(batch)
    updates = train(
        model, build_optimizer(model, recipe), tokens, lambda step: LR, recipe,
        start=0, stop=10**9, seed=0, device=settings.device,
    )  # fmt: skip
    return lambda steps: _timed(updates, steps, settings)


def _timed(updates: Iterator, steps: int, settings: Settings) -> list[float]:
    taken = []
    for _ in range(steps):
        started = settings.now()
        next(updates)
        taken.append(settings.now() - started)
    return taken


def eager_losses(
    model: nn.Module, tokens: np.ndarray, batch: int, device: str, loss_of: Callable | None = None
) -> Iterator[float]:
    """The loop of a tutorial: the same batches, AdamW as it comes, gradients clipped."""
    from flatminima.training.loop import batch_rows

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    model.train()
    loss_of = loss_of or (lambda ids: next_token_loss(model, ids))
    step = 0
    while True:
        rows = batch_rows(step, sequences=len(tokens), batch_size=batch, seed=0)
        ids = torch.from_numpy(tokens[rows].astype(np.int64)).to(device)
        loss = loss_of(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        yield loss.item()


def _trainer(model: nn.Module, tokens: np.ndarray, batch: int, settings: Settings) -> Steps:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in torch.from_numpy(tokens.astype(np.int64))]
    folder = tempfile.mkdtemp()

    class Ends(TrainerCallback):
        def __init__(self) -> None:
            self.times = []

        def on_step_end(self, *_: object, **__: object) -> None:
            self.times.append(settings.now())

    def steps(count: int) -> list[float]:
        ends = Ends()
        arguments = TrainingArguments(
            output_dir=folder, max_steps=count + 1, learning_rate=LR, adam_beta2=0.95,
            per_device_train_batch_size=batch, report_to=[], use_cpu=settings.device == "cpu",
            disable_tqdm=True, logging_strategy="no", save_strategy="no",
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[ends]).train()
        shutil.rmtree(folder, ignore_errors=True)
        return np.diff(ends.times).tolist()

    return steps


def _compiled(model: nn.Module, tokens: np.ndarray, batch: int, settings: Settings) -> Steps:
    loss_of = torch.compile(lambda ids: next_token_loss(model, ids))
    losses = eager_losses(model, tokens, batch, settings.device, loss_of)
    next(losses)
    return lambda steps: _timed(losses, steps, settings)


def run(settings: Settings) -> list[Result]:
    """Seconds a step beside Trainer and a plain loop, and the same losses."""
    results = []
    for name in ("mini",) if settings.quick else CASES:
        results += _case(name, settings)
    return results


def _case(name: str, settings: Settings) -> list[Result]:
    batch, length, steps, rounds, bound = CASES[name]
    vocabulary = 512 if name == "mini" else VOCABULARY
    steps = 3 if settings.quick else steps
    tokens = random_tokens(64 * batch, length, vocabulary)

    def model() -> nn.Module:
        return fresh_model(name, vocabulary, max_length=length).to(settings.device)

    eager = eager_losses(model(), tokens, batch, settings.device)
    ways = {
        "ours": _ours(model(), tokens, batch, settings),
        TRAINER: _trainer(model(), tokens, batch, settings),
        EAGER: lambda count: _timed(eager, count, settings),
    }
    note = ""
    if name == "mini" and not settings.quick:
        started = time.perf_counter()
        try:
            ways[COMPILED] = _compiled(model(), tokens, batch, settings)
            note = f"compiling took {time.perf_counter() - started:.0f} s first"
        except Exception as error:  # no compiler here
            note = f"{COMPILED} skipped: {' '.join(str(error).split())[:120]}"
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:
        ways[way](2)
    names = list(ways)
    for number in range(settings.rounds(rounds)):
        for way in names[number % len(names) :] + names[: number % len(names)]:
            seconds[way].append(median(ways[way](steps)))
    return [
        *(_faster(name, seconds, way, Target("≥", bound) if way == TRAINER else None, note)
          for way in ways if way != "ours"),
        _same_losses(name, model, tokens, batch, settings),
    ]  # fmt: skip


def _faster(case: str, seconds: dict, way: str, target: Target | None, note: str) -> Result:
    batch, length, *_ = CASES[case]
    return judged(
        target, row=ROW, what=f"{case}, batch {batch} x {length}", against=way,
        ours=1e3 * median(seconds["ours"]), theirs=1e3 * median(seconds[way]), unit="ms",
        ratio=ratio(seconds[way], seconds["ours"]), means="times faster:",
        note=note if way == EAGER else "",
    )  # fmt: skip


def _same_losses(
    case: str, model: Callable, tokens: np.ndarray, batch: int, settings: Settings
) -> Result:
    """The largest relative difference to the losses of the plain loop."""
    count = 20 if case == "mini" else 3
    recipe, mine = _recipe(batch), model()
    updates = train(
        mine, build_optimizer(mine, recipe), tokens, lambda step: LR, recipe,
        start=0, stop=count, seed=0, device=settings.device,
    )  # fmt: skip
    ours = np.array([update.loss_nats for update in updates])
    plainly = eager_losses(model(), tokens, batch, settings.device)
    theirs = np.array([next(plainly) for _ in range(count)])
    return judged(
        Target("≤", 1e-4), row=ROW, what=f"{case}, losses of {count} steps", against=EAGER,
        ours=float(ours[-1]), theirs=float(theirs[-1]), unit="nats",
        ratio=float(np.max(np.abs(ours / theirs - 1))), means="largest relative difference:",
    )  # fmt: skip
