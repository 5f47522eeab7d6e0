"""Codes that flip in the bumps and in the cool phases of OLI, beside the control (appendix B).

The forks of section 5 are probed at their cadence; here single phases are trained again
from the fork point, with the settings of the forks themselves, and the weights are compared at
their ends.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from flatminima.conditions import Condition
from flatminima.mechanism.drift import code_flips
from flatminima.quantizer_specs import AffineQuantizer
from flatminima.quantizers import linear_weights
from flatminima.schedules import ForkSchedule
from flatminima.training.gradients import set_attention
from flatminima.training.loop import build_optimizer, fork_recipe, train
from flatminima.training.workspace import load_state


def phase_ends(schedule: ForkSchedule, stop: int) -> dict[int, str]:
    """Step after each phase of OLI up to ``stop``, the end of a cycle, and which phase ended."""
    phases = [schedule.kind.phase(updates) for updates in range(stop - schedule.start)]
    pairs = zip(phases, [*phases[1:], None], strict=True)
    steps = enumerate(pairs, start=schedule.start + 1)
    return {step: phase for step, (phase, next_phase) in steps if phase != next_phase}


def trace_phases(
    load: Callable[[], nn.Module],
    tokens: np.ndarray,
    spec: AffineQuantizer,
    settings: Mapping,
    state: Path | None = None,
) -> pd.DataFrame:
    """Every OLI schedule and, over the same phases, the control; a row per phase and seed.

    Both train as the suite's forks do. ``load`` gives the model of the fork point, ``state`` is
    the run's training state there, where forks restore Adam's moments. ``settings`` has ``oli``
    (settings of each OLI condition by name), ``control`` (those of the control), cycles and seeds.
    """

    def weights(model: nn.Module) -> dict:
        return {n: w.detach().clone() for n, w in linear_weights(model, spec.layers).items()}

    def follow(condition: Condition, ends: Mapping[int, str], seed: int) -> Iterator[dict]:
        """Train through ``ends`` and compare the codes at each with those at the one before."""
        model = load()
        recipe = fork_recipe(condition, seed)
        set_attention(model, recipe.compute.attention)
        optimizer = build_optimizer(model, recipe)
        if state is not None:
            load_state(state, model, optimizer)
        first_step = condition.start
        before = weights(model)
        updates = train(
            model, optimizer, tokens, condition.schedule, recipe,
            start=condition.start, stop=max(ends),
        )  # fmt: skip
        for step, *_ in updates:
            if step in ends:
                after = weights(model)
                yield {
                    "phase": ends[step],
                    "first_step": first_step,
                    "step": step,
                    "updates": step - first_step,
                    **code_flips(before, after, spec),
                }
                before = after
                first_step = step

    control = Condition(**settings["control"])
    rows = []
    for name, oli_settings in settings["oli"].items():
        oli = Condition(**oli_settings)
        ends = phase_ends(oli.schedule, oli.start + settings["cycles"] * oli.definition.period)
        rows += [
            {"phases_of": name, "schedule": arm, "seed": seed, **row}
            for arm, condition in ((name, oli), ("baseline", control))
            for seed in settings["seeds"]
            for row in follow(condition, ends, seed)
        ]
    return pd.DataFrame(rows)
