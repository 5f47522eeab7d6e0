"""The phases of a training run, by a rule that runs unchanged on any suite.

``RULE`` states the rule.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from flatminima.roles import FP32
from flatminima.statistics.broken_lines import fit_broken_line
from flatminima.statistics.changepoint_check import library_check
from flatminima.statistics.intervals import CONFIDENCE, resampled_curves
from flatminima.statistics.onset import SPARE, Onset, find_onset, growth, shortest_piece

RULE = (
    "Only the evenly spaced checkpoints are used, so that every stretch of training weighs "
    "alike. FP32 convergence is the step with the lowest FP32 validation NLL. Rapid learning "
    "ends at the break of the continuous two-piece straight line that fits FP32 NLL against "
    "step (not its logarithm: the phases divide training time) best in least squares, from the "
    "first evenly spaced step to convergence, among breaks at which the descent flattens; "
    "without such a break it ends at convergence. The break of a curved descent summarises it "
    "and is no evidence of two regimes. Onset is sought in ln(delta NLL) of the low-bit "
    "quantizer against step, from the end of rapid learning to the last step; the logarithm, "
    "because growth by a constant factor is then a straight line and needs no onset. Steps "
    "with a delta of zero or less are left out and counted. A straight line and continuous "
    "lines with one and two breaks (the second for growth that later slows) are compared by "
    "BIC, each break costing two parameters, its place and its change of slope; every piece "
    "spans at least a twentieth of the checkpoints. Neighbouring checkpoints are not "
    "independent, so BIC counts n (1 - r) / (1 + r) of them, with r the lag-1 autocorrelation "
    "of the residuals of the fit with most breaks (not below zero). Where breaks lower BIC by "
    "more than 6 (strong evidence in Kass and Raftery's scale) and the slope after one of them "
    "is positive and steeper than before, that one is the onset (of two the one with the larger "
    "increase); otherwise there is none and two segments remain. An onset says that "
    "relative growth sped up, not that it did so abruptly. Intervals (95 %, percentile) repeat "
    "the whole rule on resampled validation sequences: they hold the uncertainty of the "
    "validation text, not of another training run. Segments share their boundary steps. The "
    "package ruptures, asked for as many straight lines that need not meet, is the check beside "
    "it (library_check); the continuous fit decides, because the course sought has a kink and no "
    "jump, and lines that must meet place a kink with about half the error."
)
_EVEN, _REST = RULE.split(". ", 1)
RULE_OF_ALL = (
    "All checkpoints after step 0 are used in order, whatever lies between them, since the "
    f"suite has no even grid. {_REST}"
)
PHASE_NAMES = ("rapid learning", "plateau", "divergence")
# Without an onset nothing says that the gap stands still after rapid learning.
NAMES_WITHOUT_ONSET = ("rapid learning", "after rapid learning")


def rapid_learning_end(steps: np.ndarray, nll: np.ndarray, convergence: int) -> int:
    """Step at which FP32 NLL stops falling fast; ``convergence`` where no break exists."""
    until = steps <= convergence
    if until.sum() < 4 + SPARE:
        return convergence
    fit = fit_broken_line(steps[until].astype(float), nll[until], 1, rising=True)
    return convergence if fit is None else int(steps[fit.breaks[0]])


@dataclass(frozen=True)
class Phases:
    """The three boundaries of one run, in steps."""

    convergence: int
    rapid_learning_end: int
    onset: Onset


def find_phases(steps: np.ndarray, nll: np.ndarray, delta: np.ndarray) -> Phases:
    """Apply ``RULE`` to FP32 NLL and low-bit delta NLL at evenly spaced ``steps``."""
    convergence = int(steps[np.argmin(nll)])
    learned = rapid_learning_end(steps, nll, convergence)
    return Phases(convergence, learned, find_onset(steps, delta, learned))


def _interval(values: Sequence[int]) -> tuple[int | None, int | None]:
    """95 % percentile interval of steps that stays on the grid (widened to members)."""
    if not len(values):
        return None, None
    tail = (1.0 - CONFIDENCE) / 2.0
    low = np.quantile(values, tail, method="lower")
    return int(low), int(np.quantile(values, 1.0 - tail, method="higher"))


def _curve(audit: pd.DataFrame, role: str, steps: np.ndarray) -> pd.DataFrame:
    rows = audit[(audit["role"] == role) & audit["step"].isin(steps)].sort_values("step")
    names = sorted(audit.loc[audit["role"] == role, "quantizer"].unique())
    if len(names) != 1:
        raise ValueError(f"role {role}: {', '.join(names) or 'no quantizer'}; exactly one is valid")
    if list(rows["step"]) != list(steps):
        raise ValueError(f"role {role}: the audit needs one row at each evenly spaced step")
    return rows


def _segments(phases: Phases, steps: np.ndarray, ppl: np.ndarray, gap: np.ndarray) -> list[dict]:
    bounds = [steps[0], phases.rapid_learning_end, phases.onset.step, steps[-1]]
    bounds = [int(bound) for bound in bounds if bound is not None]
    names = NAMES_WITHOUT_ONSET if phases.onset.step is None else PHASE_NAMES
    segments = []
    for number, (first, last) in enumerate(pairwise(bounds), start=1):
        inside = (steps >= first) & (steps <= last)
        g, p = gap[inside].astype(float), ppl[inside].astype(float)
        segments.append({
            "phase": number, "name": names[number - 1],
            "first_step": first, "last_step": last,
            "gap_first_pct": g[0], "gap_last_pct": g[-1],
            "gap_min_pct": g.min(), "gap_max_pct": g.max(),
            "ppl_first": p[0], "ppl_last": p[-1], "n": int(inside.sum()),
        })  # fmt: skip
    return segments


def _check(phases: Phases, steps: np.ndarray, nll: np.ndarray, delta: np.ndarray) -> dict:
    until = steps <= phases.convergence
    x, y, _ = growth(steps, delta, phases.rapid_learning_end)
    return library_check(
        (steps[until], nll[until]), (x, y),
        breaks=len(phases.onset.breaks), shortest=shortest_piece(len(x)),
    )  # fmt: skip


def describe_phases(
    audit: pd.DataFrame, sequences: pd.DataFrame, *, spacing: int, resamples: int, seed: int,
    missing: Sequence[int] = (),
) -> dict:  # fmt: skip
    """Contents of ``phases.json``: boundaries with their intervals, lag and segments.

    ``audit`` is the tidy audit of one suite, ``sequences`` its per-sequence scores
    (``intervals.paired_scores``), ``spacing`` the distance of the evenly spaced
    steps. Steps whose revision is ``missing`` are passed over and, where there are any,
    listed. All values are plain Python numbers; what does not exist is ``None``.
    Raises ``ValueError`` where a role or a step is missing.
    """
    even = (audit["step"] > 0) & (audit["step"] % spacing == 0)
    steps = np.sort(audit.loc[even, "step"].unique())
    if not len(steps):
        raise ValueError(f"spacing {spacing}: the audit has no step that is a multiple of it")
    fp32, low_bit = _curve(audit, FP32, steps), _curve(audit, "low_bit", steps)
    ppl = fp32["ppl"].to_numpy()
    nll = fp32["nll_nats_per_token"].to_numpy()
    delta = low_bit["delta_nll_nats_per_token"].to_numpy()
    phases = find_phases(steps, nll, delta)
    repeats = [
        find_phases(steps, curve[FP32], curve["low_bit"] - curve[FP32])
        for curve in resampled_curves(sequences, steps, resamples=resamples, seed=seed)
    ]
    onset = asdict(phases.onset)
    with_onset = [r for r in repeats if r.onset.step is not None]
    lag = None if onset["step"] is None else onset["step"] - phases.convergence
    counted = with_onset if lag is not None else []
    convergence = _interval([r.convergence for r in repeats])
    learned = _interval([r.rapid_learning_end for r in repeats])
    onset_range = _interval([r.onset.step for r in counted])
    lag_range = _interval([r.onset.step - r.convergence for r in counted])
    best_ppl = float(ppl[steps == phases.convergence][0])
    return {
        "suite": str(audit["suite"].iloc[0]),
        "rule": RULE if spacing > 1 else RULE_OF_ALL,
        **({"missing": list(missing)} if len(missing) else {}),
        "resamples": resamples,
        "convergence": {
            "step": phases.convergence, "step_low": convergence[0], "step_high": convergence[1],
            "ppl": best_ppl, "final_ppl": float(ppl[-1]),
            "rise_pct": float(100.0 * (ppl[-1] / best_ppl - 1.0)),
            "still_improving": bool(phases.convergence == steps[-1]),
        },
        "rapid_learning_end": {
            "step": phases.rapid_learning_end, "step_low": learned[0], "step_high": learned[1],
        },
        "onset": {
            "step": onset.pop("step"), "step_low": onset_range[0], "step_high": onset_range[1],
            "detected": lag is not None, "detected_share": len(with_onset) / len(repeats), **onset,
        },
        "lag_steps": lag, "lag_low": lag_range[0], "lag_high": lag_range[1],
        "segments": _segments(phases, steps, ppl, low_bit["gap_pct"].to_numpy()),
        "library_check": _check(phases, steps, nll, delta),
    }  # fmt: skip
