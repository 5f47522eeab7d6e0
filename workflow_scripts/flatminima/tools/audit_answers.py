"""What an audit concludes from its numbers: the verdict on the plateau, and five short answers.

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

CLEARLY_BELOW = 0.9  # times the predicted loss
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
    from_first_even = steps[steps >= even_steps(steps, spacing)[0]]
    if len(from_first_even) > even_count:
        # Some steps are off the grid, such as the Trainer's last checkpoint. FP32 may be lowest
        # there. So convergence, and only that, is found on all steps.
        rows = audited[audited["step"].isin(from_first_even)]
        of_all_steps = describe_phases(rows, sequences, spacing=1, resamples=resamples, seed=0)
        phases["convergence"] = of_all_steps["convergence"]
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
    lowest = float(fp32["ppl"].min())
    rise_pct = 100.0 * (float(fp32["ppl"].iloc[-1]) / lowest - 1.0)
    first_step = int(fp32.index[0])
    last_step = int(fp32.index[-1])
    all_checkpoints = {
        "phase": 1,
        "name": "all checkpoints",
        "first_step": first_step,
        "last_step": last_step,
    }
    return {
        "convergence": {"step": best_step, "ppl": lowest, "rise_pct": rise_pct, **no_interval},
        "onset": {"step": None, **no_interval},
        "segments": [all_checkpoints],
    }


def answers(audited: pd.DataFrame, judgement: Judgement, harm_pct: float) -> list[str]:
    """One line each, in the order in which people ask.

    What INT4 costs now, and what each further quantizer costs; since when INT4 costs more than
    ``harm_pct`` percent; whether the cost accelerates; whether FP32 has converged; which checkpoint
    is best at which width.
    """
    rows_by_role = {role: rows.set_index("step") for role, rows in audited.groupby("role")}
    low_bit = rows_by_role[LOW_BIT]
    further = [role for role in audited["role"].unique() if role not in (FP32, LOW_BIT, HIGH_BIT)]
    return [
        _cost_line("INT4", low_bit),
        *(_cost_line(name, rows_by_role[name]) for name in further),
        _since_line(low_bit, harm_pct),
        _acceleration_line(audited, judgement),
        _convergence_line(low_bit.index, judgement.phases["convergence"]),
        _best_line(rows_by_role, further),
    ]


def _cost_line(name: str, rows: pd.DataFrame) -> str:
    """What the last checkpoint loses, or gains, by a quantizer."""
    last = rows.iloc[-1]
    gap, low, high = last[["gap_pct", "gap_low_pct", "gap_high_pct"]]
    nats = f"{last['delta_nll_nats_per_token']:.4f} nats per token"
    verb = "changes"
    remark = "; on this text the cost may be zero"
    if low > 0.0:
        verb = "raises"
        remark = ""
    elif high < 0.0:
        # The verb has the sign, so that the numbers after it have none.
        verb = "lowers"
        gap, low, high = -gap, -high, -low
        nats = f"{-last['delta_nll_nats_per_token']:.4f} nats per token less"
        remark = "; on this text it is a gain"
    return (
        f"Cost now: {name} at step {rows.index[-1]:,} {verb} perplexity by {gap:.2f} % "
        f"(95 %: {low:.2f} to {high:.2f}), {nats}{remark}"
    )


def harmful_since(low_bit: pd.DataFrame, harm_pct: float) -> int | None:
    """The first step from which the interval of the gap stays above ``harm_pct`` percent.

    ``low_bit`` has a row per step, in order, with ``gap_low_pct``. ``None`` if the last interval is
    not above ``harm_pct``.
    """
    is_above = low_bit["gap_low_pct"].to_numpy() > harm_pct
    stays_above = np.logical_and.accumulate(is_above[::-1])[::-1]
    return int(low_bit.index[stays_above.argmax()]) if stays_above.any() else None


def _since_line(low_bit: pd.DataFrame, harm_pct: float) -> str:
    """Since when INT4 costs more than ``harm_pct`` percent, and at how many steps before that."""
    since = harmful_since(low_bit, harm_pct)
    if since is None:
        before = low_bit.iloc[:-1]
        line = (
            "Since when: not yet; at the last checkpoint the 95 % interval of the INT4 cost is "
            f"not above {harm_pct:g} % (--harm)"
        )
    else:
        before = low_bit[low_bit.index < since]
        line = f"Since when: step {since:,}"
        if len(low_bit) > 1 and before.empty:
            line += ", the first checkpoint, or before"
        stays = f"the 95 % interval of the INT4 cost stays above {harm_pct:g} %"
        line += f"; from there on {stays} (--harm)"
    above_before = before.index[before["gap_low_pct"] > harm_pct]
    if len(above_before):
        line += (
            f"; it was above at {len(above_before)} of {len(before)} checkpoints before, "
            f"first at step {above_before[0]:,}"
        )
    return line


def _acceleration_line(audited: pd.DataFrame, judgement: Judgement) -> str:
    """Whether the cost of INT4 grows faster than before, by its onset and by its power law."""
    if judgement.verdict is Verdict.UNDECIDED:
        # The explanation has numbers, which would look like an answer.
        return "Accelerating: cannot be told; there are too few checkpoints that the rule can use"
    line = {
        Verdict.LEFT_PLATEAU: f"Accelerating: yes; {judgement.explanation} (exit code 3)",
        Verdict.ON_PLATEAU: (
            "Accelerating: it grew faster for a time, but the last gap is not above the earlier "
            f"ones; {judgement.explanation}"
        ),
        Verdict.NO_ONSET: f"Accelerating: no; {judgement.explanation}",
    }[judgement.verdict]
    try:
        spacing = even_spacing(audited["step"].unique())
        excess = suite_excess(audited, judgement.phases, spacing=spacing)
    except UserError:  # too few checkpoints for a power law
        return line
    answer = excess_answer(excess)
    if answer is Answer.CANNOT_BE_TOLD:
        return line
    ratios = [_short(excess[name]) for name in ("excess", "excess_low", "excess_high")]
    times = "{} times the prediction (95 %: {} to {})".format(*ratios)
    # Such as "the INT4 loss has left its power law of the steps seen: 1.4 times the prediction".
    relation = "has left" if answer is Answer.LEFT else "follows"
    if excess["excess_high"] < 1.0 and excess["excess"] < CLEARLY_BELOW:
        relation = "is below"
    return f"{line}; the INT4 loss {relation} its power law of the {excess['unit']} seen: {times}"


def _convergence_line(steps: pd.Index, convergence: Mapping) -> str:
    """At which step FP32 perplexity was lowest, and how far it has risen since."""
    if len(steps) < FEWEST_CHECKPOINTS:
        count = "one checkpoint" if len(steps) == 1 else f"{len(steps)} checkpoints"
        return f"FP32 converged: cannot be told from {count}"
    if convergence["step"] == steps[-1]:
        return "FP32 converged: not yet; its perplexity is lowest at the last checkpoint"
    return (
        f"FP32 converged: yes, at step {convergence['step']:,}; "
        f"its perplexity has risen {convergence['rise_pct']:.1f} % since"
    )


def _short(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"


def _best_line(rows_by_role: Mapping[str, pd.DataFrame], further: list[str]) -> str:
    """The checkpoint with the lowest perplexity at each width."""
    names = {LOW_BIT: "INT4", **{role: role for role in further}, HIGH_BIT: "INT8", FP32: "FP32"}
    best_checkpoints = []
    for role, name in names.items():
        perplexities = rows_by_role[role]["ppl"]
        best_step = perplexities.idxmin()
        best_checkpoints.append(f"{name} step {best_step:,} (perplexity {perplexities.min():.2f})")
    return f"Best checkpoint: {', '.join(best_checkpoints)}"
