"""The phases of a training run, by a rule that runs unchanged on any suite.

``RULE`` states the rule. Breaks of continuous straight lines are searched over all
points, so each fit is exact; tests hold it against scipy's splines and the package ruptures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from statsmodels.nonparametric.smoothers_lowess import lowess

from flatminima.absent_steps import DIVERGED, MISSING, even_steps
from flatminima.errors import UserError
from flatminima.intervals import CONFIDENCE, percentile_interval, resampled_curves
from flatminima.quantizer_specs import FP32

SPARE = 2  # checkpoints beyond the number of parameters that a fit needs
STRONG_EVIDENCE = 6.0  # in BIC; Kass and Raftery (1995), "strong" from 6 on
RULE = (
    "Only the evenly spaced checkpoints are used, so that every stretch of training weighs "
    "alike. FP32 convergence is the step with the lowest FP32 validation NLL once the curve is "
    "smoothed over a tenth of the checkpoints (local straight lines, at least 7; fewer than 14 "
    "checkpoints are taken as they are): a single lowest checkpoint would be the luckiest. The "
    "rise since then is read off the same smooth curve. Rapid learning "
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
    "the whole rule on the validation text, resampled in stretches of neighbouring sequences; "
    "for convergence and the rise they also put the wobble of the checkpoints around the smooth "
    "curve together anew in blocks as long as the smoothing. They hold the uncertainty of the "
    "validation text and the wobble of this run, not another training run. Segments share their "
    "boundary steps."
)
_EVEN, _REST = RULE.split(". ", 1)
RULE_OF_ALL = (
    "All checkpoints after step 0 are used in order, whatever lies between them, since the "
    f"suite has no even grid. {_REST}"
)
PHASE_NAMES = ("rapid learning", "plateau", "divergence")
# Without an onset nothing says that the gap stands still after rapid learning.
NAMES_WITHOUT_ONSET = ("rapid learning", "after rapid learning")
FEWEST_SMOOTHED = 14  # below, the smoothing would take half the run
# How often the rule finds an onset where there is none, in percent of 1,000 simulated runs of
# 143 checkpoints; a test measures it.
FALSE_ALARMS_PCT = {
    "steady growth, wobble with autocorrelation 0 to 0.5": 1.0,
    "steady growth, wobble with autocorrelation 0.8": 5.0,
    "steady growth, wobble with autocorrelation 0.9": 17.0,
    "linear growth, additive wobble": 9.0,
    "linear growth, additive wobble with autocorrelation 0.8": 23.0,
}


class BrokenLine(NamedTuple):
    """A continuous piecewise straight line."""

    breaks: list[int]  # points where the slope changes
    slopes: np.ndarray  # of each piece
    residuals: np.ndarray  # [points]


def fit_broken_line(
    x: np.ndarray, y: np.ndarray, breaks: int, *, shortest: int = 2, rising: bool = False
) -> BrokenLine | None:
    """Least-squares continuous line with ``breaks`` (0, 1 or 2) breaks at members of ``x``.

    ``x`` and ``y`` are ``[points]``, ``x`` increasing. Every piece spans at least
    ``shortest`` intervals between points. ``rising`` admits a single break only
    where the slope increases; ``None`` where it does so nowhere.
    """
    # Scaled to [0, 1]: steps of 1e5 beside a column of ones would be badly conditioned.
    unit = (x - x[0]) / (x[-1] - x[0])
    line = np.column_stack([np.ones_like(unit), unit])
    hinges = np.maximum(unit[:, None] - unit, 0.0)
    found = _best_breaks(line, y, hinges, breaks, shortest, rising) if breaks else []
    if found is None:
        return None
    design = np.hstack([line, hinges[:, found]])
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    slopes = np.cumsum(coefficients[1:]) / (x[-1] - x[0])
    return BrokenLine(found, slopes, y - design @ coefficients)


def _best_breaks(
    line: np.ndarray, y: np.ndarray, hinges: np.ndarray, count: int, shortest: int, rising: bool
) -> list[int] | None:
    """Columns of the one or two ``hinges`` max(0, x - x_break) that explain most beside ``line``.

    Line and intercept are projected out first (Frisch-Waugh-Lovell), which leaves a
    system of one or two unknowns for each candidate.
    """
    columns = np.column_stack([y, hinges[:, shortest:-shortest]])
    columns -= line @ np.linalg.lstsq(line, columns, rcond=None)[0]
    target, hinges = columns[:, 0], columns[:, 1:]
    gram, moment = hinges.T @ hinges, hinges.T @ target
    if count == 1:
        pairs = (np.arange(len(moment)),)
        explained = np.where((moment > 0.0) | (not rising), moment**2 / np.diag(gram), -np.inf)
    else:
        pairs = i, j = np.triu_indices(len(moment), k=shortest)
        cross = 2.0 * gram[i, j] * moment[i] * moment[j]
        squares = gram[j, j] * moment[i] ** 2 - cross + gram[i, i] * moment[j] ** 2
        explained = squares / (gram[i, i] * gram[j, j] - gram[i, j] ** 2)
    best = int(np.argmax(explained))
    return [shortest + int(p[best]) for p in pairs] if np.isfinite(explained[best]) else None


@dataclass(frozen=True)
class Onset:
    """Where the low-bit delta NLL starts to grow faster, or why nowhere.

    Slopes are changes of ln(delta NLL) per 1,000 steps; ``delta_bic`` is BIC of the
    straight line minus that of the best line with breaks, and ``breaks`` are its breaks.
    """

    step: int | None
    reason: str
    left_out: int
    delta_bic: float | None = None
    effective_checkpoints: float | None = None
    slope_before_per_1000_steps: float | None = None
    slope_after_per_1000_steps: float | None = None
    breaks: list[int] = field(default_factory=list)


def find_onset(steps: np.ndarray, delta: np.ndarray, start: int) -> Onset:
    """Onset of the divergence after step ``start``.

    ``steps`` and ``delta`` (nats per token, low-bit minus FP32) are ``[checkpoints]``.
    """
    used = (steps >= start) & (delta > 0.0)
    left_out = int((steps >= start).sum() - used.sum())
    x, y = steps[used].astype(float), np.log(delta[used])
    count, shortest = len(x), max(2, -(-len(x) // 20))
    allowed = [k for k in range(3) if count >= 2 + 2 * k + SPARE]
    if len(allowed) < 2:
        reason = f"{count} checkpoints with a positive delta NLL after rapid learning are too few"
        return Onset(None, reason, left_out)
    fits = [fit_broken_line(x, y, k, shortest=shortest) for k in allowed]
    # Below this a residual is rounding, and its logarithm would compare noise with noise.
    floor = count * (1e-12 * max(1.0, float(np.abs(y).max()))) ** 2
    squares = [float(fit.residuals @ fit.residuals) for fit in fits]
    rest = fits[-1].residuals
    lag_one = max(float(rest[1:] @ rest[:-1]) / squares[-1], 0.0) if squares[-1] > floor else 0.0
    effective = max(count * (1.0 - lag_one) / (1.0 + lag_one), 2.0)
    bic = effective * np.log(np.maximum(squares, floor))
    bic += (2 + 2 * np.array(allowed)) * np.log(effective)
    best, delta_bic = fits[1 + int(np.argmin(bic[1:]))], float(bic[0] - min(bic[1:]))
    increase = np.diff(best.slopes)
    growing = np.flatnonzero((increase > 0.0) & (best.slopes[1:] > 0.0))
    step, slopes, reason, breaks = None, (None, None), "", [int(x[at]) for at in best.breaks]
    if delta_bic <= STRONG_EVIDENCE:
        lowered = "a break of ln(delta NLL) lowers BIC against one straight line by"
        reason = f"{lowered} {delta_bic:.1f}, not by more than {STRONG_EVIDENCE:g}"
    elif not len(growing):
        reason = "no break of ln(delta NLL) has a steeper and positive slope after it"
    else:
        at = growing[np.argmax(increase[growing])]
        step, slopes = breaks[at], (1000.0 * best.slopes[at : at + 2]).tolist()
    return Onset(step, reason, left_out, delta_bic, effective, *slopes, breaks)


def window_of(count: int) -> int:
    """Checkpoints that one point of the smooth curve looks at."""
    return max(7, count // 10 + 1)


def smoothed(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Local straight lines through ``values`` ``[checkpoints]``; few are returned as they are."""
    if len(steps) < FEWEST_SMOOTHED:
        return np.asarray(values, float)
    share = window_of(len(steps)) / len(steps)
    return lowess(values, steps.astype(float), frac=share, it=0, return_sorted=False)


class Phases(NamedTuple):
    """The three boundaries of one run, in steps."""

    convergence: int
    rapid_learning_end: int
    onset: Onset


def find_phases(steps: np.ndarray, nll: np.ndarray, delta: np.ndarray) -> Phases:
    """Apply ``RULE`` to FP32 NLL and low-bit delta NLL at evenly spaced ``steps``."""
    convergence = learned = int(steps[np.argmin(smoothed(steps, nll))])
    until = steps <= convergence
    if until.sum() >= 4 + SPARE:
        fit = fit_broken_line(steps[until].astype(float), nll[until], 1, rising=True)
        learned = convergence if fit is None else int(steps[fit.breaks[0]])
    return Phases(convergence, learned, find_onset(steps, delta, learned))


def _with_new_wobble(
    steps: np.ndarray, nll: np.ndarray, wobble: np.ndarray, learned: int, rng: np.random.Generator
) -> np.ndarray:
    """``nll`` with its ``wobble`` after rapid learning put together anew from blocks of itself."""
    late, block = np.flatnonzero(steps >= learned), window_of(len(steps))
    if len(late) < 2 * block or len(steps) < FEWEST_SMOOTHED:
        return nll
    starts = late[0] + rng.integers(0, len(late) - block + 1, -(-len(late) // block))
    drawn = np.concatenate([wobble[at : at + block] for at in starts])
    renewed = np.array(nll, float)
    renewed[late] += drawn[: len(late)] - wobble[late]
    return renewed


def _rise_pct(curve: np.ndarray) -> float:
    """How far perplexity ends above its best, in percent, on a smooth NLL curve."""
    return float(100.0 * np.expm1(curve[-1] - curve.min()))


def _interval(name: str, values: pd.Series) -> dict[str, int | None]:
    """95 % percentile interval of steps that stays on the grid (widened to members)."""
    tail, steps = (1.0 - CONFIDENCE) / 2.0, values.dropna()
    if steps.empty:
        return {f"{name}_low": None, f"{name}_high": None}
    low, high = steps.quantile(tail, "lower"), steps.quantile(1.0 - tail, "higher")
    return {f"{name}_low": int(low), f"{name}_high": int(high)}


def _segments(phases: Phases, steps: np.ndarray, ppl: np.ndarray, gap: np.ndarray) -> list[dict]:
    onset = [] if phases.onset.step is None else [phases.onset.step]
    bounds = [int(steps[0]), phases.rapid_learning_end, *onset, int(steps[-1])]
    names, segments = PHASE_NAMES if onset else NAMES_WITHOUT_ONSET, []
    for number, (name, (first, last)) in enumerate(zip(names, pairwise(bounds), strict=True), 1):
        inside = (steps >= first) & (steps <= last)
        g, p = gap[inside].tolist(), ppl[inside].tolist()
        segments.append({
            "phase": number, "name": name, "first_step": first, "last_step": last,
            "gap_first_pct": g[0], "gap_last_pct": g[-1], "gap_min_pct": min(g),
            "gap_max_pct": max(g), "ppl_first": p[0], "ppl_last": p[-1], "n": len(g),
        })  # fmt: skip
    return segments


def describe_phases(
    audit: pd.DataFrame, sequences: pd.DataFrame, *, spacing: int, resamples: int, seed: int,
    missing: Sequence[int] = (), diverged: Sequence[int] = (),
) -> dict:  # fmt: skip
    """Contents of ``phases.json``: boundaries with their intervals, lag and segments.

    ``audit`` is the audit of one suite, ``sequences`` its scores (``intervals.paired_scores``),
    ``spacing`` the distance of the evenly spaced steps. Steps whose revision is ``missing``
    and those that ``diverged`` are passed over and, where there are any, listed. All values are
    plain Python numbers; what does not exist is ``None``. Raises ``ValueError`` where a role or a
    step is missing.
    """
    steps = even_steps(audit["step"], spacing)
    if not len(steps):
        raise UserError(f"spacing {spacing}: the audit has no step that is a multiple of it")
    curves = resampled_curves(sequences, steps, resamples=resamples, seed=seed)
    fp32, low_bit = (
        audit[(audit["role"] == role) & audit["step"].isin(steps)].sort_values("step")
        for role in (FP32, "low_bit")
    )
    if not list(steps) == list(fp32["step"]) == list(low_bit["step"]):
        raise ValueError("the audit needs one row of fp32 and of low_bit at each even step")
    nll = fp32["nll_nats_per_token"].to_numpy()
    phases = find_phases(steps, nll, low_bit["delta_nll_nats_per_token"].to_numpy())
    best, learned, onset = phases.convergence, phases.rapid_learning_end, asdict(phases.onset)
    curve, rng, drawn = smoothed(steps, nll), np.random.default_rng(seed), []
    for full, low in zip(curves[FP32], curves["low_bit"], strict=True):
        again = find_phases(steps, full, low - full)
        renewed = smoothed(steps, _with_new_wobble(steps, full, nll - curve, learned, rng))
        lowest = steps[np.argmin(renewed)]
        drawn.append((lowest, again.rapid_learning_end, again.onset.step, _rise_pct(renewed)))
    draws = pd.DataFrame(drawn, columns=["best", "learned", "onset", "rise"])
    found_share, step = float(draws["onset"].notna().mean()), onset.pop("step")
    if step is None:
        draws["onset"] = np.nan
    left_out = {MISSING: missing, DIVERGED: diverged}
    rise_low, rise_high = percentile_interval(draws["rise"].to_numpy())
    return {
        "suite": str(audit["suite"].iloc[0]),
        "rule": RULE if spacing > 1 else RULE_OF_ALL,
        **{kind: list(steps) for kind, steps in left_out.items() if len(steps)},
        "resamples": resamples,
        "convergence": {
            "step": best, **_interval("step", draws["best"]),
            "ppl": float(np.exp(curve.min())), "final_ppl": float(np.exp(curve[-1])),
            "rise_pct": _rise_pct(curve), "rise_low_pct": rise_low, "rise_high_pct": rise_high,
            "lowest_single_step": int(steps[np.argmin(nll)]),
            "still_improving": bool(best == steps[-1]),
        },
        "rapid_learning_end": {"step": learned, **_interval("step", draws["learned"])},
        "onset": {
            "step": step, **_interval("step", draws["onset"]), "detected": step is not None,
            "detected_share": found_share, **onset, "false_alarms_pct": FALSE_ALARMS_PCT,
        },
        "lag_steps": None if step is None else step - best,
        **_interval("lag", draws["onset"] - draws["best"]),
        "segments": _segments(
            phases, steps, fp32["ppl"].to_numpy(), low_bit["gap_pct"].to_numpy()
        ),
    }  # fmt: skip


def onset_words(onset: Mapping) -> str:
    """The onset of phases.json in words: its step, or why there is none."""
    if onset["step"] is None:
        return f"no onset: {onset['reason']}"
    return f"onset at step {onset['step']:,}"
