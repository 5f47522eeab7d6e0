"""Rules that are to warn of the onset while training goes on, and how each would have done.

The paper recommends one (section 4.3): phase 3 has begun when the derivative of validation
perplexity by step is no longer negative. Its rivals here are simple, and like it they look
at nothing but the past. All are judged on the evenly spaced checkpoints ("evaluations")
after rapid learning. The end of rapid learning, the best step and the onset are known in
hindsight only; the rules do not use the last two.
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


def judge(rings: pd.Series, phases: dict) -> dict:
    """Hold a rule against ``phases`` (phases.json); ``rings`` is true where it rings, by step.

    An alarm is a run of evaluations at which the rule rings. It is false if it begins
    before both the best FP32 step and the onset; without an onset there was nothing to warn
    of and every alarm is false. ``warning_step`` is where the first alarm begins that is not
    false, ``lead_steps`` how long before the onset that is (negative: after it).
    """
    start, best, onset = (
        phases[name]["step"] for name in ("rapid_learning_end", "convergence", "onset")
    )
    watched = rings[rings.index > start].astype(bool)
    alarms = [*map(int, watched.index[watched & ~watched.shift(fill_value=False)])]
    false = [step for step in alarms if onset is None or step < min(best, onset)]
    warning = next(iter(alarms[len(false) :]), None)
    return {
        "watched_from": start,
        "best_step": best,
        "onset_step": onset,
        "first_alarm_step": next(iter(alarms), None),
        "warning_step": warning,
        "lead_steps": None if warning is None else onset - warning,
        "false_alarms": len(false),
        "alarms": len(alarms),
        "alarms_before_best": sum(step < best for step in alarms),
        "ringing_evaluations": int(watched.sum()),
        "evaluations": len(watched),
        "note": "" if onset is not None else "no onset: every alarm counts as false",
    }


def slope_not_negative(ppl: pd.Series, window: int) -> pd.Series:
    """The paper's rule: the least-squares slope over the last ``window`` evaluations is >= 0.

    ``ppl`` is FP32 perplexity by step.
    """
    slopes = ppl.rolling(window).apply(lambda part: stats.linregress(part.index, part).slope)
    return slopes >= 0.0


def no_better_for(nll: pd.Series, patience: int) -> pd.Series:
    """Early stopping: no new lowest FP32 loss in the last ``patience`` evaluations."""
    places = pd.Series(np.arange(len(nll)), nll.index)
    best = places.where(nll < nll.cummin().shift(fill_value=np.inf)).ffill()
    return places - best >= patience


def learning_rate_below(fraction: pd.Series, threshold: float) -> pd.Series:
    """The learning rate has come down to ``threshold`` of its maximum, after warm-up.

    Silent where the rate is not known.
    """
    if fraction.isna().all():
        return pd.Series(False, fraction.index)
    return (fraction <= threshold * (1.0 + 1e-9)) & (fraction.index > fraction.idxmax())


def gap_above_band(gap: pd.Series, start: int, evaluations: int) -> pd.Series:
    """The low-bit gap lies above what it did in the first ``evaluations`` after ``start``.

    The band ends ``BAND_WIDTH`` standard deviations above their mean; the rule is silent
    while it learns.
    """
    learned = gap[gap.index > start].iloc[:evaluations]
    if len(learned) < evaluations:
        return pd.Series(False, gap.index)
    top = learned.mean() + BAND_WIDTH * learned.std(ddof=1)
    return (gap > top) & (gap.index > learned.index[-1])


def monitor_rings(scores: PairedScores, window: int) -> pd.Series:
    """Where ``monitor.ConvergenceMonitor`` says that the FP32 loss has converged.

    ``scores`` are full precision's by step. The standard error of an evaluation is that of
    its change since the one before, divided by the square root of 2.
    """
    monitor, rings = ConvergenceMonitor(window=window), []
    steps, losses, nll = scores.rows["step"].to_numpy(), scores.mean_nll(), scores.nll_nats
    for at, (step, loss) in enumerate(zip(steps, losses, strict=True)):
        error = None
        if at:
            error = paired_standard_error(nll[at], nll[at - 1], scores.scored) / np.sqrt(2.0)
        rings.append(monitor.update(int(step), loss, error).converged)
    return pd.Series(rings, steps)


def above_best_beyond_noise(scores: PairedScores) -> pd.Series:
    """By how many of its own standard errors the FP32 loss lies above its lowest so far.

    ``scores`` are full precision's by step. The error is that of the difference of two
    evaluations on the same sequences (a ratio of sums: Cochran, Sampling Techniques,
    1977): it holds the uncertainty of the validation text, not how the loss wavers from
    step to step. 0 where the loss is the lowest so far.
    """
    means, nll = scores.mean_nll(), scores.nll_nats
    multiples, best = [], 0
    for at, value in enumerate(means):
        best = at if value <= means[best] else best
        rise = value - means[best]
        error = paired_standard_error(nll[at], nll[best], scores.scored)
        multiples.append(rise / error if rise > 0.0 else 0.0)
    return pd.Series(multiples, scores.rows["step"].to_numpy())


def _rules(
    fp32: pd.DataFrame, gap: pd.Series, scores: PairedScores, start: int
) -> Iterator[tuple[str, str, pd.Series]]:
    """Name, parameter and rings of each rule; ``fp32`` and ``gap`` are by step."""
    for n in SLOPE_WINDOWS:
        yield PAPER_RULE, f"over {n} evaluations", slope_not_negative(fp32["ppl"], n)
    nll, rate = fp32["nll_nats_per_token"], fp32["lr_fraction"]
    excess = above_best_beyond_noise(scores)
    for x in NOISE_MULTIPLES:
        yield "FP32 loss above its best", f"by more than {x:g} standard errors", excess > x
    for n in PATIENCES:
        yield "no better FP32 loss", f"for {n} evaluations", no_better_for(nll, n)
    for n in MONITOR_WINDOWS:
        yield MONITOR_RULE, f"over {n} evaluations", monitor_rings(scores, n)
    for x in LR_FRACTIONS:
        yield RATE_RULE, f"at or below {x:g} of the maximum", learning_rate_below(rate, x)
    for n in BAND_EVALUATIONS:
        band = f"{BAND_WIDTH:g} sd above its first {n} evaluations"
        yield "low-bit gap", band, gap_above_band(gap, start, n)


def warning_table(
    audit: pd.DataFrame, sequences: pd.DataFrame, phases: dict, *, spacing: int
) -> pd.DataFrame:
    """Contents of ``early_warning.csv``: suite, rule, parameter and ``judge``'s of each rule.

    ``audit`` and ``sequences`` are those of one suite, ``phases`` its phases.json and
    ``spacing`` the distance of its evenly spaced steps.
    """
    steps = even_steps(audit["step"], spacing)
    even = audit[audit["step"].isin(steps)].sort_values("step").set_index("step")
    fp32, low = (even[even["role"] == role] for role in (FP32, LOW_BIT))
    rate_known = fp32["lr_fraction"].notna().any()
    chosen = sequences[(sequences["role"] == FP32) & sequences["step"].isin(steps)]
    scores, start = paired_scores(chosen, ["step"]), phases["rapid_learning_end"]["step"]
    rows = []
    for rule, parameter, rings in _rules(fp32, low["gap_pct"], scores, start):
        judgement = judge(rings, phases)
        if rule == RATE_RULE and not rate_known:
            judgement = dict.fromkeys(judgement) | {"note": "the run's learning rate is not known"}
        about = {"suite": phases["suite"], "rule": rule, "parameter": parameter}
        rows.append(about | judgement)
    table = pd.DataFrame(rows)
    lost = hole_words(steps, spacing, phases)
    words = ["suite", "rule", "parameter", "note"]
    table["note"] = [join_notes(note, lost) for note in table["note"]]
    return table.astype(dict.fromkeys(table.columns.difference(words), "Int64"))
