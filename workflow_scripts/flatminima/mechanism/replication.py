"""Small runs of several widths and seeds: does the onset follow each run's own FP32 minimum?

Each run is a shortened training of the suite: the same schedule, optimiser and text, with
fewer steps and proportionally less text, so that every run sees its text as often as the
suite's run does. This module turns the probes of a run into a row of the comparison.
"""

import numpy as np
import pandas as pd

from flatminima.intervals import percentile_interval, resampled_curves
from flatminima.phases import describe_phases
from flatminima.quantizer_specs import FP32, LOW_BIT

FEWEST_PROBES = 3  # for a slope


def _with_interval(name: str, draws: np.ndarray) -> dict[str, float]:
    """The measured number, which is the first, and the 95 % interval of its resamples."""
    measured, *resampled = draws
    low, high = percentile_interval(np.array(resampled))
    return {name: measured, f"{name}_low": low, f"{name}_high": high}


def growth_slopes(steps: np.ndarray, added: np.ndarray, best: int) -> dict[str, float]:
    """Growth of the low-bit loss before and after a step, nats per token in 1,000 steps.

    ``added`` is ``[1 + resamples, steps]``. A straight line is fitted up to ``best``, another
    from ``best`` on. An onset at the FP32 minimum is a positive difference of their slopes. The
    slopes exist even if the rule of ``phases`` finds no onset.
    """

    def slopes(is_used: np.ndarray) -> np.ndarray:
        if is_used.sum() < FEWEST_PROBES:
            return np.full(len(added), np.nan)
        thousands = steps[is_used] / 1000.0
        return np.array([np.polyfit(thousands, curve[is_used], 1)[0] for curve in added])

    # The best step belongs to both lines, so that they are about the same two halves.
    before = slopes(steps <= best)
    after = slopes(steps >= best)
    return (
        _with_interval("slope_before", before)
        | _with_interval("slope_after", after)
        | _with_interval("slope_change", after - before)
    )


def last_doubling(steps: np.ndarray, added: np.ndarray, fp32: np.ndarray) -> dict[str, float]:
    """By which factor the low-bit loss grows while the tokens seen double for the last time.

    It is the mean added loss of the last tenth of the run, over the mean from 45 to 50 % of the
    run. A power law of the tokens with exponent k gives 2^k. The paper's printed rows from step
    70,000 on give 17. A *collapse* is a factor whose interval is above 2. The FP32 loss is
    described too: how far its end is above its lowest, and its change over the last fifth, in
    nats per token. ``added`` is ``[1 + resamples, steps]``, ``fp32`` ``[steps]``.
    """
    end = steps[-1]
    is_last_tenth = steps > 0.9 * end
    is_before_half = (steps > 0.45 * end) & (steps <= 0.5 * end)
    is_fifth_earlier = (steps > 0.7 * end) & (steps <= 0.8 * end)
    ratios = np.array(
        [curve[is_last_tenth].mean() / curve[is_before_half].mean() for curve in added]
    )
    last_fp32 = fp32[is_last_tenth].mean()
    # A single lowest probe would be the luckiest.
    lowest_fp32 = pd.Series(fp32).rolling(5, center=True, min_periods=1).mean().min()
    return _with_interval("last_doubling", ratios) | {
        "fp32_last_fifth_nats": last_fp32 - fp32[is_fifth_earlier].mean(),
        "fp32_over_best_nats": last_fp32 - lowest_fp32,
    }


def run_phases(
    table: pd.DataFrame, sequences: pd.DataFrame, *, spacing: int, resamples: int
) -> dict:
    """One row of the comparison: convergence, onset and growth of one run, with intervals.

    ``table`` is the run's table (columns of an audit with suite, width, seed, weight_decay and
    tokens_per_weight), ``sequences`` its per-sequence scores. 95 % intervals are over the
    validation sequences. Numbers that do not exist are NaN.
    """
    phases = describe_phases(table, sequences, spacing=spacing, resamples=resamples, seed=0)
    convergence = phases["convergence"]
    onset = phases["onset"]
    by_role = {role: rows.set_index("step").sort_index() for role, rows in table.groupby("role")}
    low_bit = by_role[LOW_BIT]
    fp32_nll = by_role[FP32]["nll_nats_per_token"].to_numpy()
    steps = low_bit.index.to_numpy()
    last = low_bit.iloc[-1]
    curves = resampled_curves(sequences, steps, resamples=resamples, seed=0)
    # The first row is measured, the others are resampled.
    added = np.vstack([low_bit["delta_nll_nats_per_token"], curves[LOW_BIT] - curves[FP32]])

    labels = ("suite", "width", "seed", "weight_decay")
    of_convergence = ("step", "step_low", "step_high", "ppl", "rise_pct")
    of_onset = ("step", "step_low", "step_high", "detected_share")
    return {
        **{name: table[name].iloc[0] for name in labels},
        **{f"fp32_{name}": convergence[name] for name in of_convergence},
        **{f"onset_{name}": onset[name] for name in of_onset},
        **{name: phases[name] for name in ("lag_steps", "lag_low", "lag_high")},
        "onset_reason": onset["reason"],
        "still_improving": convergence["still_improving"],
        "gap_at_best_pct": low_bit.loc[convergence["step"], "gap_pct"],
        "gap_last_pct": last["gap_pct"],
        "gap_last_low_pct": last["gap_low_pct"],
        "gap_last_high_pct": last["gap_high_pct"],
        **growth_slopes(steps, added, convergence["step"]),
        "tokens_per_weight": table["tokens_per_weight"].max(),
        **last_doubling(steps, added, fp32_nll),
    }
