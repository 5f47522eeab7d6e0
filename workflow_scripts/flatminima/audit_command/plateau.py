"""Has the INT4 gap of the last checkpoint left its plateau?

The rule. The checkpoints after step 0 that lie evenly (all of them where none do) go
through the phases of ``phases.RULE``. If that finds an onset, the plateau is what lies
between the end of rapid learning and the onset, and the last checkpoint has left it if the
lower end of its gap's 95 % interval is above the highest gap there. Growth that never sped
up has no onset, however far it went: that is not a plateau left. With too few checkpoints
the rule cannot tell, and says so.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from flatminima.phases import SPARE, describe_phases
from flatminima.roles import FP32, LOW_BIT

FEWEST = 4 + SPARE  # checkpoints that a line with a break takes


@dataclass(frozen=True)
class Verdict:
    """Whether the plateau is ``left`` (``None``: cannot be told), in words, and the phases."""

    left: bool | None
    words: str
    phases: dict


def even_spacing(steps: np.ndarray) -> int:
    """The commonest distance of steps after 0 if most of them are multiples of it, else 1."""
    steps = np.sort(steps[steps > 0])
    if len(steps) < 2:
        return 1
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    spacing = int(distances[np.argmax(counts)])
    return spacing if 2 * np.sum(steps % spacing == 0) > len(steps) else 1


def judge(audit: pd.DataFrame, sequences: pd.DataFrame, *, resamples: int) -> Verdict:
    """Apply the rule to an audit and its per-sequence scores (``phases.describe_phases``)."""
    steps = audit["step"].unique()
    spacing = even_spacing(steps)
    even = steps[(steps > 0) & (steps % spacing == 0)]
    if len(even) < FEWEST:
        words = f"undecided: {len(even)} checkpoints after step 0 are too few, {FEWEST} are needed"
        return Verdict(None, words, _without_phases(audit))
    phases = describe_phases(audit, sequences, spacing=spacing, resamples=resamples, seed=0)
    onset = phases["onset"]
    if onset["step"] is None:
        too_few = onset["delta_bic"] is None
        words = f"{'undecided' if too_few else 'no onset, so no plateau left'}: {onset['reason']}"
        return Verdict(None if too_few else False, words, phases)
    gaps = audit[audit["role"] == LOW_BIT].set_index("step").sort_index()
    plateau = gaps.loc[phases["rapid_learning_end"]["step"] : onset["step"], "gap_pct"]
    last, highest = gaps.iloc[-1], plateau.max()
    left = bool(last["gap_low_pct"] > highest)
    words = (
        f"{'has left its plateau' if left else 'on its plateau'}: onset at step "
        f"{onset['step']:,}; gap of step {gaps.index[-1]:,} {last['gap_pct']:.2f} % "
        f"[{last['gap_low_pct']:.2f}, {last['gap_high_pct']:.2f}], highest before {highest:.2f} %"
    )
    return Verdict(left, words, phases)


def _without_phases(audit: pd.DataFrame) -> dict:
    """As much of phases.json as a figure needs, for an audit that is too short for phases."""
    fp32 = audit[audit["role"] == FP32].sort_values("step")
    best, none = fp32.loc[fp32["ppl"].idxmin()], {"step_low": None, "step_high": None}
    first, last = int(fp32["step"].iloc[0]), int(fp32["step"].iloc[-1])
    return {
        "convergence": {"step": int(best["step"]), "ppl": float(best["ppl"]), **none},
        "onset": {"step": None, **none},
        "segments": [
            {"phase": 1, "name": "all checkpoints", "first_step": first, "last_step": last}
        ],
    }
