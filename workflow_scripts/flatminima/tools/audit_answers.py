"""What an audit concludes from its numbers: the verdict on the plateau, and four short answers.

The verdict says whether the INT4 gap of the last checkpoint has left its plateau. It uses the
evenly spaced checkpoints after step 0, or all of them if none are evenly spaced. These go through
the phases of ``phases.RULE``. If an onset is found, the plateau is the part between the end of
rapid learning and the onset. The last checkpoint has left the plateau if the lower end of its
gap's 95 % interval is above the highest gap there. A gap that grows at the same pace throughout
has no onset, however large it becomes. With too few checkpoints the verdict is ``UNDECIDED``.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from flatminima.absent_steps import even_steps
from flatminima.errors import UserError
from flatminima.phases import SPARE, describe_phases
from flatminima.quantizer_specs import FP32, HIGH_BIT, LOW_BIT
from flatminima.scaling_law import Answer, excess_answer, suite_excess

FEWEST_CHECKPOINTS = 4 + SPARE  # a line with one break has 4 parameters


class Verdict(StrEnum):
    """Whether the last INT4 gap is above its plateau."""

    LEFT_PLATEAU = "has left its plateau"
    ON_PLATEAU = "on its plateau"
    NO_ONSET = "no onset"
    UNDECIDED = "undecided"


class Judgement(NamedTuple):
    """A verdict, its explanation in print, and the phases that it is based on."""

    verdict: Verdict
    explanation: str
    phases: dict

    @property
    def sentence(self) -> str:
        """Verdict and explanation in one line."""
        return f"{self.verdict}: {self.explanation}"

    @property
    def left_plateau(self) -> bool | None:
        """``None`` if there are too few checkpoints to tell."""
        if self.verdict is Verdict.UNDECIDED:
            return None
        return self.verdict is Verdict.LEFT_PLATEAU


def even_spacing(steps: np.ndarray) -> int:
    """The commonest distance between steps after 0, if most of them are multiples of it, else 1."""
    steps = even_steps(steps, 1)
    spacing = int(pd.Series(np.diff(steps)).mode().get(0, 1))
    most_are_multiples = 2 * len(even_steps(steps, spacing)) > len(steps)
    return spacing if most_are_multiples else 1


def judge(audited: pd.DataFrame, sequences: pd.DataFrame, resamples: int) -> Judgement:
    """Apply the rule above to an audit.

    ``audited`` has one row per step and quantizer, ``sequences`` the scores of each sequence.
    ``resamples`` are the bootstrap resamples behind the intervals of the phases.
    """
    steps = even_steps(audited["step"], 1)  # all after step 0
    spacing = even_spacing(steps)
    even_count = len(even_steps(steps, spacing))
    if even_count < FEWEST_CHECKPOINTS:
        explanation = (
            f"the rule needs {FEWEST_CHECKPOINTS} evenly spaced checkpoints after step 0; "
            f"this run has {even_count} of {len(steps)}"
        )
        return Judgement(Verdict.UNDECIDED, explanation, _without_phases(audited))

    phases = describe_phases(audited, sequences, spacing=spacing, resamples=resamples, seed=0)
    onset = phases["onset"]
    if onset["step"] is None:
        could_not_fit = onset["delta_bic"] is None
        if could_not_fit:
            return Judgement(Verdict.UNDECIDED, onset["reason"], phases)
        explanation = "the cost of INT4 never starts to grow faster (exit code 0)"
        return Judgement(Verdict.NO_ONSET, explanation, phases)

    gaps = audited[audited["role"] == LOW_BIT].set_index("step")
    plateau = gaps.loc[phases["rapid_learning_end"]["step"] : onset["step"], "gap_pct"]
    highest = plateau.max()
    last_gap = gaps.iloc[-1]
    is_above = last_gap["gap_low_pct"] > highest
    explanation = (
        f"onset at step {onset['step']:,}; "
        f"gap of step {gaps.index[-1]:,} {last_gap['gap_pct']:.2f} % "
        f"[{last_gap['gap_low_pct']:.2f}, {last_gap['gap_high_pct']:.2f}], "
        f"highest before {highest:.2f} %"
    )
    verdict = Verdict.LEFT_PLATEAU if is_above else Verdict.ON_PLATEAU
    return Judgement(verdict, explanation, phases)


def _without_phases(audited: pd.DataFrame) -> dict:
    """The part of phases.json that a figure needs, for an audit too short to have phases."""
    fp32 = audited[audited["role"] == FP32].set_index("step")
    no_interval = {"step_low": None, "step_high": None}
    best_step = int(fp32["ppl"].idxmin())
    first_step = int(fp32.index[0])
    last_step = int(fp32.index[-1])
    all_checkpoints = {
        "phase": 1,
        "name": "all checkpoints",
        "first_step": first_step,
        "last_step": last_step,
    }
    return {
        "convergence": {"step": best_step, "ppl": float(fp32["ppl"].min()), **no_interval},
        "onset": {"step": None, **no_interval},
        "segments": [all_checkpoints],
    }


def answers(audited: pd.DataFrame, phases: Mapping) -> list[str]:
    """One line each: the cost at the end, FP32 convergence, the trend, the best checkpoints."""
    rows_by_role = {role: rows.set_index("step") for role, rows in audited.groupby("role")}
    return [
        _cost_line(rows_by_role[LOW_BIT]),
        _convergence_line(rows_by_role[LOW_BIT].index, phases["convergence"]),
        trend_line(audited, phases),
        _best_line(rows_by_role),
    ]


def _cost_line(low_bit: pd.DataFrame) -> str:
    """What the last checkpoint loses by INT4."""
    last = low_bit.iloc[-1]
    verb = "raises" if last["gap_pct"] > 0.0 else "changes"
    line = (
        f"Cost: INT4 at step {low_bit.index[-1]:,} {verb} perplexity by {last['gap_pct']:.2f} % "
        f"(95 %: {last['gap_low_pct']:.2f} to {last['gap_high_pct']:.2f}), "
        f"{last['delta_nll_nats_per_token']:.4f} nats per token"
    )
    if last["gap_low_pct"] <= 0.0:
        line += "; on this text the cost may be zero"
    return line


def _convergence_line(steps: pd.Index, convergence: Mapping) -> str:
    """At which step FP32 perplexity was lowest, and how far it has risen since."""
    if len(steps) == 1:
        return "FP32 convergence: cannot be judged from one checkpoint"
    if convergence["step"] == steps[-1]:
        return "FP32 convergence: not yet; perplexity is lowest at the last checkpoint"
    line = f"FP32 convergence: step {convergence['step']:,}"
    rise_pct = convergence.get("rise_pct")
    if rise_pct is not None:
        line += f"; FP32 perplexity has risen {rise_pct:.1f} % since"
    return line


def trend_line(audited: pd.DataFrame, phases: Mapping) -> str:
    """Whether the low-bit loss left its own power law upwards."""
    if "rapid_learning_end" not in phases:  # those of ``_without_phases``
        return "Trend: cannot be judged; there are too few checkpoints"
    try:
        excess = suite_excess(audited, phases, spacing=even_spacing(audited["step"].unique()))
    except UserError as error:
        return f"Trend: cannot be judged; {error}"

    ratios = [_short(excess[name]) for name in ("excess", "excess_low", "excess_high")]
    times_predicted = "{} times the predicted loss (95 %: {} to {})".format(*ratios)
    law = f"power law of the {excess['unit']} seen"
    answer = excess_answer(excess)
    if answer is Answer.LEFT:
        return f"Trend: left; by its {law}, the INT4 loss is {times_predicted}"
    if answer is Answer.DID_NOT_LEAVE:
        return f"Trend: not left; by its {law}, the INT4 loss is {times_predicted}"
    return (
        f"Trend: cannot be judged; the {law} is fitted to only {excess['n']} checkpoints after "
        f"rapid learning and leaves the INT4 loss between {ratios[1]} and {ratios[2]} times "
        "the predicted loss"
    )


def _short(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def _best_line(rows_by_role: Mapping[str, pd.DataFrame]) -> str:
    """The checkpoint with the lowest perplexity at each width."""
    best_checkpoints = []
    for width, role in (("INT4", LOW_BIT), ("INT8", HIGH_BIT), ("FP32", FP32)):
        perplexities = rows_by_role[role]["ppl"]
        best_step = perplexities.idxmin()
        best_checkpoints.append(
            f"{width} step {best_step:,} (perplexity {perplexities[best_step]:.2f})"
        )
    return f"Best checkpoint: {', '.join(best_checkpoints)}"
