"""The phases of a training run, by a rule that is the same for every suite.

``RULE`` states the rule. Breaks of continuous straight lines are searched over all points, so
each fit is exact. Tests compare the fits with scipy's splines and with the package ruptures.
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
from flatminima.quantizer_specs import FP32, LOW_BIT

SPARE = 2  # checkpoints beyond the number of parameters that a fit needs
STRONG_EVIDENCE = 6.0  # in BIC; Kass and Raftery (1995), "strong" from 6 on
RULE = (
    "Only the evenly spaced checkpoints are used, so that every part of training has the same "
    "weight. FP32 convergence is the step with the lowest smoothed FP32 validation NLL. A single "
    "lowest checkpoint would be the luckiest. The smoothing uses local straight lines over a "
    "tenth of the checkpoints, at least 7. Fewer than 14 checkpoints are not smoothed. The rise "
    "after convergence is read off the same smooth curve. Rapid learning ends at the break of the "
    "continuous two-piece straight line that fits FP32 NLL against step best in least squares, "
    "from the first evenly spaced step to convergence, among breaks at which the descent "
    "flattens. The line is fitted against the step and not its logarithm, because the phases "
    "divide training time. Without such a break rapid learning ends at convergence. The break "
    "summarises a curved descent and is no evidence of two regimes. The onset is searched for in "
    "ln(delta NLL) of the low-bit quantizer against step, from the end of rapid learning to the "
    "last step. The logarithm is used because growth by a constant factor is then a straight line "
    "and needs no onset. Steps with a delta of zero or less are left out and counted. A straight "
    "line and continuous lines with one and two breaks (the second for growth that later slows) "
    "are compared by BIC. Each break costs two parameters, its place and its change of slope. "
    "Every piece spans at least a twentieth of the checkpoints. Neighbouring checkpoints are not "
    "independent, so BIC counts n (1 - r) / (1 + r) checkpoints. Here r is the lag-1 "
    "autocorrelation of the residuals of the fit with most breaks (not below zero). There is an "
    "onset if breaks lower BIC by more than 6 (strong evidence in Kass and Raftery's scale) and "
    "the slope after a break is positive and steeper than before. Of two such breaks the one "
    "with the larger increase is the onset. Otherwise there is no onset and two segments remain. "
    "An onset means that relative growth sped up, not that it did so abruptly. Intervals (95 %, "
    "percentile) repeat the complete rule on the validation text, resampled in stretches of "
    "neighbouring sequences. For convergence and the rise they also resample the scatter of the "
    "checkpoints around the smooth curve, in blocks as long as the smoothing. They include the "
    "uncertainty of the validation text and the scatter of this run, but not another training "
    "run. Segments share their boundary steps."
)
_ABOUT_EVEN_STEPS, _REST_OF_RULE = RULE.split(". ", 1)
RULE_OF_ALL = (
    "All checkpoints after step 0 are used in order, whatever lies between them, since the "
    f"suite has no even grid. {_REST_OF_RULE}"
)
PHASE_NAMES = ("rapid learning", "plateau", "divergence")
# Without an onset nothing shows that the gap stays constant after rapid learning.
NAMES_WITHOUT_ONSET = ("rapid learning", "after rapid learning")
FEWEST_SMOOTHED = 14  # below, the smoothing would use half the run
# How often the rule finds an onset where there is none, in percent of 1,000 simulated runs of
# 143 checkpoints; a test measures it.
FALSE_ALARMS_PCT = {
    "steady growth, wobble with autocorrelation 0 to 0.5": 1.0,
    "steady growth, wobble with autocorrelation 0.8": 5.0,
    "steady growth, wobble with autocorrelation 0.9": 17.0,
    "linear growth, additive wobble": 9.0,
    "linear growth, additive wobble with autocorrelation 0.8": 23.0,
}


# ---- broken lines ----------------------------------------------------------------------------


class BrokenLine(NamedTuple):
    """A continuous piecewise straight line."""

    breaks: list[int]  # points where the slope changes
    slopes: np.ndarray  # of each piece
    residuals: np.ndarray  # [points]


def fit_broken_line(
    x: np.ndarray, y: np.ndarray, breaks: int, *, shortest: int = 2, rising: bool = False
) -> BrokenLine | None:
    """Least-squares continuous line with ``breaks`` (0, 1 or 2) breaks at members of ``x``.

    ``x`` and ``y`` are ``[points]``, ``x`` increasing. Every piece spans at least ``shortest``
    intervals between points. With ``rising`` a single break is only allowed where the slope
    increases; ``None`` if there is no such break.
    """
    # Scaled to [0, 1]: steps of 1e5 beside a column of ones would be badly conditioned.
    unit = (x - x[0]) / (x[-1] - x[0])
    line = np.column_stack([np.ones_like(unit), unit])
    hinges = np.maximum(unit[:, None] - unit, 0.0)
    break_points = []
    if breaks:
        break_points = _best_breaks(line, y, hinges, breaks, shortest, rising)
        if break_points is None:
            return None

    design = np.hstack([line, hinges[:, break_points]])
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    # Each hinge's coefficient is a change of slope.
    slopes = np.cumsum(coefficients[1:]) / (x[-1] - x[0])
    return BrokenLine(break_points, slopes, y - design @ coefficients)


def _best_breaks(
    line: np.ndarray, y: np.ndarray, hinges: np.ndarray, count: int, shortest: int, rising: bool
) -> list[int] | None:
    """Columns of the one or two ``hinges`` max(0, x - x_break) that explain most of ``y``.

    ``line`` ``[points, 2]`` (intercept and slope) is in every fit. ``None`` if no break is
    allowed.
    """
    # A fit of line and hinges explains what a fit of the hinges alone does, once the line has
    # been projected out of y and of all hinges (Frisch-Waugh-Lovell). Each candidate is then a
    # system of one or two unknowns, and its explained sum of squares has a closed form. All
    # candidates are compared at once, without a fit for each.
    columns = np.column_stack([y, hinges[:, shortest:-shortest]])
    columns -= line @ np.linalg.lstsq(line, columns, rcond=None)[0]
    target = columns[:, 0]
    candidates = columns[:, 1:]
    gram = candidates.T @ candidates
    moment = candidates.T @ target

    if count == 1:
        break_indices = (np.arange(len(moment)),)
        allowed = (moment > 0.0) | (not rising)  # a positive moment bends the line upwards
        explained = np.where(allowed, moment**2 / np.diag(gram), -np.inf)
    else:
        # moment' inverse(gram) moment of each pair, by Cramer's rule.
        i, j = np.triu_indices(len(moment), k=shortest)
        break_indices = (i, j)
        cross = 2.0 * gram[i, j] * moment[i] * moment[j]
        squares = gram[j, j] * moment[i] ** 2 - cross + gram[i, i] * moment[j] ** 2
        explained = squares / (gram[i, i] * gram[j, j] - gram[i, j] ** 2)

    best = int(np.argmax(explained))
    if not np.isfinite(explained[best]):
        return None
    return [shortest + int(indices[best]) for indices in break_indices]


# ---- the three boundaries --------------------------------------------------------------------


@dataclass(frozen=True)
class Onset:
    """Where the low-bit delta NLL starts to grow faster, or the reason why it does not.

    Slopes are changes of ln(delta NLL) per 1,000 steps. ``delta_bic`` is BIC of the straight
    line minus BIC of the best line with breaks, and ``breaks`` are the breaks of that line.
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
    is_late = steps >= start
    used = is_late & (delta > 0.0)
    left_out = int(is_late.sum() - used.sum())
    x = steps[used].astype(float)
    y = np.log(delta[used])

    count = len(x)
    # A line has two parameters, and each break adds two.
    break_counts = [breaks for breaks in range(3) if count >= 2 + 2 * breaks + SPARE]
    if len(break_counts) < 2:
        reason = f"{count} checkpoints with a positive delta NLL after rapid learning are too few"
        return Onset(None, reason, left_out)
    shortest = max(2, -(-count // 20))  # a twentieth, rounded up
    fits = [fit_broken_line(x, y, breaks, shortest=shortest) for breaks in break_counts]

    bic, effective = _bic(fits, break_counts, y)
    # The first fit is the straight line, the null hypothesis. Lines with breaks compete among
    # themselves first.
    best = fits[1 + int(np.argmin(bic[1:]))]
    delta_bic = float(bic[0] - min(bic[1:]))
    breaks = [int(x[point]) for point in best.breaks]
    # Entry n is what the slope gains at break n; the slope after it is ``slopes[n + 1]``.
    increase = np.diff(best.slopes)
    steeper_breaks = np.flatnonzero((increase > 0.0) & (best.slopes[1:] > 0.0))

    if delta_bic <= STRONG_EVIDENCE:
        reason = (
            f"a break of ln(delta NLL) lowers BIC against one straight line by {delta_bic:.1f}, "
            f"not by more than {STRONG_EVIDENCE:g}"
        )
        return Onset(None, reason, left_out, delta_bic, effective, breaks=breaks)
    if not len(steeper_breaks):
        reason = "no break of ln(delta NLL) has a steeper and positive slope after it"
        return Onset(None, reason, left_out, delta_bic, effective, breaks=breaks)

    steepest = steeper_breaks[np.argmax(increase[steeper_breaks])]
    # The two slopes on either side of that break.
    before, after = (1000.0 * best.slopes[steepest : steepest + 2]).tolist()
    return Onset(breaks[steepest], "", left_out, delta_bic, effective, before, after, breaks)


def _bic(
    fits: Sequence[BrokenLine], break_counts: Sequence[int], y: np.ndarray
) -> tuple[np.ndarray, float]:
    """BIC of each fit to ``y`` ``[points]``, and the number of independent points it counts."""
    count = len(y)
    # A residual below this is rounding, and its logarithm would compare noise with noise.
    floor = count * (1e-12 * max(1.0, float(np.abs(y).max()))) ** 2
    squares = [float(fit.residuals @ fit.residuals) for fit in fits]

    # The fit with most breaks has the least structure left in its residuals.
    residuals = fits[-1].residuals
    lag_one = 0.0
    if squares[-1] > floor:
        lag_one = max(float(residuals[1:] @ residuals[:-1]) / squares[-1], 0.0)
    effective = max(count * (1.0 - lag_one) / (1.0 + lag_one), 2.0)

    bic = effective * np.log(np.maximum(squares, floor))
    bic += (2 + 2 * np.array(break_counts)) * np.log(effective)
    return bic, effective


def window_of(count: int) -> int:
    """Checkpoints that one point of the smooth curve uses, of ``count`` in all."""
    return max(7, count // 10 + 1)


def smoothed(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Local straight lines through ``values`` ``[checkpoints]``.

    Fewer than ``FEWEST_SMOOTHED`` values are returned unchanged.
    """
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
    """Apply ``RULE`` to FP32 NLL and low-bit delta NLL at evenly spaced ``steps``.

    All three are ``[checkpoints]``; losses are in nats per token.
    """
    convergence = int(steps[np.argmin(smoothed(steps, nll))])
    rapid_learning_end = convergence
    descent = steps <= convergence
    if descent.sum() >= 4 + SPARE:
        # ``rising`` asks for slopes that rise at the break: a descent becomes flatter.
        fit = fit_broken_line(steps[descent].astype(float), nll[descent], 1, rising=True)
        if fit is not None:
            rapid_learning_end = int(steps[fit.breaks[0]])
    return Phases(convergence, rapid_learning_end, find_onset(steps, delta, rapid_learning_end))


# ---- phases.json -----------------------------------------------------------------------------


def _with_resampled_scatter(
    steps: np.ndarray,
    nll: np.ndarray,
    scatter: np.ndarray,
    rapid_learning_end: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """``nll`` with another ``scatter`` around its smooth curve after rapid learning.

    All are ``[checkpoints]``. The other scatter is made of randomly drawn blocks of
    ``scatter``, which keep its autocorrelation.
    """
    late = np.flatnonzero(steps >= rapid_learning_end)
    block = window_of(len(steps))
    if len(late) < 2 * block or len(steps) < FEWEST_SMOOTHED:
        return nll
    block_count = -(-len(late) // block)
    starts = late[0] + rng.integers(0, len(late) - block + 1, block_count)
    other_scatter = np.concatenate([scatter[start : start + block] for start in starts])
    resampled = np.array(nll, float)
    # The last block may reach beyond the end. Its rest is cut off.
    resampled[late] += other_scatter[: len(late)] - scatter[late]
    return resampled


def _resampled_boundaries(
    steps: np.ndarray,
    curves: Mapping[str, np.ndarray],
    scatter: np.ndarray,
    rapid_learning_end: int,
    seed: int,
) -> pd.DataFrame:
    """Boundaries and rise of each resample of the text: best, learned, onset, rise.

    ``curves`` are mean NLLs by role, ``[resamples, steps]``.
    """
    rng = np.random.default_rng(seed)
    draws = []
    for fp32_nll, low_bit_nll in zip(curves[FP32], curves[LOW_BIT], strict=True):
        phases = find_phases(steps, fp32_nll, low_bit_nll - fp32_nll)
        resampled = _with_resampled_scatter(steps, fp32_nll, scatter, rapid_learning_end, rng)
        curve = smoothed(steps, resampled)
        draws.append(
            {
                "best": steps[np.argmin(curve)],
                "learned": phases.rapid_learning_end,
                "onset": phases.onset.step,
                "rise": _rise_pct(curve),
            }
        )
    return pd.DataFrame(draws)


def _rise_pct(curve: np.ndarray) -> float:
    """How far perplexity ends above its best, in percent, on a smooth NLL curve."""
    return float(100.0 * np.expm1(curve[-1] - curve.min()))


def _interval(name: str, draws: pd.Series) -> dict[str, int | None]:
    """95 % percentile interval of resampled steps, under the names ``{name}_low`` and ``_high``.

    Both ends are drawn steps, so that they are on the grid.
    """
    steps = draws.dropna()
    if steps.empty:
        return {f"{name}_low": None, f"{name}_high": None}
    tail = (1.0 - CONFIDENCE) / 2.0
    low = steps.quantile(tail, "lower")
    high = steps.quantile(1.0 - tail, "higher")
    return {f"{name}_low": int(low), f"{name}_high": int(high)}


def _segments(phases: Phases, steps: np.ndarray, ppl: np.ndarray, gap: np.ndarray) -> list[dict]:
    """First, last and extreme values of each phase."""
    bounds = [int(steps[0]), phases.rapid_learning_end, int(steps[-1])]
    names = NAMES_WITHOUT_ONSET
    if phases.onset.step is not None:
        # The onset divides what comes after rapid learning into plateau and divergence.
        bounds.insert(2, phases.onset.step)
        names = PHASE_NAMES

    segments = []
    for number, (name, (first, last)) in enumerate(zip(names, pairwise(bounds), strict=True), 1):
        inside = (steps >= first) & (steps <= last)
        gaps = gap[inside].tolist()
        perplexities = ppl[inside].tolist()
        segments.append(
            {
                "phase": number,
                "name": name,
                "first_step": first,
                "last_step": last,
                "gap_first_pct": gaps[0],
                "gap_last_pct": gaps[-1],
                "gap_min_pct": min(gaps),
                "gap_max_pct": max(gaps),
                "ppl_first": perplexities[0],
                "ppl_last": perplexities[-1],
                "n": len(gaps),
            }
        )
    return segments


def _even_rows(audit: pd.DataFrame, steps: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of full precision and of the low-bit quantizer at each of ``steps``."""
    at_steps = audit[audit["step"].isin(steps)].sort_values("step")
    fp32 = at_steps[at_steps["role"] == FP32]
    low_bit = at_steps[at_steps["role"] == LOW_BIT]
    if not list(steps) == list(fp32["step"]) == list(low_bit["step"]):
        raise ValueError("the audit needs one row of fp32 and of low_bit at each even step")
    return fp32, low_bit


def describe_phases(
    audit: pd.DataFrame,
    sequences: pd.DataFrame,
    *,
    spacing: int,
    resamples: int,
    seed: int,
    missing: Sequence[int] = (),
    diverged: Sequence[int] = (),
) -> dict:
    """Contents of ``phases.json``: boundaries with their intervals, lag and segments.

    ``audit`` is the audit of one suite, ``sequences`` its scores (``intervals.paired_scores``),
    ``spacing`` the distance of the evenly spaced steps. ``missing`` and ``diverged`` steps are
    left out and listed. All values are plain Python numbers, or ``None`` if they do not exist.
    Raises ``UserError`` if the audit has no evenly spaced step, and ``ValueError`` if a role or a
    step is missing.
    """
    steps = even_steps(audit["step"], spacing)
    if not len(steps):
        raise UserError(f"spacing {spacing}: the audit has no step that is a multiple of it")
    curves = resampled_curves(sequences, steps, resamples=resamples, seed=seed)
    fp32, low_bit = _even_rows(audit, steps)
    nll = fp32["nll_nats_per_token"].to_numpy()
    phases = find_phases(steps, nll, low_bit["delta_nll_nats_per_token"].to_numpy())

    curve = smoothed(steps, nll)
    scatter = nll - curve
    draws = _resampled_boundaries(steps, curves, scatter, phases.rapid_learning_end, seed)
    onset_columns = asdict(phases.onset)
    onset_step = onset_columns.pop("step")
    detected_share = float(draws["onset"].notna().mean())
    if onset_step is None:
        draws["onset"] = np.nan  # no interval around an onset that was not found
    rise_low, rise_high = percentile_interval(draws["rise"].to_numpy())

    left_out = {MISSING: missing, DIVERGED: diverged}
    return {
        "suite": str(audit["suite"].iloc[0]),
        "rule": RULE if spacing > 1 else RULE_OF_ALL,
        **{kind: list(kind_steps) for kind, kind_steps in left_out.items() if len(kind_steps)},
        "resamples": resamples,
        "convergence": {
            "step": phases.convergence,
            **_interval("step", draws["best"]),
            "ppl": float(np.exp(curve.min())),
            "final_ppl": float(np.exp(curve[-1])),
            "rise_pct": _rise_pct(curve),
            "rise_low_pct": rise_low,
            "rise_high_pct": rise_high,
            "lowest_single_step": int(steps[np.argmin(nll)]),
            "still_improving": bool(phases.convergence == steps[-1]),
        },
        "rapid_learning_end": {
            "step": phases.rapid_learning_end,
            **_interval("step", draws["learned"]),
        },
        "onset": {
            "step": onset_step,
            **_interval("step", draws["onset"]),
            "detected": onset_step is not None,
            "detected_share": detected_share,
            **onset_columns,
            "false_alarms_pct": FALSE_ALARMS_PCT,
        },
        "lag_steps": None if onset_step is None else onset_step - phases.convergence,
        **_interval("lag", draws["onset"] - draws["best"]),
        "segments": _segments(phases, steps, fp32["ppl"].to_numpy(), low_bit["gap_pct"].to_numpy()),
    }


def onset_words(onset: Mapping) -> str:
    """The onset of phases.json in words: its step, or why there is none."""
    if onset["step"] is None:
        return f"no onset: {onset['reason']}"
    return f"onset at step {onset['step']:,}"
