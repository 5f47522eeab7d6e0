"""Codes that flip in the bumps and in the cool phases of OLI, beside the control (appendix B).

The forks of section 5 are probed at their cadence; here single phases are trained again
from the fork point and the weights are compared at their ends.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd
from torch import Tensor, nn

from flatminima.mechanism.drift import code_flips
from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import linear_weights
from flatminima.schedules import ForkSchedule, Schedule, fork_schedule, read_schedule
from flatminima.training.loop import build_optimizer, read_recipe, train


def phase_ends(schedule: ForkSchedule) -> dict[int, str]:
    """Step after each phase of a fork of whole OLI cycles, and which phase ended there."""
    start, phase = schedule.start, schedule.kind.phase
    count = schedule.stop - start
    return {
        start + n + 1: phase(n) for n in range(count) if n + 1 == count or phase(n + 1) != phase(n)
    }


def _state(model: nn.Module, layers: str) -> dict[str, Tensor]:
    return {n: w.detach().clone() for n, w in linear_weights(model, layers).items()}


def follow(
    model: nn.Module,
    tokens: np.ndarray,
    schedule: Schedule,
    ends: Mapping[int, str],
    spec: AffineQuantizer,
    *,
    settings: Mapping,
    seed: int,
    device: str,
) -> Iterator[dict]:
    """Train through ``ends`` and compare the codes at each with those at the one before."""
    recipe = read_recipe(settings["training"], settings["batch_size"])
    optimizer, at = build_optimizer(model, recipe), settings["start"]
    before = _state(model, spec.layers)
    updates = train(model, optimizer, tokens, schedule, recipe, start=at, stop=max(ends),
                    seed=seed, device=device)  # fmt: skip
    for update in updates:
        if update.step in ends:
            after = _state(model, spec.layers)
            yield {"phase": ends[update.step], "first_step": at, "step": update.step,
                   "updates": update.step - at, **code_flips(before, after, spec)}  # fmt: skip
            before, at = after, update.step


def trace_phases(
    load: Callable[[], nn.Module],
    tokens: np.ndarray,
    spec: AffineQuantizer,
    *,
    settings: Mapping,
    device: str,
) -> pd.DataFrame:
    """Every OLI schedule and, over the same phases, the baseline; a row per phase and seed.

    ``load`` gives the model of the fork point on ``device``; ``settings`` has schedules
    (definitions by name), start, batch_size, training, total_steps, cycles and seeds.
    """
    start = settings["start"]
    baseline = read_schedule(settings["training"], settings["total_steps"])
    rows = []
    for name, definition in settings["schedules"].items():
        if definition["kind"] != "oli":
            continue
        span = definition["bump_steps"] + definition["cool_steps"]
        stop = start + settings["cycles"] * span
        oli = fork_schedule(definition, baseline=baseline, start=start, stop=stop)
        ends = phase_ends(oli)
        rows += [
            {"phases_of": name, "schedule": arm, "seed": seed, **row}
            for arm, schedule in ((name, oli), ("baseline", baseline))
            for seed in settings["seeds"]
            for row in follow(load(), tokens, schedule, ends, spec, settings=settings, seed=seed,
                              device=device)
        ]  # fmt: skip
    return pd.DataFrame(rows)
