"""Tests along the training run: kurtosis against the gap (4.5), and the two bit widths (4.4)."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.revisions.missing import holes, missing_words
from flatminima.statistics.correlations import correlations
from flatminima.statistics.intervals import CONFIDENCE
from flatminima.statistics.rows import CHECKPOINTS_DEPEND, NAN, Row, join_notes
from flatminima.statistics.two_sample_tests import is_constant

PAPER_KURTOSIS_CHECKPOINTS = 16


def _curve(audit: pd.DataFrame, role: str, column: str, steps: Sequence[int]) -> np.ndarray:
    return audit[audit["role"] == role].set_index("step")[column].loc[list(steps)].to_numpy(float)


def _even_steps(audit: pd.DataFrame, spacing: int) -> np.ndarray:
    steps = np.sort(audit["step"].unique())
    return steps[(steps > 0) & (steps % spacing == 0)]


def kurtosis_rows(
    kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, spacing: int
) -> Iterator[Row]:
    """Section 4.5: weight kurtosis against the low-bit gap.

    Over all evenly spaced checkpoints of phase 3 (without an onset: from FP32
    convergence on), and over 16 spread evenly over the grid, the number the paper
    took, once over all phases and once over those in phase 3.
    """
    steps = _even_steps(audit, spacing)
    onset = phases["onset"]["step"]
    late, start = ("phase 3", onset) if onset is not None else (
        "after convergence", phases["convergence"]["step"]
    )  # fmt: skip
    lost = missing_words(holes(steps, spacing))
    note = join_notes("" if onset is not None else "no onset, so from FP32 convergence on", lost)
    at = np.linspace(0, len(steps) - 1, min(len(steps), PAPER_KURTOSIS_CHECKPOINTS))
    spread = steps[np.round(at).astype(int)]
    chosen = {
        late: (steps[steps >= start], join_notes(note, CHECKPOINTS_DEPEND)),
        "16 checkpoints": (
            spread,
            join_notes("16 checkpoints spread evenly over all phases", lost),
        ),
        f"16 checkpoints, {late}": (spread[spread >= start], note),
    }
    for statistic in ("mean_over_tensors", "pooled"):
        measured = kurtosis[kurtosis["statistic"] == statistic].set_index("step")["excess_kurtosis"]
        for label, (wanted, remark) in chosen.items():
            where = {"comparison": f"kurtosis {statistic} v low_bit gap ({label})",
                     "unit": "checkpoint", "measure": "excess_kurtosis, gap_pct"}  # fmt: skip
            x = measured.loc[list(wanted)].to_numpy(float)
            yield from correlations(x, _curve(audit, "low_bit", "gap_pct", wanted), where, remark)


def bit_width_rows(audit: pd.DataFrame, spacing: int) -> Iterator[Row]:
    """Section 4.4: does the high-bit delta NLL grow in proportion to the low-bit one?

    Correlation of the deltas and of their logarithms, slope of ln(high) on ln(low)
    (1 means proportional) and the median of low/high, over the evenly spaced
    checkpoints and over all revisions. Logarithms leave out deltas of zero or less.
    """
    everything = np.sort(audit["step"].unique())
    lost = missing_words(holes(everything, spacing))
    for label, steps in (("even steps", _even_steps(audit, spacing)), ("all", everything)):
        high, low = (
            _curve(audit, role, "delta_nll_nats_per_token", steps)
            for role in ("high_bit", "low_bit")
        )
        where = {"comparison": f"high_bit v low_bit ({label})", "unit": "checkpoint"}
        measure = "delta_nll_nats_per_token"
        remark = join_notes(CHECKPOINTS_DEPEND, lost)
        yield from correlations(high, low, {**where, "measure": measure}, remark)
        positive = (high > 0.0) & (low > 0.0)
        left_out = f"{int((~positive).sum())} checkpoints without positive deltas left out"
        x, y = np.log(low[positive]), np.log(high[positive])
        logs = {**where, "measure": f"ln {measure}"}
        yield from correlations(y, x, logs, join_notes(left_out, remark))
        found, why = {}, "three or more differing checkpoints are needed"
        if len(x) > 2 and not is_constant(x):
            fit = stats.linregress(x, y)
            half = fit.stderr * stats.t.ppf((1.0 + CONFIDENCE) / 2.0, len(x) - 2)
            found = {
                "value": float(fit.slope), "p_value": float(fit.pvalue), "dof": len(x) - 2,
                "interval_low": float(fit.slope - half), "interval_high": float(fit.slope + half),
            }  # fmt: skip
            why = f"standard error {fit.stderr:.3g}; p is against slope 0; {remark}"
        yield Row(
            "log-log regression", **logs, statistic="slope", **found, n_a=len(x), n_b=len(x),
            note=join_notes(left_out, why),
        )  # fmt: skip
        ratio = float(np.median(np.exp(x - y))) if len(x) else NAN
        yield Row(
            "ratio", **where, measure=measure, statistic="median low_bit/high_bit", value=ratio,
            n_a=len(x), n_b=len(x), note=join_notes(left_out, lost),
        )  # fmt: skip
