"""What ``statistics.csv`` compares: forks (section 5), kurtosis (4.5) and bit widths (4.4).

The same comparison stands with the run, the probe and a stretch of the text as the unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.hypothesis_tests import (
    COLUMNS,
    NAN,
    ONE_RUN,
    PROBES_DEPEND,
    Row,
    adjust,
    correlations,
    describe,
    exact_tests,
    in_families,
    is_constant,
    join_notes,
    mean,
    paired_tests,
    standard_deviation,
    t_row,
    t_tests,
)
from flatminima.intervals import (
    CONFIDENCE,
    FEWEST_PROBES,
    SEGMENTS,
    STRETCHES,
    gap_pct,
    paired_scores,
    percentile_interval,
    resampled_means,
    segment_means,
    stationary_bootstrap,
    two_sided_p,
)
from flatminima.missing import even_steps, holes, missing_words
from flatminima.quantizer_specs import FP32, LOW_BIT

COOLED = "cooled_gap_pct"  # after a common cool-down


def probe_table(forks: pd.DataFrame) -> pd.DataFrame:
    """One row per probe: schedule, seed, step, update_phase, gap_pct and the two perplexities."""
    keys = ["schedule", "seed", "step"]
    columns = [*keys, "update_phase", "gap_pct", "ppl"]
    low_bit = forks.loc[forks["role"] == "low_bit", columns]
    low_bit = low_bit.rename(columns={"ppl": "low_bit_ppl"}).fillna({"update_phase": ""})
    fp32 = forks.loc[forks["role"] == FP32, [*keys, "ppl"]].rename(columns={"ppl": "fp32_ppl"})
    return low_bit.merge(fp32, on=keys, validate="one_to_one")


def conditions(probes: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Table 2's conditions in the order of the table: a schedule with phases counts twice."""
    found = {}
    for schedule, rows in probes.groupby("schedule", sort=False):
        if (rows["update_phase"] != "").any():
            found[f"{schedule} cool"] = rows[rows["update_phase"] == "cool"]
            found[f"{schedule} all"] = rows
        else:
            found[str(schedule)] = rows
    return found


def by_seed(probes: pd.DataFrame, column: str, how: str) -> pd.Series:
    """Each seed's ``final`` value or ``mean`` over its probes."""
    groups = probes.sort_values("step").groupby("seed")[column]
    return groups.last() if how == "final" else groups.mean()


def seed_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """Compare one condition with the baseline, the run being the unit: as pairs and unpaired."""
    matching = baseline[baseline["step"].isin(probes["step"])]
    note = join_notes(
        ONE_RUN, "baseline at the same steps" if len(matching) < len(baseline) else ""
    )
    for how in ("final", "mean"):
        a, b = by_seed(probes, "gap_pct", how), by_seed(matching, "gap_pct", how)
        where = {"comparison": comparison, "unit": "seed", "measure": f"{how}_gap_pct"}
        yield from _seed_tests(a, b, where, note)


def _seed_tests(a: pd.Series, b: pd.Series, where: dict, note: str) -> Iterator[Row]:
    """Seeds as pairs and unpaired; ``a`` and ``b`` hold one value by seed."""
    yield from paired_tests((a - b).dropna().to_numpy(), where, note)
    yield from exact_tests(a.to_numpy(), b.to_numpy(), where, note)
    yield from t_tests(a.to_numpy(), b.to_numpy(), where, note)


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
    by_step = (
        rows.pivot(index="step", columns="seed", values="gap_pct") for rows in (probes, matching)
    )
    differences = (next(by_step) - next(by_step)).dropna(axis="columns", how="all").dropna()
    yield from block_rows(differences.to_numpy(float), where, describe(a, b))
    if len(matching) < len(baseline):
        where = where | {"comparison": f"{comparison} (all probes)"}
        yield from t_tests(a, baseline["gap_pct"].to_numpy(), where, PROBES_DEPEND)


def block_rows(differences: np.ndarray, where: dict, described: dict) -> Iterator[Row]:
    """Two tests that allow for dependence along a run, on ``differences`` ``[steps, seeds]``."""
    count, seeds = differences.shape
    kept = "a difference that grows along the run counts as scatter"
    blocks, segments, notes = {}, {"difference": described["difference"]}, ("", "")
    if not seeds or count < FEWEST_PROBES:
        why = f"takes {FEWEST_PROBES} or more steps that both sides have, not {count * bool(seeds)}"
    elif is_constant(differences.mean(axis=1)):
        why = "the difference does not vary"
    else:
        why = ""
        found = stationary_bootstrap(differences)
        blocks = {"interval_low": found.low, "interval_high": found.high, "p_value": found.p_value}
        means = segment_means(differences)
        segments = t_row(stats.ttest_1samp(means, 0.0)) | {
            "n_a": SEGMENTS, "n_b": SEGMENTS, "difference": float(means.mean()),
        }  # fmt: skip
        notes = (
            f"unit: a stretch of {found.length:g} probes on average, of all {seeds} seeds "
            f"together, less the baseline; of {count} probes, which is few: the interval is still "
            f"too narrow; {kept}",
            f"unit: the mean difference over a {SEGMENTS}th of the run, all {seeds} seeds "
            f"together; {kept}; these very seeds, not others",
        )
    yield Row(
        "block bootstrap", **where, statistic="difference of means",
        value=described["difference"], **blocks, **described, note=why or notes[0],
    )  # fmt: skip
    yield Row(
        "segment t", **where | {"unit": "segment"}, statistic="t", **segments, note=why or notes[1]
    )


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


def cooled_rows(cooled: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Forks at equal rates: each after the same cool-down, the run being the unit."""
    last = probe_table(cooled).groupby("schedule", sort=False)
    gaps = {name: part.set_index("seed")["gap_pct"] for name, part in last}
    note = join_notes(ONE_RUN, "after a common cool-down to the lowest rate")
    for name, gap in gaps.items():
        yield _summary(name, "seed", COOLED, gap.to_numpy(), note)
    control = gaps.pop(baseline, pd.Series(dtype=float))
    for name, gap in gaps.items():
        where = {"comparison": f"{name} v {baseline}", "unit": "seed", "measure": COOLED}
        yield from _seed_tests(gap, control, where, note)


def summary_rows(condition: str, probes: pd.DataFrame) -> Iterator[Row]:
    """Mean and standard deviation over seeds, and over all probes pooled."""
    last = probes[probes["step"] == probes["step"].max()]
    phases = sorted(set(last["update_phase"]) - {""})
    final = f"last probe at step {last['step'].iloc[0]}" if len(last) else "no such probe"
    final += f", which is a {' and '.join(phases)} probe" if phases else ""
    for column in ("gap_pct", "fp32_ppl", "low_bit_ppl"):
        for how in ("final", "mean"):
            sample = by_seed(probes, column, how).to_numpy()
            each = len(probes) // max(1, len(sample))
            note = final if how == "final" else f"mean over {each} probes of each seed"
            yield _summary(condition, "seed", f"{how}_{column}", sample, note)
    yield _summary(condition, "probe", "gap_pct", probes["gap_pct"].to_numpy(), "all seeds pooled")


def _summary(condition: str, unit: str, measure: str, sample: np.ndarray, note: str) -> Row:
    return Row(
        "summary", condition, unit, measure, "mean", value=mean(sample), n_a=len(sample),
        mean_a=mean(sample), sd_a=standard_deviation(sample), note=note,
    )  # fmt: skip


PAPER_KURTOSIS_CHECKPOINTS = 16
BLOCKS = 8


def _curve(audit: pd.DataFrame, role: str, column: str, steps: Sequence[int]) -> np.ndarray:
    return audit[audit["role"] == role].set_index("step")[column].loc[list(steps)].to_numpy(float)


def kurtosis_rows(
    kurtosis: pd.DataFrame, audit: pd.DataFrame, phases: dict, spacing: int
) -> Iterator[Row]:
    """Section 4.5: weight kurtosis against the low-bit gap.

    Over all evenly spaced checkpoints of phase 3 (without an onset: from FP32
    convergence on), and over 16 spread evenly over the grid, the number the paper took.
    """
    steps = even_steps(audit["step"], spacing)
    onset = phases["onset"]["step"]
    late, start = ("phase 3", onset) if onset is not None else (
        "after convergence", phases["convergence"]["step"]
    )  # fmt: skip
    lost = missing_words(holes(steps, spacing))
    note = join_notes("" if onset is not None else "no onset, so from FP32 convergence on", lost)
    at = np.linspace(0, len(steps) - 1, min(len(steps), PAPER_KURTOSIS_CHECKPOINTS))
    spread = steps[np.round(at).astype(int)]
    chosen = {
        late: (steps[steps >= start], note),
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

    Correlation of the deltas along the evenly spaced checkpoints, and on sums over
    ``BLOCKS`` stretches of the run the slope of ln(high) on ln(low) (1 means proportional)
    and the ratio low/high. Single high-bit deltas are as small as their scatter, so
    logarithms of those that happen to be positive would be a selection by sign.
    """
    steps = even_steps(audit["step"], spacing)
    lost = missing_words(holes(steps, spacing))
    high, low = (
        _curve(audit, role, "delta_nll_nats_per_token", steps) for role in ("high_bit", "low_bit")
    )
    measure = "delta_nll_nats_per_token"
    where = {"comparison": "high_bit v low_bit (even steps)", "unit": "checkpoint"}
    yield from correlations(high, low, {**where, "measure": measure}, lost)
    sums = [
        np.array([part.sum() for part in np.array_split(series, BLOCKS)]) for series in (low, high)
    ]
    where = where | {"unit": "stretch"}
    note = join_notes(f"sums over {BLOCKS} stretches of the run", lost)
    whole = len(steps) >= BLOCKS and all((part > 0.0).all() for part in sums)
    why = "" if whole else "needs stretches whose sums of both deltas are positive"
    x, y = (np.log(part) if whole else np.zeros(0) for part in sums)
    found = {}
    if whole and not is_constant(x):
        fit = stats.linregress(x, y)
        half = fit.stderr * stats.t.ppf((1.0 + CONFIDENCE) / 2.0, BLOCKS - 2)
        found = {
            "value": float(fit.slope), "dof": BLOCKS - 2,
            "interval_low": float(fit.slope - half), "interval_high": float(fit.slope + half),
        }  # fmt: skip
    yield Row(
        "log-log regression", **where, measure=f"ln {measure}", statistic="slope", **found,
        n_a=len(x), n_b=len(x), note=join_notes(note, why),
    )  # fmt: skip
    found = {}
    if whole:
        half = stats.sem(x - y) * stats.t.ppf((1.0 + CONFIDENCE) / 2.0, BLOCKS - 1)
        middle = float(np.mean(x - y))
        found = {"interval_low": np.exp(middle - half), "interval_high": np.exp(middle + half)}
        note = join_notes("interval: of the geometric mean over stretches", note)
    ratio = low.sum() / high.sum() if len(high) and high.sum() > 0.0 else NAN
    yield Row(
        "ratio", **where, measure=measure, statistic="sum low_bit/sum high_bit",
        value=float(ratio), **found, n_a=len(steps), n_b=len(steps), note=join_notes(note, why),
    )  # fmt: skip


_KEYS = ["schedule", "seed", "step"]
_COLUMNS = ["step", "quantizer", "role", "sequence", "nll_nats", "scored"]


def read_fork_sequences(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Per-sequence scores of all forks from ``{schedule}-seed{seed}.parquet``.

    Columns: schedule, seed, step, quantizer, role, sequence, nll_nats, scored; the rows of
    full precision and of the low-bit quantizer. Raises ``ValueError`` for another name.
    """
    tables = []
    for path in map(Path, paths):
        schedule, _, seed = path.stem.rpartition("-seed")
        if not (schedule and seed.isdecimal()):
            raise ValueError(f"{path}: a fork's scores are named {{schedule}}-seed{{seed}}.parquet")
        table = pd.read_parquet(path, columns=_COLUMNS)
        table = table[table["role"].isin((FP32, LOW_BIT))]
        tables.append(table.assign(schedule=schedule, seed=int(seed)))
    return pd.concat(tables, ignore_index=True)


def text_rows(
    sequences: pd.DataFrame, forks: pd.DataFrame, baseline: str, *, resamples: int, seed: int
) -> Iterator[Row]:
    """Interval of each condition's gap, and of its difference from ``baseline``, over the text.

    ``sequences`` is as ``read_fork_sequences`` makes it, ``forks`` is forks.csv. The gap is
    the mean over seeds of the last probe (final) or of all probes of the condition (mean);
    the baseline is taken at the same steps. One draw of text serves all runs. Raises
    ``ValueError`` where a probe of ``forks`` has no scores.
    """
    scores = paired_scores(sequences, _KEYS)
    means = resampled_means(scores, resamples=resamples, seed=seed)
    # The measured value is the first column, its resamples the others.
    means = np.column_stack([scores.mean_nll(), means])
    gaps = pd.DataFrame(gap_pct(means, means[scores.reference])).set_index(
        pd.MultiIndex.from_frame(scores.rows[_KEYS])
    )[(scores.rows["role"] == LOW_BIT).to_numpy()]
    stretches = min(STRETCHES, len(scores.scored))
    note = f"unit: one of {stretches} stretches of the text; other text for these very runs"

    def over_seeds(probes: pd.DataFrame) -> np.ndarray:
        keys = pd.MultiIndex.from_frame(probes[_KEYS])
        if len(missing := keys.difference(gaps.index)):
            name, number, step = missing[0]
            raise ValueError(f"fork {name}, seed {number}, step {step}: no scores of sequences")
        share = 1.0 / probes.groupby("seed")["step"].transform("size").to_numpy()
        return np.einsum("p,pr->r", share / share.sum(), gaps.loc[keys].to_numpy())

    groups = conditions(probe_table(forks))
    for name, probes in groups.items():
        last = probes[probes.groupby("seed")["step"].transform("max") == probes["step"]]
        for measure, chosen in (("final_gap_pct", last), ("mean_gap_pct", probes)):
            if chosen.empty:
                continue
            where = {"unit": "text", "measure": measure, "n_a": stretches, "note": note}
            own = over_seeds(chosen)
            low, high = percentile_interval(own[1:])
            yield Row(
                "paired bootstrap", name, **where, statistic="mean over seeds", value=own[0],
                interval_low=low, interval_high=high, mean_a=own[0],
            )  # fmt: skip
            control = groups.get(baseline, probes.iloc[:0])
            control = control[control["step"].isin(chosen["step"])]
            if name == baseline or control.empty:
                continue
            other = over_seeds(control)
            low, high = percentile_interval(own[1:] - other[1:])
            yield Row(
                "paired bootstrap", f"{name} v {baseline}", **where,
                statistic="difference of means", value=own[0] - other[0], interval_low=low,
                interval_high=high, p_value=two_sided_p(own[1:] - other[1:]), n_b=stretches,
                mean_a=own[0], mean_b=other[0], difference=own[0] - other[0],
            )  # fmt: skip


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
    ``sequences`` holds the forks' scores (``read_fork_sequences``); without them the rows
    whose unit is the text are left out. ``resamples`` and ``seed`` are those of the
    bootstrap over text.
    """
    rows = [*fork_rows(forks, baseline)]
    if cooled is not None:
        rows += cooled_rows(cooled, baseline)
    if sequences is not None:
        rows += text_rows(sequences, forks, baseline, resamples=resamples, seed=seed)
    rows += [*kurtosis_rows(kurtosis, audit, phases, spacing), *bit_width_rows(audit, spacing)]
    table = pd.DataFrame([asdict(row) for row in in_families(rows, primary)], columns=COLUMNS)
    return adjust(table.astype({"n_b": "Int64"}))
