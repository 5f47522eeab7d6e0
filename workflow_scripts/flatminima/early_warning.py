"""Rules that should warn of the onset during training, compared with the observed onset.

The paper recommends one rule (section 4.3): phase 3 has begun when the derivative of
validation perplexity by step is no longer negative. The other rules here are simple, and like
the paper's rule they only use the past. All are evaluated on the evenly spaced checkpoints
("evaluations") after rapid learning. The end of rapid learning, the best step and the onset are
known in hindsight only. The rules do not use the best step and the onset.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.absent_steps import even_steps, hole_words
from flatminima.convergence_monitor import ConvergenceMonitor, paired_standard_error
from flatminima.hypothesis_tests import join_notes
from flatminima.intervals import PairedScores, paired_scores
from flatminima.quantizer_specs import FP32, LOW_BIT

PAPER_RULE = "FP32 perplexity slope >= 0"
SLOPE_WINDOWS = (2, 5, 10, 20)  # the paper names none; some smoothing is needed for use
NOISE_MULTIPLES = (1.0, 1.96, 3.0)
PATIENCES = (3, 5, 10)
RATE_RULE = "learning rate"
LR_FRACTIONS = (0.5, 0.25, 0.1)
MONITOR_RULE = "convergence monitor"
MONITOR_WINDOWS = (5, 10, 20)  # its other settings are its defaults
BAND_EVALUATIONS = (10, 20)
BAND_WIDTH = 3.0  # standard deviations: Shewhart's control chart
_RATE_TOLERANCE = 1e-9  # relative; a rate that reaches the threshold may be rounded upwards


def judge(rings: pd.Series, phases: dict) -> dict:
    """Compare a rule with ``phases`` (phases.json); ``rings`` is true by step where it rings.

    An alarm is an unbroken series of evaluations at which the rule rings. An alarm is false if
    it begins before both the best FP32 step and the onset. Without an onset every alarm is
    false. ``warning_step`` is where the first alarm begins that is not false. ``lead_steps``
    is how long before the onset that is (negative: after it).
    """
    start = phases["rapid_learning_end"]["step"]
    best = phases["convergence"]["step"]
    onset = phases["onset"]["step"]

    watched = rings[rings.index > start].astype(bool)
    begins = watched & ~watched.shift(fill_value=False)
    alarms = [int(step) for step in watched.index[begins]]
    false_alarms = [step for step in alarms if onset is None or step < min(best, onset)]
    true_alarms = alarms[len(false_alarms) :]
    warning_step = true_alarms[0] if true_alarms else None
    return {
        "watched_from": start,
        "best_step": best,
        "onset_step": onset,
        "first_alarm_step": alarms[0] if alarms else None,
        "warning_step": warning_step,
        "lead_steps": None if warning_step is None else onset - warning_step,
        "false_alarms": len(false_alarms),
        "alarms": len(alarms),
        "alarms_before_best": sum(step < best for step in alarms),
        "ringing_evaluations": int(watched.sum()),
        "evaluations": len(watched),
        "note": "" if onset is not None else "no onset: every alarm counts as false",
    }


# ---- the rules: true at the evaluations where a rule rings, by step --------------------------


def slope_not_negative(ppl: pd.Series, window: int) -> pd.Series:
    """The paper's rule: the least-squares slope over the last ``window`` evaluations is >= 0.

    ``ppl`` is FP32 perplexity by step.
    """
    slopes = ppl.rolling(window).apply(lambda part: stats.linregress(part.index, part).slope)
    return slopes >= 0.0


def no_better_for(nll: pd.Series, patience: int) -> pd.Series:
    """Early stopping: no new lowest FP32 loss in the last ``patience`` evaluations."""
    positions = pd.Series(np.arange(len(nll)), nll.index)
    is_new_lowest = nll < nll.cummin().shift(fill_value=np.inf)
    position_of_lowest = positions.where(is_new_lowest).ffill()
    return positions - position_of_lowest >= patience


def learning_rate_below(fraction: pd.Series, threshold: float) -> pd.Series:
    """After warm-up the learning rate has fallen to ``threshold`` of its maximum.

    The rule never rings if the rates are not known.
    """
    if fraction.isna().all():
        return pd.Series(False, fraction.index)
    is_low = fraction <= threshold * (1.0 + _RATE_TOLERANCE)
    return is_low & (fraction.index > fraction.idxmax())


def gap_above_band(gap: pd.Series, start: int, evaluations: int) -> pd.Series:
    """The low-bit gap is above its values at the first ``evaluations`` after ``start``.

    The band ends ``BAND_WIDTH`` standard deviations above their mean. The rule does not ring
    at these first evaluations, which define the band.
    """
    first_gaps = gap[gap.index > start].iloc[:evaluations]
    if len(first_gaps) < evaluations:
        return pd.Series(False, gap.index)
    upper_end = first_gaps.mean() + BAND_WIDTH * first_gaps.std(ddof=1)
    return (gap > upper_end) & (gap.index > first_gaps.index[-1])


def monitor_rings(scores: PairedScores, window: int) -> pd.Series:
    """Where ``ConvergenceMonitor`` reports that the FP32 loss has converged.

    ``scores`` are those of full precision by step. The standard error of an evaluation is
    that of its change since the previous one, divided by the square root of 2.
    """
    monitor = ConvergenceMonitor(window=window)
    steps = scores.rows["step"].to_numpy()
    nll = scores.nll_nats
    rings = []
    for position, (step, loss) in enumerate(zip(steps, scores.mean_nll(), strict=True)):
        error = None
        if position > 0:
            change_error = paired_standard_error(nll[position], nll[position - 1], scores.scored)
            error = change_error / np.sqrt(2.0)
        rings.append(monitor.update(int(step), loss, error).converged)
    return pd.Series(rings, steps)


def above_best_beyond_noise(scores: PairedScores) -> pd.Series:
    """By how many of its standard errors the FP32 loss is above its lowest so far.

    ``scores`` are those of full precision by step. The error is that of the difference of two
    evaluations on the same sequences (a ratio of sums: Cochran, Sampling Techniques, 1977).
    It includes the uncertainty of the validation text, but not the scatter of the loss from
    step to step. The number is 0 where the loss is the lowest so far.
    """
    mean_losses = scores.mean_nll()
    nll = scores.nll_nats
    multiples = []
    best = 0
    for position, loss in enumerate(mean_losses):
        if loss <= mean_losses[best]:
            best = position
        rise = loss - mean_losses[best]
        error = paired_standard_error(nll[position], nll[best], scores.scored)
        multiples.append(rise / error if rise > 0.0 else 0.0)
    return pd.Series(multiples, scores.rows["step"].to_numpy())


# ---- early_warning.csv -----------------------------------------------------------------------


def _rules(
    fp32: pd.DataFrame, gap: pd.Series, scores: PairedScores, start: int
) -> Iterator[tuple[str, str, pd.Series]]:
    """Name, parameter and rings of each rule; ``fp32`` and ``gap`` are by step."""
    for window in SLOPE_WINDOWS:
        rings = slope_not_negative(fp32["ppl"], window)
        yield PAPER_RULE, f"over {window} evaluations", rings

    excess = above_best_beyond_noise(scores)
    for multiple in NOISE_MULTIPLES:
        parameter = f"by more than {multiple:g} standard errors"
        yield "FP32 loss above its best", parameter, excess > multiple

    for patience in PATIENCES:
        rings = no_better_for(fp32["nll_nats_per_token"], patience)
        yield "no better FP32 loss", f"for {patience} evaluations", rings

    for window in MONITOR_WINDOWS:
        yield MONITOR_RULE, f"over {window} evaluations", monitor_rings(scores, window)

    for threshold in LR_FRACTIONS:
        rings = learning_rate_below(fp32["lr_fraction"], threshold)
        yield RATE_RULE, f"at or below {threshold:g} of the maximum", rings

    for evaluations in BAND_EVALUATIONS:
        parameter = f"{BAND_WIDTH:g} sd above its first {evaluations} evaluations"
        yield "low-bit gap", parameter, gap_above_band(gap, start, evaluations)


def warning_table(
    audit: pd.DataFrame, sequences: pd.DataFrame, phases: dict, *, spacing: int
) -> pd.DataFrame:
    """Contents of ``early_warning.csv``: suite, rule, parameter and the columns of ``judge``.

    ``audit`` and ``sequences`` are those of one suite, ``phases`` its phases.json and
    ``spacing`` the distance of its evenly spaced steps.
    """
    steps = even_steps(audit["step"], spacing)
    even = audit[audit["step"].isin(steps)].sort_values("step").set_index("step")
    fp32 = even[even["role"] == FP32]
    low_bit_gap = even.loc[even["role"] == LOW_BIT, "gap_pct"]
    fp32_sequences = sequences[(sequences["role"] == FP32) & sequences["step"].isin(steps)]
    scores = paired_scores(fp32_sequences, ["step"])
    start = phases["rapid_learning_end"]["step"]
    rates_are_known = fp32["lr_fraction"].notna().any()
    holes_note = hole_words(steps, spacing, phases)

    rows = []
    for rule, parameter, rings in _rules(fp32, low_bit_gap, scores, start):
        judgement = judge(rings, phases)
        if rule == RATE_RULE and not rates_are_known:
            judgement = dict.fromkeys(judgement)
            judgement["note"] = "the run's learning rate is not known"
        judgement["note"] = join_notes(judgement["note"], holes_note)
        rows.append({"suite": phases["suite"], "rule": rule, "parameter": parameter, **judgement})

    table = pd.DataFrame(rows)
    numbers = table.columns.difference(["suite", "rule", "parameter", "note"])
    return table.astype(dict.fromkeys(numbers, "Int64"))
