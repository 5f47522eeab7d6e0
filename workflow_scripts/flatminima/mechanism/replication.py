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


def _with_interval(name: str, values: np.ndarray) -> dict[str, float]:
    """Measured value, which is the first, and the 95 % interval of its resamples, the others."""
    low, high = percentile_interval(values[1:])
    return {name: values[0], f"{name}_low": low, f"{name}_high": high}


def growth_slopes(steps: np.ndarray, added: np.ndarray, best: int) -> dict[str, float]:
    """Growth of the low-bit loss before and after a step, nats per token in 1,000 steps.

    ``added`` is ``[1 + resamples, steps]``. Straight lines through it up to ``best`` and from
    it on, and their difference. Defined where the rule of ``phases`` finds no onset: an onset
    at the FP32 minimum is a positive difference.
    """

    def slopes(part: np.ndarray) -> np.ndarray:
        if part.sum() < FEWEST_PROBES:
            return np.full(len(added), np.nan)
        return np.array([np.polyfit(steps[part] / 1000.0, one[part], 1)[0] for one in added])

    before, after = slopes(steps <= best), slopes(steps >= best)
    return (
        _with_interval("slope_before", before)
        | _with_interval("slope_after", after)
        | _with_interval("slope_change", after - before)
    )


def last_doubling(steps: np.ndarray, added: np.ndarray, fp32: np.ndarray) -> dict[str, float]:
    """By which factor the low-bit loss grows while the tokens seen double for the last time.

    The added loss over the last tenth of the run, over that of the tenth that ends half-way. A
    power law of the tokens with exponent k gives 2^k, the paper's printed rows from step 70,000
    on give 17. A *collapse* is a factor that is surely above 2. Beside it, where FP32 stands:
    how far its loss at the end is above the lowest, and its change over the last fifth, in nats
    per token.
    """
    end = steps[-1]
    late, half = steps > 0.9 * end, (steps > 0.45 * end) & (steps <= 0.5 * end)
    fifth = (steps > 0.7 * end) & (steps <= 0.8 * end)
    ratio = np.array([one[late].mean() / one[half].mean() for one in added])
    last = fp32[late].mean()
    lowest = pd.Series(fp32).rolling(5, center=True, min_periods=1).mean().min()
    return _with_interval("last_doubling", ratio) | {
        "fp32_last_fifth_nats": last - fp32[fifth].mean(),
        "fp32_over_best_nats": last - lowest,
    }


def run_phases(
    table: pd.DataFrame, sequences: pd.DataFrame, *, spacing: int, resamples: int
) -> dict:
    """One row of the comparison: convergence, onset and growth of one run, with intervals.

    ``table`` is the run's table (columns of an audit with suite, width, seed, weight_decay and
    tokens_per_weight), ``sequences`` its per-sequence scores; 95 % intervals are over the
    validation sequences. Values that do not exist are NaN.
    """
    phases = describe_phases(table, sequences, spacing=spacing, resamples=resamples, seed=0)
    best, onset = phases["convergence"], phases["onset"]
    by_role = {role: rows.set_index("step").sort_index() for role, rows in table.groupby("role")}
    low, fp32 = by_role["low_bit"], by_role[FP32]["nll_nats_per_token"].to_numpy()
    steps, last = low.index.to_numpy(), low.iloc[-1]
    curves = resampled_curves(sequences, steps, resamples=resamples, seed=0)
    added = np.vstack([low["delta_nll_nats_per_token"], curves["low_bit"] - curves[FP32]])
    return {
        **{name: table[name].iloc[0] for name in ("suite", "width", "seed", "weight_decay")},
        **{f"fp32_{k}": best[k] for k in ("step", "step_low", "step_high", "ppl", "rise_pct")},
        **{f"onset_{k}": onset[k] for k in ("step", "step_low", "step_high", "detected_share")},
        **{key: phases[key] for key in ("lag_steps", "lag_low", "lag_high")},
        "onset_reason": onset["reason"],
        "still_improving": best["still_improving"],
        "gap_at_best_pct": low.loc[best["step"], "gap_pct"],
        **{f"gap_last{end}_pct": last[f"gap{end}_pct"] for end in ("", "_low", "_high")},
        **growth_slopes(steps, added, best["step"]),
        "tokens_per_weight": table["tokens_per_weight"].max(),
        **last_doubling(steps, added, fp32),
    }
