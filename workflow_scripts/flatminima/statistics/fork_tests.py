"""The fork experiment (sections 5.1 and 5.2): each condition against the control.

The same tests stand beside each other with the run and with the probe as the unit.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.forks.conditions import by_seed, conditions, probe_table
from flatminima.forks.summaries import summary_rows
from flatminima.statistics.block_bootstrap import (
    FEWEST_PROBES,
    SEGMENTS,
    segment_t_test,
    stationary_bootstrap,
)
from flatminima.statistics.intervals import CONFIDENCE
from flatminima.statistics.rows import ONE_RUN, PROBES_DEPEND, Row, join_notes
from flatminima.statistics.two_sample_tests import (
    describe,
    exact_tests,
    is_constant,
    mean,
    t_tests,
)


def seed_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """Compare one condition with the baseline, the run being the unit."""
    matching = baseline[baseline["step"].isin(probes["step"])]
    note = join_notes(
        ONE_RUN, "baseline at the same steps" if len(matching) < len(baseline) else ""
    )
    for how in ("final", "mean"):
        a, b = by_seed(probes, "gap_pct", how), by_seed(matching, "gap_pct", how)
        where = {"comparison": comparison, "unit": "seed", "measure": f"{how}_gap_pct"}
        yield from exact_tests(a.to_numpy(), b.to_numpy(), where, note)
        yield from t_tests(a.to_numpy(), b.to_numpy(), where, note)
        difference = (a - b).dropna().to_numpy()
        described = {"n_a": len(difference), "n_b": len(difference), "difference": mean(difference)}
        yield Row(
            "same-seed sign", **where, statistic="seeds lower", value=int((difference < 0).sum()),
            **described, note=join_notes(note, f"of {len(difference)} seeds"),
        )  # fmt: skip
        yield _bootstrap_of_runs(difference, where, described, note)


def _bootstrap_of_runs(difference: np.ndarray, where: dict, described: dict, note: str) -> Row:
    """Whole runs as the blocks: pairs of runs with the same seed are resampled.

    No p: while all pairs have one sign it would be the smallest possible, whatever their
    number.
    """
    found, why = {}, "takes two or more seeds that both sides have, and some variance"
    if not is_constant(difference):
        interval = stats.bootstrap(
            (difference,), np.mean, confidence_level=CONFIDENCE, method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
        found = {"interval_low": float(interval.low), "interval_high": float(interval.high)}
        why = "blocks are whole runs, in pairs of the same seed"
        if len(difference) <= 3:
            covered = 100 * (1 - 2.0 ** (1 - len(difference)))
            why += f"; with {len(difference)} pairs the interval is their range, which holds "
            why += f"the median of such differences in {covered:.0f} of 100 experiments, not 95"
    return Row(
        "block bootstrap", **where, statistic="difference of means",
        value=described["difference"], **found, **described, note=join_notes(note, why),
    )  # fmt: skip


def probe_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """The same with the probe as the unit, all seeds pooled, as in section 5.2.

    Where the condition lacks some steps, the t-tests stand once more against all probes
    of the baseline: the paper does not say which of the two it did.
    """
    matching = baseline[baseline["step"].isin(probes["step"])]
    where = {"comparison": f"{comparison} (matching steps)", "unit": "probe", "measure": "gap_pct"}
    a, b = probes["gap_pct"].to_numpy(), matching["gap_pct"].to_numpy()
    yield from t_tests(a, b, where, PROBES_DEPEND)
    yield from exact_tests(a, b, where, PROBES_DEPEND)
    yield from block_rows(_differences(probes, matching), where, describe(a, b))
    if len(matching) < len(baseline):
        where = where | {"comparison": f"{comparison} (all probes)"}
        yield from t_tests(a, baseline["gap_pct"].to_numpy(), where, PROBES_DEPEND)


def _differences(probes: pd.DataFrame, baseline: pd.DataFrame) -> np.ndarray:
    """Gap minus the baseline's at the same step and seed, ``[steps, seeds]``."""
    a, b = (
        rows.pivot(index="step", columns="seed", values="gap_pct") for rows in (probes, baseline)
    )
    return (a - b).dropna(axis="columns", how="all").dropna().to_numpy(float)


def block_rows(differences: np.ndarray, where: dict, described: dict) -> Iterator[Row]:
    """Two tests that allow for dependence along a run, on ``differences`` ``[steps, seeds]``."""
    count = len(differences) if differences.shape[1] else 0
    kept = "a difference that grows along the run counts as scatter"
    why = ""
    if count < FEWEST_PROBES:
        why = f"takes {FEWEST_PROBES} or more steps that both sides have, not {count}"
    elif is_constant(differences.mean(axis=1)):
        why = "the difference does not vary"
    found, note = {}, why
    if not why:
        result = stationary_bootstrap(differences)
        found = {"interval_low": result.low, "interval_high": result.high,
                 "p_value": result.p_value}  # fmt: skip
        note = (
            f"unit: a stretch of {result.length:g} probes on average, of all "
            f"{differences.shape[1]} seeds together, less the baseline; of {count} probes, which "
            f"is few: the interval is still too narrow; {kept}"
        )
    yield Row(
        "block bootstrap", **where, statistic="difference of means",
        value=described["difference"], **found, **described, note=note,
    )  # fmt: skip
    found, note = {"difference": described["difference"]}, why
    if not why:
        result = segment_t_test(differences)
        found = {"value": result.t, "dof": result.dof, "p_value": result.p_value,
                 "interval_low": result.low, "interval_high": result.high, "n_a": SEGMENTS,
                 "n_b": SEGMENTS, "difference": result.mean}  # fmt: skip
        note = (
            f"unit: the mean difference over a {SEGMENTS}th of the run, all "
            f"{differences.shape[1]} seeds together; {kept}; these very seeds, not others"
        )
    yield Row("segment t", **where | {"unit": "segment"}, statistic="t", **found, note=note)


def fork_rows(forks: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Everything about the fork experiment; ``baseline`` is the control's schedule name."""
    groups = conditions(probe_table(forks))
    for name, probes in groups.items():
        yield from summary_rows(name, probes)
    control = groups.pop(baseline, next(iter(groups.values()), pd.DataFrame()).iloc[:0])
    for name, probes in groups.items():
        comparison = f"{name} v {baseline}"
        yield from seed_rows(comparison, probes, control)
        yield from probe_rows(comparison, probes, control)
