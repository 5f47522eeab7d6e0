"""The findings of all measurements beyond the paper, in numbers: findings.csv.

Notebooks and the ledger of claims read this file. Every finding has a name, a number with its
95 % interval, the number of units behind it, and what the units are. ``best`` in a name means
the checkpoint of FP32 convergence (phases.json), or the measured one that is nearest to it.
``start`` is the end of rapid learning.
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
    """A number, its 95 % interval, the number of units behind it, and what the units are."""

    value: float
    low: float
    high: float
    n: int
    unit: str

    def times(self, factor: float) -> "Value":
        """The number and its interval times ``factor``."""
        return Value(self.value * factor, self.low * factor, self.high * factor, self.n, self.unit)


@dataclass(frozen=True)
class Run:
    """What findings need from the run: audit.csv, and steps from phases.json."""

    audit: pd.DataFrame
    best: int
    start: int
    spacing: int

    def low_bit_loss(self, steps: pd.Index) -> np.ndarray:
        """Loss that the low-bit quantizer adds at ``steps``, nats per token."""
        rows = self.audit[self.audit["role"] == "low_bit"].set_index("step")
        return rows[_DELTA].reindex(steps).to_numpy()


Findings = Iterator[tuple[str, Value, str]]  # columns: finding, value to unit, about


def exact(value: float, n: int, unit: str) -> Value:
    """A number without an error."""
    return Value(value, value, value, n, unit)


def mean_of(values: np.ndarray, unit: str) -> Value:
    """Mean over independent units, with Student's t interval.

    Units without a finite number are left out. The mean of no units is NaN.
    """
    numbers = np.asarray(values, dtype=float)
    finite = numbers[np.isfinite(numbers)]
    count = len(finite)
    if count == 0:
        return exact(np.nan, 0, unit)
    mean = finite.mean()
    if count == 1:
        return exact(mean, count, unit)
    low, high = t_interval(mean, stats.sem(finite), count - 1)
    return Value(mean, low, high, count, unit)


def mean_of_series(values: np.ndarray, unit: str, weighted_mean: float | None = None) -> Value:
    """Mean of a series whose neighbours depend on each other (stationary bootstrap).

    ``weighted_mean`` replaces the plain mean. The interval is NaN if the series is too short.
    """
    series = np.asarray(values, dtype=float)
    low = np.nan
    high = np.nan
    if len(series) >= FEWEST_PROBES:
        low, high, *_ = stationary_bootstrap(series[:, None])
    mean = weighted_mean
    if mean is None:
        mean = series.mean() if len(series) else np.nan
    return Value(mean, low, high, len(series), unit)


def growth(last: Value, first: Value) -> Value:
    """Ratio of two estimates, with errors that count as independent and normal in logarithms.

    Both estimates use the same sequences, so the true interval is narrower. The interval is NaN
    if one of the two intervals reaches zero.
    """
    ratio = last.value / first.value
    half_width = np.nan
    if min(last.low, last.high, first.low, first.high) > 0:
        widths = np.log(last.high / last.low), np.log(first.high / first.low)
        # Both widths are of whole intervals, so half of their root sum of squares is the half width
        # of the ratio.
        half_width = np.hypot(*widths) / 2
    factor = np.exp(half_width)
    return Value(ratio, ratio / factor, ratio * factor, last.n, last.unit)


def rank_correlation(x: np.ndarray, y: np.ndarray, unit: str) -> Value:
    """Spearman's rank correlation with a percentile bootstrap over pairs.

    Neighbouring checkpoints are not independent, so the interval is too narrow. NaN if there are
    fewer than four pairs, or if x or y is constant.
    """
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return exact(np.nan, len(x), unit)

    def spearman(a: np.ndarray, b: np.ndarray) -> float:
        return stats.spearmanr(a, b).statistic

    bootstrap = stats.bootstrap(
        (np.asarray(x), np.asarray(y)),
        spearman,
        paired=True,
        vectorized=False,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = bootstrap.confidence_interval
    return Value(spearman(x, y), low, high, len(x), unit)


def near(steps: pd.Series, target: int) -> int:
    """The measured step nearest to ``target``, the earlier one at a tie."""
    measured_steps = np.sort(pd.unique(steps))
    return int(measured_steps[np.abs(measured_steps - target).argmin()])


def estimate(row: pd.Series, columns: str, unit: str) -> Value:
    """Read four columns of a row: the number, both ends of its interval, and the units.

    ``columns`` are their names, separated by spaces.
    """
    number, low, high, count = row[columns.split()]
    return Value(float(number), float(low), float(high), int(count), unit)


def _growth_of(first: pd.Series, last: pd.Series, columns: str, unit: str) -> Value:
    return growth(estimate(last, columns, unit), estimate(first, columns, unit))


def factorial_findings(factors: pd.DataFrame, run: Run) -> Findings:
    """Shares, factors between the two probes, and the step² prediction at the last step."""
    last_rows = factors[factors["step"] == factors["step"].max()]
    for _, row in last_rows.iterrows():
        term = row["term"].replace("'", "").replace(" ", "_")
        name = f"{row['analysis']}_{row['response']}_{term}_{row['measure']}"
        value = estimate(row, "value low high n", "cells; interval over sequences")
        yield name, value, f"step {row['step']}"


def additivity(layers: pd.DataFrame) -> pd.DataFrame:
    """Per step the loss that all matrices add together, and the sum of single matrices.

    Columns: step, all, sum_in, ratio (sum_in / all), of the paper's layers only.
    """
    # Only matrices of the paper's layers were left out one by one; the head was quantized alone as
    # well.
    paper_layers = set(layers.loc[layers["probe"] == "out", "tensor"])
    single = layers[(layers["probe"] == "in") & layers["tensor"].isin(paper_layers)]
    together = layers[layers["probe"] == "all"].set_index("step")[_DELTA]
    table = pd.DataFrame({"all": together, "sum_in": single.groupby("step")[_DELTA].sum()})
    return table.assign(ratio=table["sum_in"] / table["all"]).reset_index()


def layer_findings(layers: pd.DataFrame, run: Run) -> Findings:
    """Do matrices add up, and which one costs most at the end?"""
    # ``@`` is a local variable in a query of pandas.
    late = additivity(layers).query("step >= @run.best")
    if len(late):
        total = late["sum_in"].sum() / late["all"].sum()
        about = "losses of single matrices, summed, over the loss of all; since the best step"
        yield "layers_sum_over_all", mean_of_series(late["ratio"], "checkpoints", total), about
    last = layers[(layers["step"] == layers["step"].max()) & (layers["probe"] == "in")]
    # The label of the row with the largest loss.
    worst = last.loc[last[_DELTA].idxmax()]
    low, high = np.log1p(worst[["gap_low_pct", "gap_high_pct"]].to_numpy(float) / 100)
    loss = Value(worst[_DELTA], low, high, int(worst["n_sequences"]), "sequences")
    yield "layers_worst_alone_nats", loss, f"{worst['tensor']} at the last step"


def sensitivity_findings(table: pd.DataFrame, run: Run) -> Findings:
    """Which factor grew, since the best step and since ``start``; is their product the cost?

    Ratios are taken over all checkpoints from ``start`` on. If none was measured there, only the
    growth since ``best`` is a finding.
    """
    all_matrices = table[table["tensor"] == "all"]
    by_step = all_matrices.set_index("step").sort_index()
    low = by_step[by_step["perturbation"] == "low_bit"]
    high = by_step[by_step["perturbation"] == "high_bit"]
    late = low[low.index >= run.start]

    last = low.iloc[-1]
    yield from _growth_findings("", low.loc[near(low.index, run.best)], last)
    if late.empty:
        return
    yield from _growth_findings("run_", late.iloc[0], last)

    unit = f"checkpoints from step {run.start} on"
    # The ratio of sums is the estimate: single ratios are wild where the loss is near zero.
    ratio = late["predicted_nats"].sum() / late["measured_nats"].sum()
    ratios = mean_of_series(late["predicted_nats"] / late["measured_nats"], unit, ratio)
    yield "predicted_over_measured", ratios, "first- plus second-order term over the measured loss"
    for control in ("noise", "dither"):
        is_control = all_matrices["perturbation"].str.startswith(control)
        rows = all_matrices[is_control & all_matrices["step"].ge(run.start)]
        if len(rows):
            # Both sides have the step as their index, so that pandas divides step by step.
            mean = rows.groupby("step")["second_order_nats"].mean() / late["second_order_nats"]
            about = "second-order cost of the control over that of rounding"
            yield f"{control}_over_rounding", mean_of_series(mean, unit), about
    ratios = (late["second_order_nats"] / high["second_order_nats"]).dropna()
    about = "second-order cost of the low-bit quantizer over that of the high-bit one"
    yield "low_over_high_second_order", mean_of_series(ratios, unit), about


def _growth_findings(prefix: str, first: pd.Series, last: pd.Series) -> Findings:
    """Growth of the cost and of its two factors between two checkpoints (rows of low_bit)."""
    about = f"from step {first.name} to step {last.name}"
    noise_ratio = last["noise_norm2"] / first["noise_norm2"]
    weight_ratio = last["weight_norm2"] / first["weight_norm2"]
    cost = _growth_of(first, last, "measured_nats measured_low measured_high n_batches", "batches")
    second_order = _growth_of(
        first, last, "second_order_nats second_order_low second_order_high n_batches", "batches"
    )
    relative_noise = exact(noise_ratio / weight_ratio, 1, "checkpoint")
    yield f"{prefix}cost_growth", cost, about
    yield f"{prefix}noise_growth", exact(noise_ratio, 1, "checkpoint"), about
    yield f"{prefix}relative_noise_growth", relative_noise, about
    # The second-order cost is noise times sensitivity, so its growth over that of the noise is
    # left.
    yield f"{prefix}sensitivity_growth", second_order.times(1 / noise_ratio), about


def curvature_findings(table: pd.DataFrame, run: Run) -> Findings:
    """How curvature changed since the best step, and whether the low-bit loss follows it.

    Growth is given for the weights unchanged and for weights of unit norm. Rank correlations are
    over checkpoints.
    """
    rows = table.set_index("step").sort_index()
    first = rows.loc[near(rows.index, run.best)]
    last = rows.iloc[-1]
    about = f"from step {first.name} to step {last.name}"
    weight_ratio = last["weight_norm2"] / first["weight_norm2"]
    units = {"trace": "random vectors", "top_eigenvalue": "batches"}
    for name, unit in units.items():
        grown = _growth_of(first, last, f"{name} {name}_low {name}_high {name}_n", unit)
        yield f"{name}_growth", grown, about
        normalised = f"{about}, times the squared norm of the weights"
        yield f"normalised_{name}_growth", grown.times(weight_ratio), normalised
    rows = rows[rows.index >= run.start]
    about = f"Spearman r with the low-bit loss from step {run.start} on"
    for name in units:
        loss = run.low_bit_loss(rows.index)
        yield f"{name}_rank_r", rank_correlation(rows[name], loss, "checkpoints"), about


def drift_findings(drift: pd.DataFrame, run: Run) -> Findings:
    """Misalignment at the end and at its largest, and codes that flip."""
    last = drift.iloc[-1]
    largest = drift.loc[drift["index"].idxmax()]
    columns = "index index_low index_high n_groups"
    yield "misalignment_last", estimate(last, columns, "groups"), f"step {last['step']:.0f}"
    about = f"step {largest['step']:.0f}, of {len(drift)} checkpoints"
    yield "misalignment_largest", estimate(largest, columns, "groups"), about
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
    """Growth exponent of the distance by step: the slope of log distance over log lag.

    ``table`` is displacement.csv. Only steps are used whose longest lag begins at ``first_step`` or
    later. 1/2: random walk; 1: straight line; below 1/2: the weights turn back.
    """
    distances = table.pivot(index="step", columns="lag", values="distance").dropna()
    longest_lag = spacing * distances.columns.max()
    # A distance over the longest lag must not begin before the best step.
    distances = distances[distances.index - longest_lag >= first_step]
    if distances.empty:
        return pd.Series(dtype=float)
    log_lags = np.log(distances.columns.to_numpy(float))
    # One column per step: polyfit fits all columns at once, and the first row has the slopes.
    slopes = np.polyfit(log_lags, np.log(distances.to_numpy().T), 1)[0]
    return pd.Series(slopes, index=distances.index)


def displacement_findings(table: pd.DataFrame, run: Run) -> Findings:
    """Angles and growth of distances after the best step."""
    # A cosine is of two moves, so it begins two spacings before its step.
    late = (table["lag"] == 1) & (table["step"] - 2 * run.spacing >= run.best)
    mean = mean_of_series(table.loc[late, "cosine"].dropna(), "moves since the best step")
    yield "move_cosine", mean, "cosine of successive moves; 0 for a random walk"
    mean = mean_of_series(exponents(table, run.best, run.spacing), "end points since the best step")
    yield (
        "walk_exponent",
        mean,
        "growth of the distance with the number of moves; 1/2 for a random walk",
    )


def main_oscillation(flips: pd.DataFrame) -> str:
    """The OLI schedule of phase_flips.csv whose findings are called oli.

    It is the schedule named oli, or the first one.
    """
    names = list(dict.fromkeys(flips["phases_of"]))
    return "oli" if "oli" in names else names[0]


def phase_findings(flips: pd.DataFrame, run: Run) -> Findings:
    """Codes flipped by one bump, by one cool phase, and by the baseline over the same steps.

    Findings of ``main_oscillation`` are called oli and baseline. Another OLI schedule has phases
    of other lengths, so its findings have its own name.
    """
    main = main_oscillation(flips)
    for (oscillation, schedule, phase), rows in flips.groupby(["phases_of", "schedule", "phase"]):
        arm = "baseline" if schedule == "baseline" else "oli"
        about = f"{schedule}, {rows['updates'].iloc[0]} updates"
        if oscillation != main:
            arm = f"{oscillation}_baseline" if arm == "baseline" else oscillation
            about += f", phases of {oscillation}"
        yield f"{arm}_{phase}_flips", mean_of(rows["flipped_own"], "phases"), about


def activation_findings(table: pd.DataFrame, run: Run) -> Findings:
    """Activation kurtosis, rounded activations and anisotropy: at the best step and the end."""
    steps = {"best": near(table["step"], run.best), "last": table["step"].max()}
    for (measure, name), rows in table.groupby(["measure", "name"], sort=False):
        for when, step in steps.items():
            label = f"{measure}_{name}_{when}".replace(" ", "_").replace("+", "")
            row = rows.set_index("step").loc[step]
            yield label, estimate(row, "value low high n", "sequences"), f"step {step}"
    states = table[(table["measure"] == "kurtosis") & (table["step"] >= run.start)]
    # The mean over hidden states at each step.
    curve = states.pivot(index="step", columns="name", values="value").mean(axis=1)
    correlation = rank_correlation(curve, run.low_bit_loss(curve.index), "checkpoints")
    about = (
        f"Spearman r of the mean over hidden states with the low-bit loss from step {run.start} on"
    )
    yield "activation_kurtosis_rank_r", correlation, about


def replication_findings(table: pd.DataFrame, run: Run) -> Findings:
    """Onsets that were found, and whether growth changes at the minimum of each run."""
    with_onset = table[table["onset_step"].notna()]
    runs = len(table)
    yield "replicas_with_onset", exact(len(with_onset), runs, "runs"), "runs with an onset"
    about = "growth after its own minimum less growth before, nats per 1,000 steps"
    yield "replica_slope_change", mean_of(table["slope_change"], "runs"), about
    faster = exact((table["slope_change_low"] > 0).sum(), runs, "runs")
    about = "runs whose growth is faster after their minimum, by their interval"
    yield "replicas_faster_after_minimum", faster, about
    if len(with_onset) >= 4:
        correlation = rank_correlation(with_onset["fp32_step"], with_onset["onset_step"], "runs")
        about = "Spearman r of the step of the own minimum and the onset"
        yield "replica_onset_rank_r", correlation, about


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
    """All findings of the available measurements (columns ``COLUMNS``).

    ``tables`` has audit and any of ``FINDINGS``, with the content of results/{suite}.
    """
    run = Run(
        audit=tables["audit"],
        best=phases["convergence"]["step"],
        start=phases["rapid_learning_end"]["step"],
        spacing=spacing,
    )
    rows = []
    for source, find in FINDINGS.items():
        if source not in tables or tables[source].empty:
            continue
        for name, estimated, about in find(tables[source], run):
            rows.append((name, *estimated, about))
    return pd.DataFrame(rows, columns=COLUMNS)
