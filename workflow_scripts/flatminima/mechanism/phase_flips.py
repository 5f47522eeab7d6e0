"""Codes that flip in the bumps and cool phases of OLI, and in the control (appendix B).

The forks of section 5 are probed less often than their phases change. Here single phases are
trained again from the fork point with the settings of the forks, and the weights at the ends of
the phases are compared.
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
    next_phases = [*phases[1:], None]
    ends = {}
    for updates, (phase, next_phase) in enumerate(zip(phases, next_phases, strict=True), 1):
        if phase != next_phase:
            ends[schedule.start + updates] = phase
    return ends


def trace_phases(
    load: Callable[[], nn.Module],
    tokens: np.ndarray,
    spec: AffineQuantizer,
    settings: Mapping,
    state: Path | None = None,
) -> pd.DataFrame:
    """Every OLI schedule, and the control over the same phases: a row per phase and seed.

    Both train like the suite's forks. ``load`` returns the model of the fork point. ``state`` is
    the run's training state there, if forks restore Adam's moments. ``settings`` has ``oli``
    (settings of each OLI condition by name), ``control`` (those of the control), cycles and seeds.
    """

    def weights(model: nn.Module) -> dict:
        named_weights = linear_weights(model, spec.layers)
        return {name: weight.detach().clone() for name, weight in named_weights.items()}

    def follow(condition: Condition, ends: Mapping[int, str], seed: int) -> Iterator[dict]:
        """Train to the last of ``ends``, and compare the codes from end to end."""
        model = load()
        recipe = fork_recipe(condition, seed)
        set_attention(model, recipe.compute.attention)
        optimizer = build_optimizer(model, recipe)
        if state is not None:
            load_state(state, model, optimizer)
        first_step = condition.start
        before = weights(model)
        updates = train(
            model,
            optimizer,
            tokens,
            condition.schedule,
            recipe,
            start=condition.start,
            stop=max(ends),
        )
        for step, *_ in updates:
            # A phase ends here. Its codes are compared with those at the end of the phase before.
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
        # The control has no phases. It is compared over the same steps as each OLI schedule.
        ends = phase_ends(oli.schedule, oli.start + settings["cycles"] * oli.definition.period)
        for arm, condition in ((name, oli), ("baseline", control)):
            for seed in settings["seeds"]:
                for row in follow(condition, ends, seed):
                    rows.append({"phases_of": name, "schedule": arm, "seed": seed, **row})
    return pd.DataFrame(rows)
