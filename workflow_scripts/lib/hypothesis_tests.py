"""The tests of sections 4 and 5 of the paper, and beside each what it hides.

Every result is one row of ``statistics.csv`` with the columns ``COLUMNS``. What
cannot be computed (one seed, no variance, no such probes) is a row with an empty
value and a note that says why. scipy does the arithmetic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import comb

import numpy as np
import pandas as pd
from scipy import stats

from workflow_scripts.lib.roles import FP32

PROBES_DEPEND = "probes of one run are not independent, so this p is too small"
CHECKPOINTS_DEPEND = "neighbouring checkpoints are not independent, so this p is too small"
PAPER_KURTOSIS_CHECKPOINTS = 16
SMALL_SAMPLE = 20
_NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """One row of ``statistics.csv``.

    ``unit`` is what counts as one observation; ``a`` and ``b`` are the two sides of
    ``comparison`` in its order ("a v b"); ``difference`` is mean a minus mean b and
    ``effect_size`` Cohen's d. ``measure`` names the compared quantity with its unit.
    """

    test: str
    comparison: str
    unit: str
    measure: str
    statistic: str
    value: float = _NAN
    dof: float = _NAN
    p_value: float = _NAN
    n_a: int = 0
    n_b: int | None = None
    mean_a: float = _NAN
    sd_a: float = _NAN
    mean_b: float = _NAN
    sd_b: float = _NAN
    difference: float = _NAN
    effect_size: float = _NAN
    note: str = ""


COLUMNS = [field.name for field in fields(Row)]


def _note(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _mean(sample: np.ndarray) -> float:
    return float(np.mean(sample)) if len(sample) else _NAN


def _sd(sample: np.ndarray) -> float:
    return float(np.std(sample, ddof=1)) if len(sample) > 1 else _NAN


def _constant(sample: np.ndarray) -> bool:
    """No spread beyond rounding, where scipy would divide noise by noise."""
    return len(sample) < 2 or np.ptp(sample) <= 1e-12 * max(1e-300, np.abs(sample).max())


def _describe(a: np.ndarray, b: np.ndarray) -> dict:
    """Sizes, means, sample standard deviations, difference and Cohen's d of two samples."""
    described = {
        "n_a": len(a), "n_b": len(b), "mean_a": _mean(a), "sd_a": _sd(a),
        "mean_b": _mean(b), "sd_b": _sd(b), "difference": _mean(a) - _mean(b),
    }  # fmt: skip
    if len(a) > 1 and len(b) > 1 and not (_constant(a) and _constant(b)):
        pooled = ((len(a) - 1) * np.var(a, ddof=1) + (len(b) - 1) * np.var(b, ddof=1)) / (
            len(a) + len(b) - 2
        )
        described["effect_size"] = float(described["difference"] / np.sqrt(pooled))
    return described


def smallest_p(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of an exact rank or permutation test of ``n_a`` and ``n_b`` units."""
    return min(1.0, 2.0 / comb(n_a + n_b, n_a))


def t_tests(a: np.ndarray, b: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Student's and Welch's two-sample t-test; ``where`` holds comparison, unit and measure."""
    if min(len(a), len(b)) < 2:
        why = f"a t-test takes two or more units on each side, not {len(a)} and {len(b)}"
    else:
        why = "no variance on either side" if _constant(a) and _constant(b) else ""
    for test, equal in (("Student t", True), ("Welch t", False)):
        found = {}
        if not why:
            result = stats.ttest_ind(a, b, equal_var=equal)
            found = {
                "value": float(result.statistic),
                "dof": float(result.df),
                "p_value": float(result.pvalue),
            }
        yield Row(test, **where, statistic="t", **found, **_describe(a, b), note=_note(note, why))


def exact_tests(a: np.ndarray, b: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Pairwise wins with the exact Mann-Whitney p, and a permutation test of the means.

    A win is a pair in which ``a`` is lower, as in the paper's Table 2. Both tests are
    two-sided; with more than 9,999 permutations a seeded sample of them is used.
    """
    described = _describe(a, b)
    floor = f"smallest two-sided p of {len(a)} v {len(b)} units: {smallest_p(len(a), len(b)):.3g}"
    wins, p, why = _NAN, _NAN, "no pairs"
    if len(a) and len(b):
        wins = int((a[:, None] < b).sum())
        why = "ties, for which the exact distribution does not hold"
        if len(np.unique(np.concatenate([a, b]))) == len(a) + len(b):
            p, why = float(stats.mannwhitneyu(a, b, method="exact").pvalue), ""
    pairs = f"of {len(a) * len(b)} pairs; p: exact Mann-Whitney"
    yield Row(
        "pairwise wins", **where, statistic="wins", value=wins, p_value=p, **described,
        note=_note(note, pairs, why, floor),
    )  # fmt: skip
    p, why = _NAN, "takes two or more units on each side"
    if min(len(a), len(b)) > 1:
        why = ""
        p = stats.permutation_test(
            (a, b), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), vectorized=True,
            rng=np.random.default_rng(0),
        ).pvalue  # fmt: skip
    yield Row(
        "permutation", **where, statistic="difference of means", value=described["difference"],
        p_value=float(p), **described, note=_note(note, why, floor),
    )  # fmt: skip


def _rank_permutation_p(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sided p of Spearman's rho by permutation: exact up to 7 pairs, then sampled."""
    ranks = stats.zscore(stats.rankdata(y))
    return stats.permutation_test(
        (stats.zscore(stats.rankdata(x)),), lambda r, axis: (r * ranks).mean(axis=axis),
        vectorized=True, permutation_type="pairings", rng=np.random.default_rng(0),
    ).pvalue  # fmt: skip


def correlations(x: np.ndarray, y: np.ndarray, where: dict, note: str = "") -> Iterator[Row]:
    """Pearson's and Spearman's correlation of paired observations ``[n]``."""
    described = {k: v for k, v in _describe(x, y).items() if k not in ("difference", "effect_size")}
    why = ""
    if len(x) < 3:
        why = f"a correlation takes three or more observations, not {len(x)}"
    elif _constant(x) or _constant(y):
        why = "one side does not vary"
    tests = (("Pearson r", "r", stats.pearsonr), ("Spearman rho", "rho", stats.spearmanr))
    for test, statistic, function in tests:
        found, how = {}, ""
        if not why:
            result = function(x, y)
            p = float(result.pvalue)
            # The t approximation gives p = 0 where few ranks agree completely.
            if function is stats.spearmanr and len(x) < SMALL_SAMPLE:
                p, how = float(_rank_permutation_p(x, y)), "p: permutation of ranks"
            found = {"value": float(result.statistic), "p_value": p, "dof": len(x) - 2}
        yield Row(
            test, **where, statistic=statistic, **found, **described, note=_note(note, how, why)
        )


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
    mean, sd = _mean(sample), _sd(sample)
    return Row(
        "summary", condition, unit, measure, "mean", value=mean, n_a=len(sample), mean_a=mean,
        sd_a=sd, note=note,
    )  # fmt: skip


def seed_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """Compare one condition with the baseline, the seed being the unit."""
    matching = baseline[baseline["step"].isin(probes["step"])]
    note = "baseline at the same steps" if len(matching) < len(baseline) else ""
    for how in ("final", "mean"):
        a, b = by_seed(probes, "gap_pct", how), by_seed(matching, "gap_pct", how)
        where = {"comparison": comparison, "unit": "seed", "measure": f"{how}_gap_pct"}
        yield from exact_tests(a.to_numpy(), b.to_numpy(), where, note)
        yield from t_tests(a.to_numpy(), b.to_numpy(), where, note)
        difference = (a - b).dropna().to_numpy()
        yield Row(
            "same-seed sign", **where, statistic="seeds lower", value=int((difference < 0).sum()),
            n_a=len(difference), n_b=len(difference), difference=_mean(difference),
            note=_note(note, f"of {len(difference)} seeds; a seed fixes the order of the data"),
        )  # fmt: skip


def pooled_rows(comparison: str, probes: pd.DataFrame, baseline: pd.DataFrame) -> Iterator[Row]:
    """Section 5.2's t-test: cool probes against the baseline's, all seeds pooled."""
    matching = baseline[baseline["step"].isin(probes["step"])]
    for label, others in (("matching steps", matching), ("all probes", baseline)):
        where = {"comparison": f"{comparison} ({label})", "unit": "probe", "measure": "gap_pct"}
        a, b = probes["gap_pct"].to_numpy(), others["gap_pct"].to_numpy()
        yield from t_tests(a, b, where, PROBES_DEPEND)


def fork_rows(forks: pd.DataFrame, baseline: str) -> Iterator[Row]:
    """Everything about the fork experiment; ``baseline`` is the control's schedule name."""
    groups = conditions(probe_table(forks))
    for name, probes in groups.items():
        yield from summary_rows(name, probes)
    control = groups.pop(baseline, next(iter(groups.values()), pd.DataFrame()).iloc[:0])
    for name, probes in groups.items():
        comparison = f"{name} v {baseline}"
        yield from seed_rows(comparison, probes, control)
        if name.endswith(" cool"):
            yield from pooled_rows(comparison, probes, control)


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
    note = "" if onset is not None else "no onset, so from FP32 convergence on"
    at = np.linspace(0, len(steps) - 1, min(len(steps), PAPER_KURTOSIS_CHECKPOINTS))
    spread = steps[np.round(at).astype(int)]
    chosen = {
        late: (steps[steps >= start], _note(note, CHECKPOINTS_DEPEND)),
        "16 checkpoints": (spread, "16 checkpoints spread evenly over all phases"),
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
    for label, steps in (("even steps", _even_steps(audit, spacing)), ("all", everything)):
        high, low = (
            _curve(audit, role, "delta_nll_nats_per_token", steps)
            for role in ("high_bit", "low_bit")
        )
        where = {"comparison": f"high_bit v low_bit ({label})", "unit": "checkpoint"}
        measure = "delta_nll_nats_per_token"
        yield from correlations(high, low, {**where, "measure": measure}, CHECKPOINTS_DEPEND)
        positive = (high > 0.0) & (low > 0.0)
        left_out = f"{int((~positive).sum())} checkpoints without positive deltas left out"
        x, y = np.log(low[positive]), np.log(high[positive])
        logs = {**where, "measure": f"ln {measure}"}
        yield from correlations(y, x, logs, _note(left_out, CHECKPOINTS_DEPEND))
        found, why = {}, "three or more differing checkpoints are needed"
        if len(x) > 2 and not _constant(x):
            fit = stats.linregress(x, y)
            found = {"value": float(fit.slope), "p_value": float(fit.pvalue), "dof": len(x) - 2}
            why = f"standard error {fit.stderr:.3g}; p is against slope 0; {CHECKPOINTS_DEPEND}"
        yield Row(
            "log-log regression", **logs, statistic="slope", **found, n_a=len(x), n_b=len(x),
            note=_note(left_out, why),
        )  # fmt: skip
        ratio = float(np.median(np.exp(x - y))) if len(x) else _NAN
        yield Row(
            "ratio", **where, measure=measure, statistic="median low_bit/high_bit", value=ratio,
            n_a=len(x), n_b=len(x), note=left_out,
        )  # fmt: skip


def all_statistics(
    forks: pd.DataFrame, audit: pd.DataFrame, kurtosis: pd.DataFrame, phases: dict, *,
    spacing: int, baseline: str,
) -> pd.DataFrame:  # fmt: skip
    """Contents of ``statistics.csv``; ``spacing`` is the distance of evenly spaced steps."""
    rows = [
        *fork_rows(forks, baseline),
        *kurtosis_rows(kurtosis, audit, phases, spacing),
        *bit_width_rows(audit, spacing),
    ]
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS).astype({"n_b": "Int64"})
