"""Codes that flip in the bumps and in the cool phases of OLI, beside the control (appendix B).

The forks of section 5 are probed at their cadence; here single phases are trained again
from the fork point and the weights are compared at their ends.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd
from torch import nn

from flatminima.mechanism.drift import code_flips
from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import linear_weights
from flatminima.schedules import ForkSchedule, Schedule, fork_schedule, read_schedule
from flatminima.training.loop import build_optimizer, read_recipe, train


def phase_ends(schedule: ForkSchedule) -> dict[int, str]:
    """Step after each phase of a fork of whole OLI cycles, and which phase ended there."""
    phases = [schedule.kind.phase(n) for n in range(schedule.stop - schedule.start)]
    pairs = zip(phases, [*phases[1:], None], strict=True)
    steps = enumerate(pairs, start=schedule.start + 1)
    return {step: phase for step, (phase, after) in steps if phase != after}


def trace_phases(
    load: Callable[[], nn.Module], tokens: np.ndarray, spec: AffineQuantizer, settings: Mapping
) -> pd.DataFrame:
    """Every OLI schedule and, over the same phases, the baseline; a row per phase and seed.

    ``load`` gives the model of the fork point; ``settings`` has schedules
    (definitions of kind oli by name), start, batch_size, training, total_steps, cycles and seeds.
    """
    start, training, rows = settings["start"], settings["training"], []
    baseline = read_schedule(training, settings["total_steps"])

    def weights(model: nn.Module) -> dict:
        return {n: w.detach().clone() for n, w in linear_weights(model, spec.layers).items()}

    def follow(schedule: Schedule, ends: Mapping[int, str], seed: int) -> Iterator[dict]:
        """Train through ``ends`` and compare the codes at each with those at the one before."""
        model, recipe = load(), read_recipe(training, batch_size=settings["batch_size"], seed=seed)
        optimizer, at, before = build_optimizer(model, recipe), start, weights(model)
        updates = train(model, optimizer, tokens, schedule, recipe, start=start, stop=max(ends))
        for step, *_ in updates:
            if step in ends:
                after = weights(model)
                yield {"phase": ends[step], "first_step": at, "step": step, "updates": step - at,
                       **code_flips(before, after, spec)}  # fmt: skip
                before, at = after, step

    for name, definition in settings["schedules"].items():
        span = definition["bump_steps"] + definition["cool_steps"]
        stop = start + settings["cycles"] * span
        oli = fork_schedule(definition, baseline=baseline, start=start, stop=stop)
        ends = phase_ends(oli)
        rows += [
            {"phases_of": name, "schedule": arm, "seed": seed, **row}
            for arm, schedule in ((name, oli), ("baseline", baseline))
            for seed in settings["seeds"]
            for row in follow(schedule, ends, seed)
        ]
    return pd.DataFrame(rows)
