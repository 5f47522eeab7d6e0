"""Small runs of several widths and seeds: does the onset follow each run's own FP32 minimum?

Each run is the suite's own training, shortened: the schedule, the optimiser and the text
of the suite, fewer steps and a part of the text in proportion, so that every run sees its
text as often as the suite's run does. Here its probes become a row of the comparison.
"""

import numpy as np
import pandas as pd

from flatminima.intervals import percentile_interval, resampled_curves
from flatminima.phases import describe_phases
from flatminima.quantizer_specs import FP32

FEWEST_PROBES = 3  # for a slope


def _slope(steps: np.ndarray, values: np.ndarray) -> float:
    if len(steps) < FEWEST_PROBES:
        return np.nan
    return float(np.polyfit(steps / 1000.0, values, 1)[0])


def growth_slopes(
    table: pd.DataFrame, sequences: pd.DataFrame, best: int, *, resamples: int
) -> dict[str, float]:
    """Growth of the low-bit loss before and after a step, nats per token in 1,000 steps.

    Straight lines through the added loss up to ``best`` and from it on, and their
    difference; 95 % intervals over the validation sequences. Defined where the rule of
    ``phases`` finds no onset: an onset at the FP32 minimum is a positive difference.
    """
    steps = np.sort(table["step"].unique())
    early, late = steps <= best, steps >= best

    def parts(added: np.ndarray) -> np.ndarray:
        before, after = (_slope(steps[part], added[part]) for part in (early, late))
        return np.array([before, after, after - before])

    low = table[table["role"] == "low_bit"].set_index("step").sort_index()
    value = parts(low["delta_nll_nats_per_token"].to_numpy())
    curves = resampled_curves(sequences, steps, resamples=resamples, seed=0)
    draws = np.array([parts(curve["low_bit"] - curve[FP32]) for curve in curves])
    row = {}
    for place, name in enumerate(("slope_before", "slope_after", "slope_change")):
        low_end, high_end = percentile_interval(draws[:, place])
        row |= {name: value[place], f"{name}_low": low_end, f"{name}_high": high_end}
    return row


def last_doubling(
    table: pd.DataFrame, sequences: pd.DataFrame, *, resamples: int
) -> dict[str, float]:
    """By which factor the low-bit loss grows while the tokens seen double for the last time.

    The added loss over the last tenth of the run, over that of the tenth that ends half-way;
    its 95 % interval over the validation sequences. A power law of the tokens
    with exponent k gives 2^k, the paper's printed rows from step 70,000 on give 17. A *collapse*
    is a factor that is surely above 2. Beside it, where FP32 stands: how far its loss at the end
    is above the lowest, and its change over the last fifth, in nats per token.
    """
    steps = np.sort(table["step"].unique())
    end = steps[-1]
    late, half = steps > 0.9 * end, (steps > 0.45 * end) & (steps <= 0.5 * end)
    low = table[table["role"] == "low_bit"].set_index("step").sort_index()
    added = low["delta_nll_nats_per_token"].to_numpy()
    curves = resampled_curves(sequences, steps, resamples=resamples, seed=0)
    drawn = [curve["low_bit"] - curve[FP32] for curve in curves]
    ratio = [d[late].mean() / d[half].mean() for d in (added, *drawn)]
    full = table[table["role"] == FP32].set_index("step").sort_index()["nll_nats_per_token"]
    last = full[full.index > 0.9 * end].mean()
    fifth = full[(full.index > 0.7 * end) & (full.index <= 0.8 * end)].mean()
    low_end, high_end = percentile_interval(np.array(ratio[1:]))
    return {
        "tokens_per_weight": table["tokens_per_weight"].max(),
        "last_doubling": ratio[0],
        "last_doubling_low": low_end,
        "last_doubling_high": high_end,
        "fp32_last_fifth_nats": last - fifth,
        "fp32_over_best_nats": last - full.rolling(5, center=True, min_periods=1).mean().min(),
    }


def run_phases(
    table: pd.DataFrame, sequences: pd.DataFrame, *, spacing: int, resamples: int
) -> dict:
    """One row of the comparison: convergence and onset of one run, with intervals.

    ``table`` is the run's table (columns of an audit with suite, width, seed, weight_decay and
    tokens_per_weight),
    ``sequences`` its per-sequence scores. Values that do not exist are NaN.
    """
    phases = describe_phases(table, sequences, spacing=spacing, resamples=resamples, seed=0)
    best, onset = phases["convergence"], phases["onset"]
    low = table[table["role"] == "low_bit"].set_index("step").sort_index()
    last = low.iloc[-1]
    row = {name: table[name].iloc[0] for name in ("suite", "width", "seed", "weight_decay")}
    row |= {f"fp32_{k}": best[k] for k in ("step", "step_low", "step_high", "ppl", "rise_pct")}
    row |= {f"onset_{k}": onset[k] for k in ("step", "step_low", "step_high", "detected_share")}
    row |= {
        **{key: phases[key] for key in ("lag_steps", "lag_low", "lag_high")},
        "onset_reason": onset["reason"] or "",
        "still_improving": best["still_improving"],
        "gap_at_best_pct": low.loc[best["step"], "gap_pct"],
        "gap_last_pct": last["gap_pct"],
        "gap_last_low_pct": last["gap_low_pct"],
        "gap_last_high_pct": last["gap_high_pct"],
    }
    row |= growth_slopes(table, sequences, best["step"], resamples=resamples)
    return row | last_doubling(table, sequences, resamples=resamples)
