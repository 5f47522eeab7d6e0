"""Excess over the scaling law of quantization: does the low-bit loss leave its own trend?

The loss that post-training quantization adds grows as a power of the tokens seen, for any
model (Kumar et al., arXiv:2411.04330; Ouyang et al., arXiv:2411.17691). Growth alone is
therefore no collapse. A collapse is a departure from that law. The law is fitted to a run's
own checkpoints up to its onset or to FP32 convergence, whichever is first, because checkpoints
after the onset belong to the collapse. It is then extrapolated to the end of the run.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import optimize, stats

from flatminima.absent_steps import even_steps
from flatminima.errors import UserError
from flatminima.intervals import CONFIDENCE
from flatminima.paper import PAPER_RAPID_LEARNING_END, PAPER_TOKENS_PER_STEP, PAPER_WEIGHTS
from flatminima.quantizer_specs import LOW_BIT

FEWEST = 3  # checkpoints that the law is fitted to
FEWEST_CORRELATED = 6  # with fewer checkpoints, residuals count as independent
RHO = np.linspace(-0.9, 0.98, 95)  # autocorrelations over which the fit is averaged
MOST_TOLERATED = 10.0  # a factor; an interval around 1 that is wider either way shows nothing


# ---- a line with autocorrelated residuals ----------------------------------------------------


class _LineFit(NamedTuple):
    """A line by generalised least squares at one autocorrelation of its residuals."""

    slope: float
    slope_error: float
    level: float  # the line at the new observation
    level_error: float  # of a new observation there
    log_weight: float


def fit_line(x: np.ndarray, y: np.ndarray, at: float) -> np.ndarray:
    """Slope of the line of ``y`` on ``x`` ``[n]``, and a new observation at ``at``: ``[2, 3]``.

    Each row is a value with the ends of its 95 % interval. Residuals are AR(1), and the fit is
    averaged over their autocorrelation: Student's t of each value of ``RHO``, weighted by its
    restricted likelihood and the prior (1 - rho^2)^(-1/2). An estimated autocorrelation gives
    intervals that are too narrow (Newey and West's cover 65 to 86 of 100 at 28 points). These
    cover 94 to 99 at 12, 28 and 42 points for autocorrelations up to 0.7; a test measures it.
    """
    count = len(x)
    dof = count - 2
    # Centred and scaled: logarithms of tokens are about 20 and vary by 3.
    centre = float(np.mean(x))
    scale = float(np.ptp(x)) / 2.0
    design = np.column_stack([np.ones(count), (np.asarray(x, float) - centre) / scale])
    target = np.asarray(y, float)
    new_row = np.array([1.0, (at - centre) / scale])

    rhos = RHO if count >= FEWEST_CORRELATED else [0.0]
    fits = [_fit_at_rho(rho, design, target, new_row) for rho in rhos]
    slopes, slope_errors, levels, level_errors, log_weights = map(np.array, zip(*fits, strict=True))
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    slope = _mixture(slopes, slope_errors, weights, dof) / scale
    return np.array([slope, _mixture(levels, level_errors, weights, dof)])


def _fit_at_rho(
    rho: float, design: np.ndarray, target: np.ndarray, new_row: np.ndarray
) -> _LineFit:
    """The line of ``target`` ``[n]`` on ``design`` ``[n, 2]`` with residuals AR(1) of ``rho``."""
    dof = len(target) - 2
    # Differences from rho times the point before are independent; the first point has none.
    first = np.sqrt(1.0 - rho**2)
    rows = np.vstack([first * design[:1], design[1:] - rho * design[:-1]])
    values = np.concatenate([first * target[:1], target[1:] - rho * target[:-1]])

    gram = rows.T @ rows
    line = np.linalg.solve(gram, rows.T @ values)
    residuals = values - rows @ line
    squares = max(float(residuals @ residuals), np.finfo(float).tiny)
    variance = squares / dof
    inverse = np.linalg.inv(gram)
    new_variance = variance * (new_row @ inverse @ new_row + 1.0 / (1.0 - rho**2))

    # The restricted likelihood also has the determinant of the whitening; the prior cancels it.
    log_weight = -0.5 * np.linalg.slogdet(gram)[1] - 0.5 * dof * np.log(squares)
    return _LineFit(
        slope=line[1],
        slope_error=np.sqrt(variance * inverse[1, 1]),
        level=new_row @ line,
        level_error=np.sqrt(new_variance),
        log_weight=log_weight,
    )


def _mixture(centres: np.ndarray, errors: np.ndarray, weights: np.ndarray, dof: int) -> np.ndarray:
    """Mean and 95 % interval of a mixture of Student's t."""

    def excess_probability(x: float, probability: float) -> float:
        return float(weights @ stats.t.cdf((x - centres) / errors, dof)) - probability

    # Far enough outside for brentq to find a change of sign between the two.
    span = 60.0 * errors.max()
    lowest = centres.min() - span
    highest = centres.max() + span
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = (
        optimize.brentq(excess_probability, lowest, highest, args=(probability,))
        for probability in (tail, 1.0 - tail)
    )
    return np.array([weights @ centres, low, high])


# ---- the power law ---------------------------------------------------------------------------


def fit_power_law(tokens: np.ndarray, delta: np.ndarray, start: float, stop: float) -> dict:
    """Fit ln(delta NLL) on ln(tokens) from ``start`` to ``stop``; compare with the last point.

    ``tokens`` and ``delta`` (nats per token, low-bit minus FP32) are ``[checkpoints]`` in
    order. ``exponent`` and ``predicted_nats`` have 95 % intervals, the latter that of a new
    checkpoint. ``excess`` is measured over predicted at the last checkpoint. Deltas that are
    not positive have no logarithm: they are left out and counted. Raises ``UserError`` if
    fewer than ``FEWEST`` are left.
    """
    inside = (tokens >= start) & (tokens <= stop) & (tokens > 0)
    used = inside & (delta > 0.0)
    if used.sum() < FEWEST or tokens[used].max() <= tokens[used].min():
        raise UserError(
            f"a power law takes {FEWEST} checkpoints with a positive loss between the end of "
            f"rapid learning and FP32 convergence or the onset, not {int(used.sum())}"
        )
    end = float(tokens[-1])
    measured = float(delta[-1])
    slope, level = fit_line(np.log(tokens[used]), np.log(delta[used]), np.log(end))
    exponent, exponent_low, exponent_high = slope.tolist()
    predicted, predicted_low, predicted_high = np.exp(level).tolist()
    return {
        "tokens_start": float(tokens[used][0]),
        "tokens_stop": float(tokens[used][-1]),
        "tokens_end": end,
        "n": int(used.sum()),
        "left_out": int((inside & ~used).sum()),
        "exponent": exponent,
        "exponent_low": exponent_low,
        "exponent_high": exponent_high,
        "predicted_nats": predicted,
        "predicted_low_nats": predicted_low,
        "predicted_high_nats": predicted_high,
        "measured_nats": measured,
        "excess": measured / predicted,
        "excess_low": measured / predicted_high,
        "excess_high": measured / predicted_low,
    }


def law_stop(convergence: int, onset: int | None) -> int:
    """Last step that the law is fitted to: the onset or FP32 convergence, whichever is first."""
    return convergence if onset is None else min(convergence, onset)


def suite_excess(audit: pd.DataFrame, phases: Mapping, *, spacing: int) -> dict:
    """``fit_power_law`` of a suite, from the end of rapid learning to ``law_stop``.

    If the tokens of a run are not known, its steps replace them. The exponent and the excess
    are then the same, because tokens are proportional to steps.
    """
    low_bit = audit[audit["role"] == LOW_BIT].set_index("step").sort_index()
    even = low_bit.loc[even_steps(low_bit.index, spacing)]
    if even["tokens_seen"].notna().all():
        unit = "tokens"
        tokens = even["tokens_seen"].to_numpy(float)
    else:
        unit = "steps"
        tokens = even.index.to_series().to_numpy(float)

    per_step = tokens[-1] / even.index[-1]
    start = phases["rapid_learning_end"]["step"]
    stop = law_stop(phases["convergence"]["step"], phases["onset"]["step"])
    delta = even["delta_nll_nats_per_token"].to_numpy(float)
    return {"unit": unit, **fit_power_law(tokens, delta, start * per_step, stop * per_step)}


def printed_losses(table: pd.DataFrame) -> pd.Series:
    """Low-bit losses of the paper's Table 1 by tokens seen per weight of the blocks."""
    losses = np.log1p(table["int4_gap_pct"].to_numpy() / 100)
    return pd.Series(losses, table["step"] * PAPER_TOKENS_PER_STEP / PAPER_WEIGHTS)


def printed_excess(table: pd.DataFrame) -> dict:
    """``fit_power_law`` of the ten rows of the paper's Table 1, up to its best FP32 step.

    From step 30,000 on three rows are left. They give the same excess with a wider interval.
    """
    tokens = table["step"].to_numpy(float) * PAPER_TOKENS_PER_STEP
    delta = np.log1p(table["int4_gap_pct"].to_numpy(float) / 100.0)
    start = PAPER_RAPID_LEARNING_END * PAPER_TOKENS_PER_STEP
    stop = tokens[table["fp32_ppl"].argmin()]
    return {"unit": "tokens", **fit_power_law(tokens, delta, start, stop)}


# ---- the answer ------------------------------------------------------------------------------


class Answer(StrEnum):
    """Whether the low-bit loss left its power law upwards."""

    LEFT = "left"
    DID_NOT_LEAVE = "did not leave"
    CANNOT_BE_TOLD = "cannot be told"


def excess_answer(excess: Mapping) -> Answer:
    """The answer that the 95 % interval of the excess gives.

    The loss left its law if the interval is above 1. It did not leave the law if the interval
    is below 1, or if the interval is around 1 and within a factor of ``MOST_TOLERATED``.
    """
    low = excess["excess_low"]
    high = excess["excess_high"]
    if low > 1.0:
        return Answer.LEFT
    if high < 1.0 or (low > 1.0 / MOST_TOLERATED and high < MOST_TOLERATED):
        return Answer.DID_NOT_LEAVE
    return Answer.CANNOT_BE_TOLD


def excess_sentence(excess: Mapping) -> str:
    """The excess of scaling_law.json in one line."""
    numbers = [excess[name] for name in ("excess", "excess_low", "excess_high")]
    printed = [f"{number:.2g}" if number < 10 else f"{number:,.0f}" for number in numbers]
    ratio = "{} times its prediction ({} to {})".format(*printed)
    law = f"power law of the {excess['unit']} seen"
    answer = excess_answer(excess)
    if answer is Answer.CANNOT_BE_TOLD:
        return f"{answer} from these checkpoints: by its {law} the low-bit loss is {ratio}"
    verb = "fell below" if excess["excess_high"] < 1.0 else answer
    return f"the low-bit loss {verb} its {law}: {ratio}"
