"""Where the low-bit loss starts to grow faster: the onset of the divergence, or why there is none.

The rule in words is ``phases.RULE``.
"""

from dataclasses import dataclass, field

import numpy as np

from flatminima.statistics.broken_lines import fit_broken_line

SPARE = 2  # checkpoints beyond the number of parameters that a fit needs
STRONG_EVIDENCE = 6.0  # in BIC; Kass and Raftery (1995), "strong" from 6 on
_MOST_BREAKS = 2


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


def growth(steps: np.ndarray, delta: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Steps and ln(delta) from ``start`` on, and how many deltas were not positive.

    ``steps`` and ``delta`` (nats per token, low-bit minus FP32) are ``[checkpoints]``.
    """
    window = steps >= start
    used = window & (delta > 0.0)
    return steps[used], np.log(delta[used]), int((window & ~used).sum())


def shortest_piece(count: int) -> int:
    """Fewest intervals that a piece of a line through ``count`` checkpoints may span."""
    return max(2, -(-count // 20))


def _effective_count(residuals: np.ndarray, floor: float) -> float:
    """Independent observations that as many AR(1) residuals are worth."""
    power = float(residuals @ residuals)
    lag_one = 0.0 if power <= floor else float(residuals[1:] @ residuals[:-1]) / power
    lag_one = max(lag_one, 0.0)
    return max(len(residuals) * (1.0 - lag_one) / (1.0 + lag_one), 2.0)


def find_onset(steps: np.ndarray, delta: np.ndarray, start: int) -> Onset:
    """Onset of the divergence after step ``start``.

    ``steps`` and ``delta`` (nats per token, low-bit minus FP32) are ``[checkpoints]``.
    """
    x, y, left_out = growth(steps, delta, start)
    x, count = x.astype(float), len(x)
    allowed = [k for k in range(_MOST_BREAKS + 1) if count >= 2 + 2 * k + SPARE]
    if len(allowed) < 2:
        reason = f"{count} checkpoints with a positive delta NLL after rapid learning are too few"
        return Onset(None, reason, left_out)
    fits = [fit_broken_line(x, y, k, shortest=shortest_piece(count)) for k in allowed]
    fits = [fit for fit in fits if fit is not None]
    # Below this a residual is rounding, and its logarithm would compare noise with noise.
    floor = count * (1e-12 * max(1.0, float(np.abs(y).max()))) ** 2
    effective = _effective_count(fits[-1].residuals, floor)
    bic = [
        effective * np.log(max(float(fit.residuals @ fit.residuals), floor))
        + (2 + 2 * len(fit.breaks)) * np.log(effective)
        for fit in fits
    ]
    best = fits[1 + int(np.argmin(bic[1:]))]
    delta_bic = float(bic[0] - min(bic[1:]))
    increase = np.diff(best.slopes)
    growing = np.nonzero((increase > 0.0) & (best.slopes[1:] > 0.0))[0]
    breaks = [int(x[at]) for at in best.breaks]
    if delta_bic <= STRONG_EVIDENCE:
        reason = (
            "a break of ln(delta NLL) lowers BIC against one straight line by "
            f"{delta_bic:.1f}, not by more than {STRONG_EVIDENCE:g}"
        )
    elif not len(growing):
        reason = "no break of ln(delta NLL) has a steeper and positive slope after it"
    else:
        at = growing[np.argmax(increase[growing])]
        before, after = 1000.0 * best.slopes[at], 1000.0 * best.slopes[at + 1]
        return Onset(
            breaks[at], "", left_out, delta_bic, effective, float(before), float(after), breaks
        )
    return Onset(None, reason, left_out, delta_bic, effective, breaks=breaks)
