"""What ``statistics.csv`` compares: forks (section 5), kurtosis (4.5) and bit widths (4.4).

The same comparison stands with the run, the probe and a stretch of the text as the unit.
"""

from collections.abc import Iterator, Mapping, Sequence
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

_KEYS = ["schedule", "seed", "step"]
BLOCKS = 8


def conditions(forks: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Table 2's conditions in the order of the table: a schedule with phases counts twice.

    Each is a row per probe: schedule, seed, step, update_phase, gap_pct and both perplexities.
    """
    columns = [*_KEYS, "update_phase", "gap_pct", "ppl"]
    low_bit = forks.loc[forks["role"] == LOW_BIT, columns].rename(columns={"ppl": "low_bit_ppl"})
    fp32 = forks.loc[forks["role"] == FP32, [*_KEYS, "ppl"]].rename(columns={"ppl": "fp32_ppl"})
    probes = low_bit.fillna({"update_phase": ""}).merge(fp32, on=_KEYS, validate="one_to_one")
    found = {}
    for schedule, rows in probes.groupby("schedule", sort=False):
        cool, phased = rows[rows["update_phase"] == "cool"], (rows["update_phase"] != "").any()
        both = {f"{schedule} cool": cool, f"{schedule} all": rows}
        found |= both if phased else {str(schedule): rows}
    return found


def by_seed(probes: pd.DataFrame, column: str, how: str) -> pd.Series:
    """Each seed's ``final`` value or ``mean`` over its probes."""
    groups = probes.sort_values("step").groupby("seed")[column]
    return groups.last() if how == "final" else groups.mean()


def fork_rows(forks: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Everything about the fork experiment; ``baseline`` is the control's schedule name.

    The run is the unit, as pairs and unpaired, and the probe, all seeds pooled, as in section
    5.2; the baseline is taken at the steps that the condition has. Where these are fewer, the
    t-tests stand once more against all probes of the baseline: the paper does not say which of
    the two it did.
    """
    groups = conditions(forks)
    for name, probes in groups.items():
        yield from summary_rows(name, probes)
    control = groups.pop(baseline, next(iter(groups.values()), pd.DataFrame()).iloc[:0])
    for name, probes in groups.items():
        comparison = f"{name} v {baseline}"
        matching = control[control["step"].isin(probes["step"])]
        fewer = len(matching) < len(control)
        note = join_notes(ONE_RUN, "baseline at the same steps" if fewer else "")
        for how in ("final", "mean"):
            a, b = (by_seed(part, "gap_pct", how) for part in (probes, matching))
            yield from seed_rows(a, b, comparison, f"{how}_gap_pct", note)
        where = {"unit": "probe", "measure": "gap_pct"}
        at_these = where | {"comparison": f"{comparison} (matching steps)"}
        a, b = probes["gap_pct"].to_numpy(), matching["gap_pct"].to_numpy()
        yield from t_tests(a, b, at_these, PROBES_DEPEND)
        yield from exact_tests(a, b, at_these, PROBES_DEPEND)
        wide = {"index": "step", "columns": "seed", "values": "gap_pct"}
        differences = probes.pivot(**wide) - matching.pivot(**wide)
        differences = differences.dropna(axis="columns", how="all").dropna()
        yield from block_rows(differences.to_numpy(float), at_these, describe(a, b))
        if fewer:
            where = where | {"comparison": f"{comparison} (all probes)"}
            yield from t_tests(a, control["gap_pct"].to_numpy(), where, PROBES_DEPEND)


def cooled_rows(cooled: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Forks at equal rates: each after the same cool-down, the run being the unit."""
    measure, about = "cooled_gap_pct", "after a common cool-down to the lowest rate"
    note = join_notes(ONE_RUN, about)
    gaps = cooled[cooled["role"] == LOW_BIT].groupby("schedule", sort=False)
    gaps = {name: part.set_index("seed")["gap_pct"] for name, part in gaps}
    for name, gap in gaps.items():
        yield _summary(name, "seed", measure, gap, note)
    control = gaps.pop(baseline, pd.Series(dtype=float))
    for name, gap in gaps.items():
        yield from seed_rows(gap, control, f"{name} v {baseline}", measure, note)


def seed_rows(
    a: pd.Series, b: pd.Series, comparison: str, measure: str, note: str
) -> Iterator[Row]:
    """Two conditions with one value by seed, as pairs and unpaired."""
    where = {"comparison": comparison, "unit": "seed", "measure": measure}
    yield from paired_tests((a - b).dropna().to_numpy(), where, note)
    yield from exact_tests(a.to_numpy(), b.to_numpy(), where, note)
    yield from t_tests(a.to_numpy(), b.to_numpy(), where, note)


def block_rows(differences: np.ndarray, where: dict, described: dict) -> Iterator[Row]:
    """Two tests that allow for dependence along a run, on ``differences`` ``[steps, seeds]``."""
    seeds, difference = differences.shape[1], described["difference"]
    count, block, segment = len(differences) * bool(seeds), {}, {"difference": difference}
    if count < intervals.FEWEST_PROBES:
        why = f"takes {intervals.FEWEST_PROBES} or more steps that both sides have, not {count}"
        block["note"] = segment["note"] = why
    elif is_constant(differences.mean(axis=1)):
        block["note"] = segment["note"] = "the difference does not vary"
    else:
        low, high, p, length = intervals.stationary_bootstrap(differences)
        kept = "a difference that grows along the run counts as scatter"
        note = (
            f"unit: a stretch of {length} probes on average, of all {seeds} seeds together, less "
            f"the baseline; of {count} probes, which is few: the interval is still too narrow; "
        )
        block = {"interval_low": low, "interval_high": high, "p_value": p, "note": note + kept}
        means = intervals.segment_means(differences)
        segment = t_columns(stats.ttest_1samp(means, 0.0)) | {"difference": means.mean()}
        segment |= {"n_a": len(means), "n_b": len(means)}
        segment["note"] = (
            f"unit: the mean difference over a {len(means)}th of the run, all {seeds} seeds "
            f"together; {kept}; these very seeds, not others"
        )
    yield Row("block bootstrap", **where, statistic="difference of means", value=difference,
              **described, **block)  # fmt: skip
    yield Row("segment t", **where | {"unit": "segment"}, statistic="t", **segment)


def summary_rows(condition: str, probes: pd.DataFrame) -> Iterator[Row]:
    """Mean and standard deviation over seeds, and over all probes pooled."""
    last = probes[probes["step"] == probes["step"].max()]
    phases = sorted(set(last["update_phase"]) - {""})
    final = f"last probe at step {last['step'].iloc[0]}" if len(last) else "no such probe"
    final += f", which is a {' and '.join(phases)} probe" if phases else ""
    each = f"mean over {len(probes) // max(1, probes['seed'].nunique())} probes of each seed"
    for column in ("gap_pct", "fp32_ppl", "low_bit_ppl"):
        for how, note in (("final", final), ("mean", each)):
            sample = by_seed(probes, column, how)
            yield _summary(condition, "seed", f"{how}_{column}", sample, note)
    yield _summary(condition, "probe", "gap_pct", probes["gap_pct"], "all seeds pooled")


def _summary(condition: str, unit: str, measure: str, sample: pd.Series, note: str) -> Row:
    found = moments(sample, "a")
    return Row("summary", condition, unit, measure, "mean", found["mean_a"], **found, note=note)


def _curve(audit: pd.DataFrame, role: str, column: str, steps: Sequence[int]) -> np.ndarray:
    return audit[audit["role"] == role].set_index("step")[column].loc[list(steps)].to_numpy(float)


def late_checkpoints(phases: Mapping) -> tuple[str, int]:
    """Where section 4.5 looks: phase 3, or without an onset from FP32 convergence on."""
    if (onset := phases["onset"]["step"]) is not None:
        return "phase 3", onset
    return "after convergence", phases["convergence"]["step"]


def kurtosis_rows(
    kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, spacing: int
) -> Iterator[Row]:
    """Section 4.5: weight kurtosis against the low-bit gap.

    Over all evenly spaced ``late_checkpoints``, over 16 spread evenly over the grid, the number
    the paper took, and over the late ones of these.
    """
    steps = even_steps(np.intersect1d(audit["step"], kurtosis["step"]), spacing)
    lost = hole_words(steps, spacing, phases)
    late, start = late_checkpoints(phases)
    fallback = "no onset, so from FP32 convergence on" if phases["onset"]["step"] is None else ""
    note = join_notes(fallback, lost)
    at = np.linspace(0, len(steps) - 1, min(len(steps), PAPER_KURTOSIS_CHECKPOINTS))
    spread = steps[np.round(at).astype(int)]
    over_all = join_notes("16 checkpoints spread evenly over all phases", lost)
    chosen = [
        (late, steps[steps >= start], note),
        ("16 checkpoints", spread, over_all),
        (f"16 checkpoints, {late}", spread[spread >= start], note),
    ]
    for statistic in ("mean_over_tensors", "pooled"):
        measured = kurtosis[kurtosis["statistic"] == statistic].set_index("step")["excess_kurtosis"]
        for label, wanted, remark in chosen:
            where = {"comparison": f"kurtosis {statistic} v low_bit gap ({label})",
                     "unit": "checkpoint", "measure": "excess_kurtosis, gap_pct"}  # fmt: skip
            gap = _curve(audit, LOW_BIT, "gap_pct", wanted)
            yield from correlations(measured[wanted].to_numpy(float), gap, where, remark)


def bit_width_rows(
    audit: pd.DataFrame, spacing: int, phases: Mapping = MappingProxyType({})
) -> Iterator[Row]:
    """Section 4.4: does the high-bit delta NLL grow in proportion to the low-bit one?

    Correlation of the deltas along the evenly spaced checkpoints, and on sums over
    ``BLOCKS`` stretches of the run the slope of ln(high) on ln(low) (1 means proportional)
    and the ratio low/high. Single high-bit deltas are as small as their scatter, so
    logarithms of those that happen to be positive would be a selection by sign. ``phases`` says
    which of the absent checkpoints have diverged.
    """
    steps, measure = even_steps(audit["step"], spacing), "delta_nll_nats_per_token"
    lost = hole_words(steps, spacing, phases)
    ends = ("interval_low", "interval_high")
    high, low = (_curve(audit, role, measure, steps) for role in ("high_bit", LOW_BIT))
    where = {"comparison": "high_bit v low_bit (even steps)", "unit": "checkpoint"}
    yield from correlations(high, low, {**where, "measure": measure}, lost)
    where["unit"] = "stretch"
    note = join_notes(f"sums over {BLOCKS} stretches of the run", lost)
    slope = {"n_a": 0, "n_b": 0}
    ratio = {"value": low.sum() / high.sum() if high.sum() > 0.0 else np.nan}
    ratio |= {"n_a": len(steps), "n_b": len(steps)}
    sums = [[part.sum() for part in np.array_split(series, BLOCKS)] for series in (low, high)]
    if len(steps) < BLOCKS or np.min(sums) <= 0.0:
        note = of_ratio = f"{note}; needs stretches whose sums of both deltas are positive"
    else:
        of_ratio = f"interval: of the geometric mean over stretches; {note}"
        slope = {"n_a": BLOCKS, "n_b": BLOCKS}
        x, y = np.log(sums)
        if not is_constant(x):
            fit = stats.linregress(x, y)
            slope |= {"value": fit.slope, "dof": BLOCKS - 2}
            interval = intervals.t_interval(fit.slope, fit.stderr, BLOCKS - 2)
            slope |= dict(zip(ends, interval, strict=True))
        mean = intervals.t_interval(np.mean(x - y), stats.sem(x - y), BLOCKS - 1)
        ratio |= dict(zip(ends, np.exp(mean), strict=True))
    yield Row("log-log regression", **where, measure=f"ln {measure}", statistic="slope", **slope,
              note=note)  # fmt: skip
    yield Row("ratio", **where, measure=measure, statistic="sum low_bit/sum high_bit", **ratio,
              note=of_ratio)  # fmt: skip


def read_fork_sequences(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Per-sequence scores of all forks from ``{schedule}-seed{seed}.parquet``.

    Columns: schedule, seed, step, quantizer, role, sequence, nll_nats, scored; the rows of
    full precision and of the low-bit quantizer.
    """
    columns, tables = ["step", "quantizer", "role", "sequence", "nll_nats", "scored"], []
    for path in map(Path, paths):
        schedule, _, seed = path.stem.rpartition("-seed")
        table = pd.read_parquet(path, columns=columns, filters=[("role", "in", [FP32, LOW_BIT])])
        tables.append(table.assign(schedule=schedule, seed=int(seed)))
    return pd.concat(tables, ignore_index=True)


def text_rows(
    sequences: pd.DataFrame, forks: pd.DataFrame, baseline: str, *, resamples: int, seed: int
) -> Iterator[Row]:
    """Interval of each condition's gap, and of its difference from ``baseline``, over the text.

    ``sequences`` is as ``read_fork_sequences`` makes it, ``forks`` is forks.csv. The gap is
    the mean over seeds of the last probe (final) or of all probes of the condition (mean);
    the baseline is taken at the same steps. One draw of text serves all runs. Raises
    ``KeyError`` where a probe of ``forks`` has no scores.
    """
    scores = intervals.paired_scores(sequences, _KEYS)
    means = intervals.resampled_means(scores, resamples=resamples, seed=seed)
    # The measured value is the first column, its resamples the others.
    means = np.column_stack([scores.mean_nll(), means])
    gaps = pd.DataFrame(intervals.gap_pct(means, means[scores.reference])).set_index(
        pd.MultiIndex.from_frame(scores.rows[_KEYS])
    )[(scores.rows["role"] == LOW_BIT).to_numpy()]
    stretches = min(intervals.STRETCHES, len(scores.scored))
    note = f"unit: one of {stretches} stretches of the text; other text for these very runs"

    def over_seeds(probes: pd.DataFrame) -> np.ndarray:
        share = 1.0 / probes.groupby("seed")["step"].transform("size").to_numpy()
        chosen = gaps.loc[pd.MultiIndex.from_frame(probes[_KEYS])].to_numpy()
        return np.einsum("p,pr->r", share / share.sum(), chosen)

    def row(comparison: str, measure: str, statistic: str, draws: np.ndarray, **rest: float) -> Row:
        ends = intervals.percentile_interval(draws[1:])
        return Row("paired bootstrap", comparison, "text", measure, statistic, draws[0], *ends,
                   n_a=stretches, **rest, note=note)  # fmt: skip

    groups = conditions(forks)
    for name, probes in groups.items():
        last = probes[probes.groupby("seed")["step"].transform("max") == probes["step"]]
        for measure, chosen in (("final_gap_pct", last), ("mean_gap_pct", probes)):
            if chosen.empty:
                continue
            own = over_seeds(chosen)
            yield row(name, measure, "mean over seeds", own, mean_a=own[0])
            control = groups.get(baseline, probes.iloc[:0])
            control = control[control["step"].isin(chosen["step"])]
            if name != baseline and len(control):
                other = over_seeds(control)
                difference = own - other
                yield row(
                    f"{name} v {baseline}", measure, "difference of means", difference,
                    mean_a=own[0], mean_b=other[0], difference=difference[0], n_b=stretches,
                    p_value=intervals.two_sided_p(difference[1:]),
                )  # fmt: skip


def all_statistics(
    forks: pd.DataFrame, audit: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, *,
    spacing: int, baseline: str, primary: Mapping[str, str] | None = None,
    cooled: pd.DataFrame | None = None, sequences: pd.DataFrame | None = None,
    resamples: int = 1000, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Contents of ``statistics.csv``; ``spacing`` is the distance of evenly spaced steps.

    ``cooled`` is cooled.csv: the forks after a common cool-down, compared at equal rates.
    ``primary`` names the one test that was chosen beforehand (``in_families``).
    ``sequences`` holds the forks' scores (``read_fork_sequences``), ``resamples`` and ``seed``
    are those of the bootstrap over them.
    """
    rows = [*fork_rows(forks, baseline)]
    if cooled is not None:
        rows += cooled_rows(cooled, baseline)
    if sequences is not None:
        rows += text_rows(sequences, forks, baseline, resamples=resamples, seed=seed)
    rows += kurtosis_rows(kurtosis, audit, phases, spacing)
    rows += bit_width_rows(audit, spacing, phases)
    return in_families(rows, primary)
