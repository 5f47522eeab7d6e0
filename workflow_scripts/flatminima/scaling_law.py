"""Excess over the scaling law of quantization: does the low-bit loss leave its own trend?

The loss that post-training quantization adds grows as a power of the tokens seen, for any
model (Kumar et al., arXiv:2411.04330; Ouyang et al., arXiv:2411.17691). Growth alone is
therefore no collapse: a collapse is a departure from that law. The law is fitted to a run's
own checkpoints up to its onset or to FP32 convergence, whichever is first, and extrapolated to
its end: checkpoints after the onset are part of the collapse that the law is to show.
"""

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
import pandas as pd
from scipy import optimize, stats

from flatminima.absent_steps import even_steps
from flatminima.errors import UserError
from flatminima.intervals import CONFIDENCE
from flatminima.paper import PAPER_RAPID_LEARNING_END, PAPER_TOKENS_PER_STEP, PAPER_WEIGHTS

FEWEST = 3  # checkpoints that the law is fitted to
FEWEST_CORRELATED = 6  # below, residuals count as independent
RHO = np.linspace(-0.9, 0.98, 95)
MOST_TOLERATED = 10.0  # times; an interval around 1 that reaches further either way says nothing


def fit_line(x: np.ndarray, y: np.ndarray, at: float) -> np.ndarray:
    """Slope of the line of ``y`` on ``x`` ``[n]``, and a new observation at ``at``: ``[2, 3]``.

    Each with the ends of its 95 % interval. Residuals are AR(1): generalised least squares with
    the autocorrelation integrated out, Student's t of each value of ``RHO``, weighed by its
    restricted likelihood and the prior (1 - rho^2)^(-1/2). With an estimated one intervals are
    too narrow (Newey and West's cover 65 to 86 of 100 at 28 points); these cover 94 to 99 at 12,
    28 and 42 points for autocorrelations up to 0.7, which a test holds.
    """
    count = len(x)
    centre, scale, dof = float(np.mean(x)), float(np.ptp(x)) / 2.0, count - 2
    design = np.column_stack([np.ones(count), (np.asarray(x, float) - centre) / scale])
    target, there = np.asarray(y, float), np.array([1.0, (at - centre) / scale])

    def fit(rho: float) -> tuple:
        """Slope, its error, level at ``at``, the error of an observation there, log weight."""
        first = np.sqrt(1.0 - rho**2)
        rows = np.vstack([first * design[:1], design[1:] - rho * design[:-1]])
        values = np.concatenate([first * target[:1], target[1:] - rho * target[:-1]])
        gram = rows.T @ rows
        line = np.linalg.solve(gram, rows.T @ values)
        residuals = values - rows @ line
        squares = max(float(residuals @ residuals), np.finfo(float).tiny)
        variance, inverse = squares / dof, np.linalg.inv(gram)
        error = np.sqrt(variance * (there @ inverse @ there + 1.0 / (1.0 - rho**2)))
        # The determinant of the whitening is what the prior takes away.
        weight = -0.5 * np.linalg.slogdet(gram)[1] - 0.5 * dof * np.log(squares)
        return line[1], np.sqrt(variance * inverse[1, 1]), there @ line, error, weight

    rhos = RHO if count >= FEWEST_CORRELATED else [0.0]
    fits = zip(*(fit(rho) for rho in rhos), strict=True)
    slopes, errors, levels, spreads, logs = map(np.array, fits)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    slope = _mixture(slopes, errors, weights, dof) / scale
    return np.array([slope, _mixture(levels, spreads, weights, dof)])


def _mixture(centres: np.ndarray, errors: np.ndarray, weights: np.ndarray, dof: int) -> np.ndarray:
    """Mean and 95 % interval of a mixture of Student's t."""
    tail, span = (1.0 - CONFIDENCE) / 2.0, 60.0 * errors.max()

    def below(value: float, share: float) -> float:
        return float(weights @ stats.t.cdf((value - centres) / errors, dof)) - share

    ends = (centres.min() - span, centres.max() + span)
    found = (optimize.brentq(below, *ends, args=(share,)) for share in (tail, 1.0 - tail))
    return np.array([weights @ centres, *found])


def fit_power_law(tokens: np.ndarray, delta: np.ndarray, start: float, stop: float) -> dict:
    """ln(delta NLL) against ln(tokens) from ``start`` to ``stop``, held against the last point.

    ``tokens`` and ``delta`` (nats per token, low-bit minus FP32) are ``[checkpoints]`` in
    order. ``exponent`` and ``predicted_nats`` have 95 % intervals, the latter that of a new
    checkpoint; ``excess`` is measured over predicted at the last checkpoint. Deltas that are
    not positive have no logarithm: they are left out and counted. Raises ``UserError`` where
    fewer than ``FEWEST`` are left.
    """
    inside = (tokens >= start) & (tokens <= stop) & (tokens > 0)
    used = inside & (delta > 0.0)
    if used.sum() < FEWEST or tokens[used].max() <= tokens[used].min():
        raise UserError(
            f"a power law takes {FEWEST} checkpoints with a positive loss between the end of "
            f"rapid learning and FP32 convergence or the onset, not {int(used.sum())}"
        )
    end, measured = float(tokens[-1]), float(delta[-1])
    exponent, level = fit_line(np.log(tokens[used]), np.log(delta[used]), np.log(end))
    exponent, exponent_low, exponent_high = exponent.tolist()
    predicted, low, high = np.exp(level).tolist()
    return {
        "tokens_start": float(tokens[used][0]), "tokens_stop": float(tokens[used][-1]),
        "tokens_end": end, "n": int(used.sum()), "left_out": int((inside & ~used).sum()),
        "exponent": exponent, "exponent_low": exponent_low, "exponent_high": exponent_high,
        "predicted_nats": predicted, "predicted_low_nats": low, "predicted_high_nats": high,
        "measured_nats": measured, "excess": measured / predicted,
        "excess_low": measured / high, "excess_high": measured / low,
    }  # fmt: skip


def law_stop(convergence: int, onset: int | None) -> int:
    """Last step that the law is fitted to: the onset or FP32 convergence, whichever is first."""
    return convergence if onset is None else min(convergence, onset)


def suite_excess(audit: pd.DataFrame, phases: Mapping, *, spacing: int) -> dict:
    """``fit_power_law`` of a suite, from the end of rapid learning to ``law_stop``.

    Where the tokens of a run are not known its steps stand for them: the exponent and the
    excess are the same.
    """
    role = audit[audit["role"] == "low_bit"].set_index("step").sort_index()
    even = role.loc[even_steps(role.index, spacing)]
    known = even["tokens_seen"].notna().all()
    tokens = (even["tokens_seen"] if known else even.index.to_series()).to_numpy(float)
    per_step = tokens[-1] / even.index[-1]
    start = phases["rapid_learning_end"]["step"]
    stop = law_stop(phases["convergence"]["step"], phases["onset"]["step"])
    delta = even["delta_nll_nats_per_token"].to_numpy(float)
    found = fit_power_law(tokens, delta, start * per_step, stop * per_step)
    return {"unit": "tokens" if known else "steps", **found}


def printed_losses(table: pd.DataFrame) -> pd.Series:
    """Low-bit losses of the paper's Table 1 by tokens seen per weight of the blocks."""
    losses = np.log1p(table["int4_gap_pct"].to_numpy() / 100)
    return pd.Series(losses, table["step"] * PAPER_TOKENS_PER_STEP / PAPER_WEIGHTS)


def printed_excess(table: pd.DataFrame) -> dict:
    """``fit_power_law`` of the ten rows of the paper's Table 1, up to its best FP32 step.

    Rapid learning ends at 7,000 by the rule that the suites have (``phases.RULE``) on these
    rows; from 30,000 on three rows are left, which give the same excess less surely.
    """
    tokens = table["step"].to_numpy(float) * PAPER_TOKENS_PER_STEP
    delta = np.log1p(table["int4_gap_pct"].to_numpy(float) / 100.0)
    stop = tokens[table["fp32_ppl"].argmin()]
    start = PAPER_RAPID_LEARNING_END * PAPER_TOKENS_PER_STEP
    return {"unit": "tokens", **fit_power_law(tokens, delta, start, stop)}


class Answer(StrEnum):
    """Whether the low-bit loss left its power law upwards."""

    LEFT = "left"
    DID_NOT_LEAVE = "did not leave"
    CANNOT_BE_TOLD = "cannot be told"


def excess_answer(found: Mapping) -> Answer:
    """The answer that the 95 % interval of the excess gives.

    It left its law where the whole interval is above 1. It did not where the interval is below
    1, or is around 1 within ``MOST_TOLERATED`` times either way.
    """
    low, high = found["excess_low"], found["excess_high"]
    if low > 1.0:
        return Answer.LEFT
    if high < 1.0 or (low > 1.0 / MOST_TOLERATED and high < MOST_TOLERATED):
        return Answer.DID_NOT_LEAVE
    return Answer.CANNOT_BE_TOLD


def excess_sentence(found: Mapping) -> str:
    """The result in one line for a reader."""
    numbers = (found[name] for name in ("excess", "excess_low", "excess_high"))
    printed = [f"{number:.2g}" if number < 10 else f"{number:,.0f}" for number in numbers]
    about = "{} times what was predicted ({} to {})".format(*printed)
    law = f"power law of the {found['unit']} seen"
    answer = excess_answer(found)
    if answer is Answer.CANNOT_BE_TOLD:
        return f"{answer} from these checkpoints: by its {law} the low-bit loss is {about}"
    verb = "fell below" if found["excess_high"] < 1.0 else answer
    return f"the low-bit loss {verb} its {law}: {about}"
