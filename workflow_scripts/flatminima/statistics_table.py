"""``statistics.csv``: tests of the forks (section 5), kurtosis (4.5) and bit widths (4.4).

A comparison is made several times: with the run, the probe, a segment of the run and a
stretch of the validation text as the unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from scipy import stats

from flatminima import intervals
from flatminima.absent_steps import even_steps, hole_words
from flatminima.hypothesis_tests import (
    ONE_RUN,
    PROBES_DEPEND,
    Row,
    correlations,
    describe,
    exact_tests,
    in_families,
    is_constant,
    join_notes,
    moments,
    paired_tests,
    t_columns,
    t_tests,
)
from flatminima.paper import PAPER_KURTOSIS_CHECKPOINTS
from flatminima.quantizer_specs import FP32, LOW_BIT

BLOCKS = 8  # stretches of the run over which the losses of two bit widths are summed
_KEYS = ["schedule", "seed", "step"]
_GROWTH_IS_SCATTER = "a difference that grows along the run counts as scatter"


# ---- forks (section 5) -----------------------------------------------------------------------


def conditions(forks: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The probes of each condition of Table 2, in the order of the table.

    A schedule with phases is two conditions: its cool probes, and all its probes. A table has
    a row per probe: schedule, seed, step, update_phase, gap_pct and both perplexities.
    """
    columns = [*_KEYS, "update_phase", "gap_pct", "ppl"]
    low_bit = forks.loc[forks["role"] == LOW_BIT, columns].rename(columns={"ppl": "low_bit_ppl"})
    fp32 = forks.loc[forks["role"] == FP32, [*_KEYS, "ppl"]].rename(columns={"ppl": "fp32_ppl"})
    probes = low_bit.fillna({"update_phase": ""}).merge(fp32, on=_KEYS, validate="one_to_one")

    by_condition = {}
    for schedule, rows in probes.groupby("schedule", sort=False):
        if (rows["update_phase"] != "").any():
            by_condition[f"{schedule} cool"] = rows[rows["update_phase"] == "cool"]
            by_condition[f"{schedule} all"] = rows
        else:
            by_condition[str(schedule)] = rows
    return by_condition


def split_control(
    by_condition: Mapping[str, pd.DataFrame], baseline: str
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The control's probes, and those of the other conditions by name.

    The control's table has no rows if the experiment lacks the control.
    """
    others = dict(by_condition)
    if baseline in others:
        return others.pop(baseline), others
    any_table = next(iter(others.values()), pd.DataFrame())
    return any_table.iloc[:0], others


def by_seed(probes: pd.DataFrame, column: str, how: str) -> pd.Series:
    """Each seed's ``final`` value or ``mean`` over its probes."""
    groups = probes.sort_values("step").groupby("seed")[column]
    return groups.last() if how == "final" else groups.mean()


def fork_rows(forks: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """All rows about the fork experiment; ``baseline`` is the control's schedule name.

    The unit is the run (paired and unpaired), and the probe, with all seeds pooled as in
    section 5.2. A condition is compared with the control's probes at the same steps.
    """
    by_condition = conditions(forks)
    for name, probes in by_condition.items():
        yield from summary_rows(name, probes)

    control, others = split_control(by_condition, baseline)
    for name, probes in others.items():
        yield from _comparison_rows(probes, control, f"{name} v {baseline}")


def _comparison_rows(probes: pd.DataFrame, control: pd.DataFrame, comparison: str) -> Iterator[Row]:
    """All rows about one condition and the control."""
    matching_control = control[control["step"].isin(probes["step"])]
    has_all_steps = len(matching_control) == len(control)

    # The run as the unit.
    note = join_notes(ONE_RUN, "" if has_all_steps else "baseline at the same steps")
    for how in ("final", "mean"):
        condition_values = by_seed(probes, "gap_pct", how)
        control_values = by_seed(matching_control, "gap_pct", how)
        yield from seed_rows(condition_values, control_values, comparison, f"{how}_gap_pct", note)

    # The probe as the unit.
    row_labels = {"unit": "probe", "measure": "gap_pct"}
    matched_labels = {**row_labels, "comparison": f"{comparison} (matching steps)"}
    gaps = probes["gap_pct"].to_numpy()
    control_gaps = matching_control["gap_pct"].to_numpy()
    yield from t_tests(gaps, control_gaps, matched_labels, PROBES_DEPEND)
    yield from exact_tests(gaps, control_gaps, matched_labels, PROBES_DEPEND)

    # A part of the run as the unit.
    differences = _gaps_by_step_and_seed(probes) - _gaps_by_step_and_seed(matching_control)
    differences = differences.dropna(axis="columns", how="all").dropna()
    yield from block_rows(differences.to_numpy(float), matched_labels, describe(gaps, control_gaps))

    # The paper does not say whether it compared with all probes of the control.
    if not has_all_steps:
        all_labels = {**row_labels, "comparison": f"{comparison} (all probes)"}
        yield from t_tests(gaps, control["gap_pct"].to_numpy(), all_labels, PROBES_DEPEND)


def _gaps_by_step_and_seed(probes: pd.DataFrame) -> pd.DataFrame:
    return probes.pivot(index="step", columns="seed", values="gap_pct")


def cooled_rows(cooled: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Forks compared at equal learning rates, after the same cool-down; the unit is the run."""
    measure = "cooled_gap_pct"
    note = join_notes(ONE_RUN, "after a common cool-down to the lowest rate")
    low_bit = cooled[cooled["role"] == LOW_BIT]
    gaps_by_schedule = {
        name: rows.set_index("seed")["gap_pct"]
        for name, rows in low_bit.groupby("schedule", sort=False)
    }
    for name, gaps in gaps_by_schedule.items():
        yield _summary(name, "seed", measure, gaps, note)

    control_gaps = gaps_by_schedule.pop(baseline, pd.Series(dtype=float))
    for name, gaps in gaps_by_schedule.items():
        yield from seed_rows(gaps, control_gaps, f"{name} v {baseline}", measure, note)


def seed_rows(
    a: pd.Series, b: pd.Series, comparison: str, measure: str, note: str
) -> Iterator[Row]:
    """Tests of two conditions with one value per seed, paired and unpaired."""
    labels = {"comparison": comparison, "unit": "seed", "measure": measure}
    yield from paired_tests((a - b).dropna().to_numpy(), labels, note)
    yield from exact_tests(a.to_numpy(), b.to_numpy(), labels, note)
    yield from t_tests(a.to_numpy(), b.to_numpy(), labels, note)


def block_rows(differences: np.ndarray, labels: dict, moments_of_probes: dict) -> Iterator[Row]:
    """Two tests that allow for dependence along a run, on ``differences`` ``[steps, seeds]``.

    ``moments_of_probes`` are the columns that ``describe`` gives for the same probes.
    """
    steps, seeds = differences.shape
    # Without a common seed there are no differences, however many steps both sides have.
    if seeds == 0:
        steps = 0

    bootstrap_columns = {}
    segment_columns = {"difference": moments_of_probes["difference"]}
    obstacle = ""
    if steps < intervals.FEWEST_PROBES:
        obstacle = (
            f"takes {intervals.FEWEST_PROBES} or more steps that both sides have, not {steps}"
        )
    elif is_constant(differences.mean(axis=1)):
        obstacle = "the difference does not vary"

    if obstacle:
        bootstrap_columns["note"] = obstacle
        segment_columns["note"] = obstacle
    else:
        bootstrap_columns = _bootstrap_columns(differences)
        segment_columns = _segment_columns(differences)
    yield Row(
        "block bootstrap",
        **labels,
        statistic="difference of means",
        value=moments_of_probes["difference"],
        **moments_of_probes,
        **bootstrap_columns,
    )
    yield Row("segment t", **{**labels, "unit": "segment"}, statistic="t", **segment_columns)


def _bootstrap_columns(differences: np.ndarray) -> dict:
    """Columns of the stationary bootstrap over ``differences`` ``[steps, seeds]``."""
    steps, seeds = differences.shape
    low, high, p_value, length = intervals.stationary_bootstrap(differences)
    note = (
        f"unit: a stretch of {length} probes on average, of all {seeds} seeds together, less "
        f"the baseline; of {steps} probes, which is few: the interval is still too narrow; "
        f"{_GROWTH_IS_SCATTER}"
    )
    return {"interval_low": low, "interval_high": high, "p_value": p_value, "note": note}


def _segment_columns(differences: np.ndarray) -> dict:
    """Columns of the t-test of the means of a few long segments."""
    seeds = differences.shape[1]
    means = intervals.segment_means(differences)
    note = (
        f"unit: the mean difference over a {len(means)}th of the run, all {seeds} seeds "
        f"together; {_GROWTH_IS_SCATTER}; these very seeds, not others"
    )
    return {
        **t_columns(stats.ttest_1samp(means, 0.0)),
        "difference": means.mean(),
        "n_a": len(means),
        "n_b": len(means),
        "note": note,
    }


def summary_rows(condition: str, probes: pd.DataFrame) -> Iterator[Row]:
    """Mean and standard deviation over seeds, and over all probes pooled."""
    last_probes = probes[probes["step"] == probes["step"].max()]
    final_note = "no such probe"
    if len(last_probes):
        final_note = f"last probe at step {last_probes['step'].iloc[0]}"
    phases = sorted(set(last_probes["update_phase"]) - {""})
    if phases:
        final_note += f", which is a {' and '.join(phases)} probe"
    probes_per_seed = len(probes) // max(1, probes["seed"].nunique())
    mean_note = f"mean over {probes_per_seed} probes of each seed"

    for column in ("gap_pct", "fp32_ppl", "low_bit_ppl"):
        for how, note in (("final", final_note), ("mean", mean_note)):
            seed_values = by_seed(probes, column, how)
            yield _summary(condition, "seed", f"{how}_{column}", seed_values, note)
    yield _summary(condition, "probe", "gap_pct", probes["gap_pct"], "all seeds pooled")


def _summary(condition: str, unit: str, measure: str, sample: pd.Series, note: str) -> Row:
    columns = moments(sample, "a")
    return Row("summary", condition, unit, measure, "mean", columns["mean_a"], **columns, note=note)


# ---- kurtosis and bit widths along the run (sections 4.5 and 4.4) ----------------------------


def _curve(audit: pd.DataFrame, role: str, column: str, steps: Sequence[int]) -> np.ndarray:
    """One column of the audit at ``steps``, ``[steps]``."""
    by_step = audit[audit["role"] == role].set_index("step")[column]
    return by_step.loc[list(steps)].to_numpy(float)


def late_checkpoints(phases: Mapping) -> tuple[str, int]:
    """Name and first step of the checkpoints of section 4.5.

    They are phase 3, or without an onset the checkpoints from FP32 convergence on.
    """
    onset_step = phases["onset"]["step"]
    if onset_step is not None:
        return "phase 3", onset_step
    return "after convergence", phases["convergence"]["step"]


def kurtosis_rows(
    kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, spacing: int
) -> Iterator[Row]:
    """Section 4.5: weight kurtosis against the low-bit gap.

    Three selections of checkpoints are compared: all evenly spaced ``late_checkpoints``, 16
    that are spread evenly over the grid (the paper's number), and the late ones of these.
    """
    steps = even_steps(np.intersect1d(audit["step"], kurtosis["step"]), spacing)
    holes_note = hole_words(steps, spacing, phases)
    late, start = late_checkpoints(phases)
    fallback = "no onset, so from FP32 convergence on" if phases["onset"]["step"] is None else ""
    late_note = join_notes(fallback, holes_note)
    spread_note = join_notes("16 checkpoints spread evenly over all phases", holes_note)

    spread_count = min(len(steps), PAPER_KURTOSIS_CHECKPOINTS)
    spread_positions = np.linspace(0, len(steps) - 1, spread_count)
    spread_steps = steps[np.round(spread_positions).astype(int)]

    selections = [
        (late, steps[steps >= start], late_note),
        ("16 checkpoints", spread_steps, spread_note),
        (f"16 checkpoints, {late}", spread_steps[spread_steps >= start], late_note),
    ]
    for statistic in ("mean_over_tensors", "pooled"):
        rows = kurtosis[kurtosis["statistic"] == statistic]
        excess_kurtosis = rows.set_index("step")["excess_kurtosis"]
        for selection, selected_steps, note in selections:
            labels = {
                "comparison": f"kurtosis {statistic} v low_bit gap ({selection})",
                "unit": "checkpoint",
                "measure": "excess_kurtosis, gap_pct",
            }
            gap = _curve(audit, LOW_BIT, "gap_pct", selected_steps)
            kurtosis_curve = excess_kurtosis[selected_steps].to_numpy(float)
            yield from correlations(kurtosis_curve, gap, labels, note)


def bit_width_rows(
    audit: pd.DataFrame, spacing: int, phases: Mapping = MappingProxyType({})
) -> Iterator[Row]:
    """Section 4.4: does the high-bit delta NLL grow in proportion to the low-bit one?

    The deltas are correlated along the evenly spaced checkpoints. On sums over ``BLOCKS``
    stretches of the run follow the slope of ln(high) on ln(low), where 1 means proportional,
    and the ratio low/high. ``phases`` is phases.json, which lists the diverged checkpoints.
    """
    steps = even_steps(audit["step"], spacing)
    holes_note = hole_words(steps, spacing, phases)
    measure = "delta_nll_nats_per_token"
    high = _curve(audit, "high_bit", measure, steps)
    low = _curve(audit, LOW_BIT, measure, steps)
    comparison = "high_bit v low_bit (even steps)"
    labels = {"comparison": comparison, "unit": "checkpoint", "measure": measure}
    yield from correlations(high, low, labels, holes_note)

    # Single high-bit deltas are as small as their scatter, and many are negative. Logarithms
    # of only the positive ones would select by sign, so sums over stretches are taken.
    fit = _fit_stretches(low, high)
    note = join_notes(f"sums over {BLOCKS} stretches of the run", holes_note)
    if fit is None:
        fit = StretchFit(slope_columns={"n_a": 0, "n_b": 0}, ratio_interval={})
        note = f"{note}; needs stretches whose sums of both deltas are positive"
        ratio_note = note
    else:
        ratio_note = f"interval: of the geometric mean over stretches; {note}"
    yield Row(
        "log-log regression",
        comparison,
        "stretch",
        f"ln {measure}",
        statistic="slope",
        **fit.slope_columns,
        note=note,
    )
    yield Row(
        "ratio",
        comparison,
        "stretch",
        measure,
        statistic="sum low_bit/sum high_bit",
        value=low.sum() / high.sum() if high.sum() > 0.0 else np.nan,
        **fit.ratio_interval,
        n_a=len(steps),
        n_b=len(steps),
        note=ratio_note,
    )


@dataclass(frozen=True)
class StretchFit:
    """Columns of the slope of ln(high) on ln(low), and the interval of the ratio low/high."""

    slope_columns: Mapping[str, float]
    ratio_interval: Mapping[str, float]


def _fit_stretches(low: np.ndarray, high: np.ndarray) -> StretchFit | None:
    """Fit the sums of both deltas ``[checkpoints]`` over ``BLOCKS`` stretches of the run.

    ``None`` if there are too few checkpoints, or if a sum is not positive.
    """
    low_sums = [stretch.sum() for stretch in np.array_split(low, BLOCKS)]
    high_sums = [stretch.sum() for stretch in np.array_split(high, BLOCKS)]
    if len(low) < BLOCKS or np.min([low_sums, high_sums]) <= 0.0:
        return None
    log_low, log_high = np.log([low_sums, high_sums])

    slope_columns = {"n_a": BLOCKS, "n_b": BLOCKS}
    if not is_constant(log_low):
        line = stats.linregress(log_low, log_high)
        slope_columns |= {"value": line.slope, "dof": BLOCKS - 2}
        slope_columns |= _ends(intervals.t_interval(line.slope, line.stderr, BLOCKS - 2))

    log_ratio = log_low - log_high
    mean_interval = intervals.t_interval(np.mean(log_ratio), stats.sem(log_ratio), BLOCKS - 1)
    return StretchFit(slope_columns, _ends(np.exp(mean_interval)))


def _ends(interval: Sequence[float]) -> dict[str, float]:
    low, high = interval
    return {"interval_low": low, "interval_high": high}


# ---- the validation text as the unit ---------------------------------------------------------


def read_fork_sequences(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Per-sequence scores of all forks from ``{schedule}-seed{seed}.parquet``.

    Columns: schedule, seed, step, quantizer, role, sequence, nll_nats, scored. Rows are those
    of full precision and of the low-bit quantizer.
    """
    columns = ["step", "quantizer", "role", "sequence", "nll_nats", "scored"]
    tables = []
    for path in map(Path, paths):
        schedule, _, seed = path.stem.rpartition("-seed")
        table = pd.read_parquet(path, columns=columns, filters=[("role", "in", [FP32, LOW_BIT])])
        tables.append(table.assign(schedule=schedule, seed=int(seed)))
    return pd.concat(tables, ignore_index=True)


def text_rows(
    sequences: pd.DataFrame, forks: pd.DataFrame, baseline: str, *, resamples: int, seed: int
) -> Iterator[Row]:
    """Interval of each condition's gap, and of its difference from ``baseline``, over the text.

    ``sequences`` is from ``read_fork_sequences``, ``forks`` is forks.csv. The gap is the mean
    over seeds of the last probe (final) or of all probes of the condition (mean). The baseline
    is taken at the same steps. All runs share one draw of text. Raises ``KeyError`` if a probe
    of ``forks`` has no scores.
    """
    scores = intervals.paired_scores(sequences, _KEYS)
    gap_draws = _gap_draws(scores, resamples=resamples, seed=seed)
    stretches = min(intervals.STRETCHES, len(scores.scored))
    note = f"unit: one of {stretches} stretches of the text; other text for these very runs"

    def row(
        comparison: str, measure: str, statistic: str, draws: np.ndarray, **columns: float
    ) -> Row:
        # The first entry is the measured value. The resampled values come after it.
        low, high = intervals.percentile_interval(draws[1:])
        return Row(
            "paired bootstrap",
            comparison,
            "text",
            measure,
            statistic,
            value=draws[0],
            interval_low=low,
            interval_high=high,
            n_a=stretches,
            **columns,
            note=note,
        )

    by_condition = conditions(forks)
    for name, probes in by_condition.items():
        # Each seed ends at its own last probe, which a diverged run reaches earlier.
        last_steps = probes.groupby("seed")["step"].transform("max")
        probes_by_measure = {
            "final_gap_pct": probes[last_steps == probes["step"]],
            "mean_gap_pct": probes,
        }
        for measure, measured_probes in probes_by_measure.items():
            if measured_probes.empty:
                continue
            draws = _mean_over_seeds(gap_draws, measured_probes)
            yield row(name, measure, "mean over seeds", draws, mean_a=draws[0])

            # No rows, but the right columns, where the suite has no control.
            control = by_condition.get(baseline, probes.iloc[:0])
            control = control[control["step"].isin(measured_probes["step"])]
            if name == baseline or control.empty:
                continue
            control_draws = _mean_over_seeds(gap_draws, control)
            differences = draws - control_draws
            yield row(
                f"{name} v {baseline}",
                measure,
                "difference of means",
                differences,
                mean_a=draws[0],
                mean_b=control_draws[0],
                difference=differences[0],
                n_b=stretches,
                p_value=intervals.two_sided_p(differences[1:]),
            )


def _gap_draws(scores: intervals.PairedScores, *, resamples: int, seed: int) -> pd.DataFrame:
    """Low-bit gap of each probe in percent: first as measured, then on resampled text.

    The index is schedule, seed and step.
    """
    resampled = intervals.resampled_means(scores, resamples=resamples, seed=seed)
    means = np.column_stack([scores.mean_nll(), resampled])
    gaps = pd.DataFrame(intervals.gap_pct(means, means[scores.reference]))
    gaps = gaps.set_index(pd.MultiIndex.from_frame(scores.rows[_KEYS]))
    return gaps[(scores.rows["role"] == LOW_BIT).to_numpy()]


def _mean_over_seeds(gap_draws: pd.DataFrame, probes: pd.DataFrame) -> np.ndarray:
    """Mean over seeds of each seed's mean over its ``probes``, ``[draws]``."""
    weights = 1.0 / probes.groupby("seed")["step"].transform("size").to_numpy()
    probe_draws = gap_draws.loc[pd.MultiIndex.from_frame(probes[_KEYS])].to_numpy()
    return np.einsum("p,pr->r", weights / weights.sum(), probe_draws)


# ---- all of it -------------------------------------------------------------------------------


def all_statistics(
    forks: pd.DataFrame,
    audit: pd.DataFrame,
    kurtosis: pd.DataFrame,
    phases: dict,
    *,
    spacing: int,
    baseline: str,
    primary: Mapping[str, str] | None = None,
    cooled: pd.DataFrame | None = None,
    sequences: pd.DataFrame | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Contents of ``statistics.csv``; ``spacing`` is the distance of evenly spaced steps.

    ``cooled`` is cooled.csv: the forks after a common cool-down, compared at equal rates.
    ``primary`` names the one test that was chosen beforehand (``in_families``).
    ``sequences`` are the forks' scores (``read_fork_sequences``), ``resamples`` and ``seed``
    those of the bootstrap over them.
    """
    rows = [*fork_rows(forks, baseline)]
    if cooled is not None:
        rows += cooled_rows(cooled, baseline)
    if sequences is not None:
        rows += text_rows(sequences, forks, baseline, resamples=resamples, seed=seed)
    rows += kurtosis_rows(kurtosis, audit, phases, spacing)
    rows += bit_width_rows(audit, spacing, phases)
    return in_families(rows, primary)
