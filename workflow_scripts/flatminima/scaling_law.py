"""Excess over the scaling law of quantization: does the low-bit loss leave its own trend?

The loss that post-training quantization adds grows as a power of the tokens seen, for any
model (Kumar et al., arXiv:2411.04330; Ouyang et al., arXiv:2411.17691). Growth alone is
therefore no collapse: a collapse is a departure from that law. The law is fitted to a run's
own checkpoints up to FP32 convergence and extrapolated to its end.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from flatminima.errors import UserError
from flatminima.intervals import fit_line
from flatminima.missing import even_steps

FEWEST = 3  # checkpoints that the law is fitted to
WIDEST = 100.0  # an interval from a tenth to ten times the prediction says nothing
PAPER_WEIGHTS = 84_934_656  # of Pythia-160m's linear layers in its blocks
PAPER_TOKENS_PER_STEP = 2_097_152


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
            f"rapid learning and FP32 convergence, not {int(used.sum())}"
        )
    end = float(tokens[-1])
    line = fit_line(np.log(tokens[used]), np.log(delta[used]), np.log(end))
    predicted, low, high = np.exp([line.predicted, line.predicted_low, line.predicted_high])
    measured = float(delta[-1])
    return {
        "tokens_start": float(tokens[used][0]), "tokens_stop": float(tokens[used][-1]),
        "tokens_end": end, "n": int(used.sum()), "left_out": int((inside & ~used).sum()),
        "exponent": line.slope, "exponent_low": line.slope_low, "exponent_high": line.slope_high,
        "predicted_nats": float(predicted), "predicted_low_nats": float(low),
        "predicted_high_nats": float(high), "measured_nats": measured,
        "excess": measured / float(predicted), "excess_low": measured / float(high),
        "excess_high": measured / float(low),
    }  # fmt: skip


def suite_excess(audit: pd.DataFrame, phases: Mapping, *, spacing: int) -> dict:
    """``fit_power_law`` of a suite, from the end of rapid learning to FP32 convergence.

    Where the tokens of a run are not known its steps stand for them: the exponent and the
    excess are the same.
    """
    role = audit.set_index("step").loc[lambda t: t["role"] == "low_bit"].sort_index()
    even = role.loc[even_steps(role.index, spacing)]
    known = even["tokens_seen"].notna().all()
    tokens = (even["tokens_seen"] if known else even.index.to_series()).to_numpy(float)
    per_step = tokens[-1] / even.index[-1]
    found = fit_power_law(
        tokens,
        even["delta_nll_nats_per_token"].to_numpy(float),
        phases["rapid_learning_end"]["step"] * per_step,
        phases["convergence"]["step"] * per_step,
    )
    return {"unit": "tokens" if known else "steps", **found}


def printed_excess(table: pd.DataFrame, tokens_per_step: int, *, start: int = 7_000) -> dict:
    """``fit_power_law`` of the ten rows of the paper's Table 1, up to its best FP32 step.

    Rapid learning ends at ``start`` by the rule that the suites have (``phases.RULE``) on
    these rows; from 30,000 on three rows are left, which give the same excess less surely.
    """
    best = int(table.loc[table["fp32_ppl"].idxmin(), "step"])
    found = fit_power_law(
        table["step"].to_numpy(float) * tokens_per_step,
        np.log1p(table["int4_gap_pct"].to_numpy(float) / 100.0),
        start * tokens_per_step,
        best * tokens_per_step,
    )
    return {"unit": "tokens", **found}


def excess_sentence(found: Mapping) -> str:
    """The result in one line for a reader."""
    low, high = found["excess_low"], found["excess_high"]
    printed = [f"{v:.2g}" if v < 10 else f"{v:,.0f}" for v in (found["excess"], low, high)]
    about = "{} times what was predicted ({} to {})".format(*printed)
    law = f"power law of the {found['unit']} seen"
    if high > WIDEST * low and low < 1.0 < high:
        return f"cannot be told from so few checkpoints: by its {law} the low-bit loss is {about}"
    left = "left" if low > 1.0 else ("fell below" if high < 1.0 else "did not leave")
    return f"the low-bit loss {left} its {law}: {about}"
