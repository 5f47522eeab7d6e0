"""The answers in numbers: findings.csv, which notebook and ledger read.

Every finding is a name, a value with its 95 % interval, the number of units behind it and
what they are. ``best`` in a name means the checkpoint of FP32 convergence (phases.json),
or the nearest one that was measured; ``start`` is where rapid learning ends.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.intervals import FEWEST_PROBES, stationary_bootstrap, t_interval

COLUMNS = ["finding", "value", "low", "high", "n", "unit", "about"]
RESAMPLES = 2_000
_DELTA = "delta_nll_nats_per_token"


class Value(NamedTuple):
    """A value, its 95 % interval, how many units it rests on, and which these are."""

    value: float
    low: float
    high: float
    n: int
    unit: str

    def times(self, factor: float) -> "Value":
        """The same in another measure."""
        return Value(*(number * factor for number in self[:3]), *self[3:])


@dataclass(frozen=True)
class Run:
    """What findings need of the run itself: audit.csv and places from phases.json."""

    audit: pd.DataFrame
    best: int
    start: int
    spacing: int

    def low_bit_loss(self, steps: pd.Index) -> np.ndarray:
        """Loss that the low-bit quantizer adds at ``steps``, nats per token."""
        rows = self.audit[self.audit["role"] == "low_bit"].set_index("step")
        return rows[_DELTA].reindex(steps).to_numpy()


Found = Iterator[tuple[str, Value, str]]  # finding, value, about


def exact(value: float, n: int, unit: str) -> Value:
    """A number that is known without error."""
    return Value(value, value, value, n, unit)


def mean_of(values: np.ndarray, unit: str) -> Value:
    """Mean with Student's t interval; units that are independent.

    A unit without a finite value does not count; NaN where there is no other.
    """
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if not len(values):
        return exact(np.nan, 0, unit)
    mean, count = values.mean(), len(values)
    if count < 2:
        return exact(mean, count, unit)
    return Value(mean, *t_interval(mean, stats.sem(values), count - 1), count, unit)


def mean_of_series(values: np.ndarray, unit: str, value: float | None = None) -> Value:
    """Mean of a series whose neighbours depend on each other (stationary bootstrap).

    ``value`` stands in its place where the mean is weighed. NaN as the interval where the
    series is too short for one.
    """
    values, low, high = np.asarray(values, dtype=float), np.nan, np.nan
    if len(values) >= FEWEST_PROBES:
        low, high, *_ = stationary_bootstrap(values[:, None])
    mean = values.mean() if len(values) else np.nan
    return Value(mean if value is None else value, low, high, len(values), unit)


def growth(last: Value, first: Value) -> Value:
    """Ratio of two estimates, their errors taken as independent and normal in logarithms.

    Both rest on the same sequences, which makes the true interval narrower. NaN where an
    interval reaches zero.
    """
    ratio, half = last.value / first.value, np.nan
    if min(last.low, last.high, first.low, first.high) > 0:
        half = np.hypot(np.log(last.high / last.low), np.log(first.high / first.low)) / 2
    return Value(ratio, ratio / np.exp(half), ratio * np.exp(half), last.n, last.unit)


def rank_correlation(x: np.ndarray, y: np.ndarray, unit: str) -> Value:
    """Spearman's rank correlation with a percentile bootstrap over pairs.

    Neighbouring checkpoints are no independent pairs: the interval is too narrow. NaN
    where there are fewer than four pairs or one of the two is constant.
    """
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return exact(np.nan, len(x), unit)

    def spearman(a: np.ndarray, b: np.ndarray) -> float:
        return stats.spearmanr(a, b).statistic

    ends = stats.bootstrap(
        (np.asarray(x), np.asarray(y)), spearman, paired=True, vectorized=False,
        n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Value(spearman(x, y), *ends, len(x), unit)


def near(steps: pd.Series, wanted: int) -> int:
    """The measured step nearest to ``wanted``, the earlier one at a tie."""
    known = np.sort(pd.unique(steps))
    return int(known[np.abs(known - wanted).argmin()])


def estimate(row: pd.Series, columns: str, unit: str) -> Value:
    """What a row has in the four columns of a value, the ends of its interval, and its units."""
    *numbers, count = row[columns.split()]
    return Value(*map(float, numbers), int(count), unit)


def _growth_of(first: pd.Series, last: pd.Series, columns: str, unit: str) -> Value:
    return growth(estimate(last, columns, unit), estimate(first, columns, unit))


def factorial_findings(factors: pd.DataFrame, run: Run) -> Found:
    """Shares, factors between the two probes, and the step² prediction at the last step."""
    for _, row in factors[factors["step"] == factors["step"].max()].iterrows():
        term = row["term"].replace("'", "").replace(" ", "_")
        name = f"{row['analysis']}_{row['response']}_{term}_{row['measure']}"
        value = estimate(row, "value low high n", "cells; interval over sequences")
        yield name, value, f"step {row['step']}"


def additivity(layers: pd.DataFrame) -> pd.DataFrame:
    """Per step the loss that all matrices add, and the sum over those quantized alone.

    Columns: step, all, sum_in, ratio (sum_in / all), of the paper's layers only.
    """
    inside = set(layers.loc[layers["probe"] == "out", "tensor"])
    alone = layers[(layers["probe"] == "in") & layers["tensor"].isin(inside)]
    whole = layers[layers["probe"] == "all"].set_index("step")[_DELTA]
    table = pd.DataFrame({"all": whole, "sum_in": alone.groupby("step")[_DELTA].sum()})
    return table.assign(ratio=table["sum_in"] / table["all"]).reset_index()


def layer_findings(layers: pd.DataFrame, run: Run) -> Found:
    """Do matrices add up, and which one costs most at the end?"""
    late = additivity(layers).query("step >= @run.best")
    if len(late):
        total = late["sum_in"].sum() / late["all"].sum()
        about = "losses of single matrices, summed, over the loss of all; since the best step"
        yield "layers_sum_over_all", mean_of_series(late["ratio"], "checkpoints", total), about
    last = layers[(layers["step"] == layers["step"].max()) & (layers["probe"] == "in")]
    worst = last.loc[last[_DELTA].idxmax()]
    ends = np.log1p(worst[["gap_low_pct", "gap_high_pct"]].to_numpy(float) / 100)
    value = Value(worst[_DELTA], *ends, int(worst["n_sequences"]), "sequences")
    yield "layers_worst_alone_nats", value, f"{worst['tensor']} at the last step"


def sensitivity_findings(table: pd.DataFrame, run: Run) -> Found:
    """Which factor grew, since the best step and since ``start``; is their product the cost?

    Ratios are taken over all checkpoints from ``start`` on; where none was measured from there
    on, only the growth since ``best`` is found.
    """
    whole = table[table["tensor"] == "all"]
    low, high = (
        whole[whole["perturbation"] == role].set_index("step").sort_index()
        for role in ("low_bit", "high_bit")
    )
    kept = low[low.index >= run.start]
    last = low.iloc[-1]
    firsts = {"": low.loc[near(low.index, run.best)]}
    if len(kept):
        firsts["run_"] = kept.iloc[0]
    for prefix, first in firsts.items():
        about = f"from step {first.name} to step {last.name}"
        cost, second = (
            _growth_of(first, last, f"{name}_nats {name}_low {name}_high n_batches", "batches")
            for name in ("measured", "second_order")
        )
        noise, size = (last[name] / first[name] for name in ("noise_norm2", "weight_norm2"))
        yield f"{prefix}cost_growth", cost, about
        yield f"{prefix}noise_growth", exact(noise, 1, "checkpoint"), about
        yield f"{prefix}relative_noise_growth", exact(noise / size, 1, "checkpoint"), about
        yield f"{prefix}sensitivity_growth", second.times(1 / noise), about
    if kept.empty:
        return
    unit = f"checkpoints from step {run.start} on"
    ratio = kept["predicted_nats"].sum() / kept["measured_nats"].sum()
    spread = mean_of_series(kept["predicted_nats"] / kept["measured_nats"], unit, ratio)
    yield "predicted_over_measured", spread, "first- plus second-order term over the measured loss"
    for control in ("noise", "dither"):
        rows = whole[whole["perturbation"].str.startswith(control) & whole["step"].ge(run.start)]
        if len(rows):
            mean = rows.groupby("step")["second_order_nats"].mean() / kept["second_order_nats"]
            about = "second-order cost of the control over that of rounding"
            yield f"{control}_over_rounding", mean_of_series(mean, unit), about
    ratios = (kept["second_order_nats"] / high["second_order_nats"]).dropna()
    about = "second-order cost of the low-bit quantizer over that of the high-bit one"
    yield "low_over_high_second_order", mean_of_series(ratios, unit), about


def curvature_findings(table: pd.DataFrame, run: Run) -> Found:
    """How curvature changed since the best step, and whether the low-bit loss follows it.

    As it is and for weights of unit norm; rank correlations over checkpoints.
    """
    rows = table.set_index("step").sort_index()
    first, last = rows.loc[near(rows.index, run.best)], rows.iloc[-1]
    about = f"from step {first.name} to step {last.name}"
    size = last["weight_norm2"] / first["weight_norm2"]
    units = {"trace": "random vectors", "top_eigenvalue": "batches"}
    for name, unit in units.items():
        grown = _growth_of(first, last, f"{name} {name}_low {name}_high {name}_n", unit)
        yield f"{name}_growth", grown, about
        normalised = f"{about}, times the squared norm of the weights"
        yield f"normalised_{name}_growth", grown.times(size), normalised
    rows = rows[rows.index >= run.start]
    about = f"Spearman r with the low-bit loss from step {run.start} on"
    for name in units:
        loss = run.low_bit_loss(rows.index)
        yield f"{name}_rank_r", rank_correlation(rows[name], loss, "checkpoints"), about


def drift_findings(drift: pd.DataFrame, run: Run) -> Found:
    """Misalignment at the end and at its largest, and codes that flip."""
    last, worst = drift.iloc[-1], drift.loc[drift["index"].idxmax()]
    index = "index index_low index_high n_groups"
    yield "misalignment_last", estimate(last, index, "groups"), f"step {last['step']:.0f}"
    about = f"step {worst['step']:.0f}, of {len(drift)} checkpoints"
    yield "misalignment_largest", estimate(worst, index, "groups"), about
    about = "share of weights at least 0.4 steps from their grid point; 0.2 where uniform"
    yield "near_midpoint_last", exact(last["near_midpoint"], int(last["n_groups"]), "groups"), about
    late = drift[drift["previous_step"] >= run.best]
    unit = "pairs of checkpoints since the best step"
    about = "share of codes that differ between neighbouring checkpoints"
    yield "flips_between_checkpoints", mean_of_series(late["flipped_own"], unit), about
    ratios = late["flipped_fixed"] / late["flipped_expected"]
    about = "flips on a fixed grid over those of uniform positions"
    yield "flips_over_expected", mean_of_series(ratios, unit), about


def exponents(table: pd.DataFrame, first_step: int, spacing: int) -> pd.Series:
    """Growth exponent of the distance for each later step whose whole past is after a step.

    ``table`` is displacement.csv. Slope of log distance over log lag, by step. 1/2: random
    walk; 1: straight line; below 1/2: the weights turn back.
    """
    wide = table.pivot(index="step", columns="lag", values="distance").dropna()
    wide = wide[wide.index - spacing * wide.columns.max() >= first_step]
    if wide.empty:
        return pd.Series(dtype=float)
    slopes = np.polyfit(np.log(wide.columns.to_numpy(float)), np.log(wide.to_numpy().T), 1)[0]
    return pd.Series(slopes, index=wide.index)


def displacement_findings(table: pd.DataFrame, run: Run) -> Found:
    """Angles and growth of distances after the best step."""
    late = (table["lag"] == 1) & (table["step"] - 2 * run.spacing >= run.best)
    mean = mean_of_series(table.loc[late, "cosine"].dropna(), "moves since the best step")
    yield "move_cosine", mean, "cosine of successive moves; 0 for a random walk"
    found = exponents(table, run.best, run.spacing)
    about = "growth of the distance with the number of moves; 1/2 for a random walk"
    yield "walk_exponent", mean_of_series(found, "end points since the best step"), about


def main_oscillation(flips: pd.DataFrame) -> str:
    """The OLI schedule of phase_flips.csv that is called OLI: the one named so, or the first."""
    names = list(dict.fromkeys(flips["phases_of"]))
    return "oli" if "oli" in names else names[0]


def phase_findings(flips: pd.DataFrame, run: Run) -> Found:
    """Codes flipped by one bump, by one cool phase, and by the baseline over the same spans.

    Findings of ``main_oscillation`` are called oli and baseline. Those of any other OLI schedule
    have its name, as the spans of its phases are its own.
    """
    main = main_oscillation(flips)
    for (oscillation, schedule, phase), rows in flips.groupby(["phases_of", "schedule", "phase"]):
        arm = "baseline" if schedule == "baseline" else "oli"
        about = f"{schedule}, {rows['updates'].iloc[0]} updates"
        if oscillation != main:
            arm = f"{oscillation}_baseline" if arm == "baseline" else oscillation
            about += f", phases of {oscillation}"
        yield f"{arm}_{phase}_flips", mean_of(rows["flipped_own"], "phases"), about


def activation_findings(table: pd.DataFrame, run: Run) -> Found:
    """Activation kurtosis, rounded activations and anisotropy: at the best step and the end."""
    steps = {"best": near(table["step"], run.best), "last": table["step"].max()}
    for (measure, name), rows in table.groupby(["measure", "name"], sort=False):
        for when, step in steps.items():
            label = f"{measure}_{name}_{when}".replace(" ", "_").replace("+", "")
            row = rows.set_index("step").loc[step]
            yield label, estimate(row, "value low high n", "sequences"), f"step {step}"
    states = table[(table["measure"] == "kurtosis") & (table["step"] >= run.start)]
    curve = states.pivot(index="step", columns="name", values="value").mean(axis=1)
    found = rank_correlation(curve, run.low_bit_loss(curve.index), "checkpoints")
    about = "Spearman r of the mean over hidden states with the low-bit loss from step "
    yield "activation_kurtosis_rank_r", found, f"{about}{run.start} on"


def replication_findings(table: pd.DataFrame, run: Run) -> Found:
    """Onsets that were found, and whether growth changes at each run's own minimum."""
    both, runs = table[table["onset_step"].notna()], len(table)
    yield "replicas_with_onset", exact(len(both), runs, "runs"), "runs with an onset"
    about = "growth after its own minimum less growth before, nats per 1,000 steps"
    yield "replica_slope_change", mean_of(table["slope_change"], "runs"), about
    faster = exact((table["slope_change_low"] > 0).sum(), runs, "runs")
    about = "runs whose growth is faster after their minimum, by their interval"
    yield "replicas_faster_after_minimum", faster, about
    if len(both) >= 4:
        related = rank_correlation(both["fp32_step"], both["onset_step"], "runs")
        about = "Spearman r of the step of the own minimum and the onset"
        yield "replica_onset_rank_r", related, about


FINDINGS = {
    "factors": factorial_findings,
    "layers": layer_findings,
    "sensitivity": sensitivity_findings,
    "curvature": curvature_findings,
    "drift": drift_findings,
    "displacement": displacement_findings,
    "phase_flips": phase_findings,
    "activations": activation_findings,
    "replication": replication_findings,
}


def findings(tables: Mapping[str, pd.DataFrame], phases: Mapping, *, spacing: int) -> pd.DataFrame:
    """All findings of the measurements that are there (columns ``COLUMNS``).

    ``tables`` has audit and any of ``FINDINGS``, as under results/{suite}.
    """
    best, start = phases["convergence"]["step"], phases["rapid_learning_end"]["step"]
    run = Run(tables["audit"], best, start, spacing)
    rows = [
        (name, *value, about)
        for source, find in FINDINGS.items()
        if source in tables and len(tables[source])
        for name, value, about in find(tables[source], run)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
