"""Findings about weights, activations and the small runs."""

import pandas as pd

from flatminima.mechanism.displacement import exponents
from flatminima.mechanism.estimates import (
    Value,
    exact,
    mean_of,
    mean_of_series,
    rank_correlation,
)
from flatminima.mechanism.finding_losses import Found, interval_of, near

_DELTA = "delta_nll_nats_per_token"


def drift_findings(drift: pd.DataFrame, best: int) -> Found:
    """Misalignment at the end and at its largest, and codes that flip."""
    last = drift.iloc[-1]
    groups = int(last["n_groups"])
    yield (
        "misalignment_last",
        interval_of(last, "index", "groups", groups),
        f"step {last['step']:.0f}",
    )
    worst = drift.loc[drift["index"].idxmax()]
    yield "misalignment_largest", interval_of(worst, "index", "groups", groups), (
        f"step {worst['step']:.0f}, of {len(drift)} checkpoints")  # fmt: skip
    yield "near_midpoint_last", exact(last["near_midpoint"], groups, "groups"), (
        "share of weights at least 0.4 steps from their grid point; 0.2 where uniform")  # fmt: skip
    late = drift[drift["previous_step"] >= best]
    yield (
        "flips_between_checkpoints",
        mean_of_series(late["flipped_own"].to_numpy(), "pairs of checkpoints since the best step"),
        "share of codes that differ between neighbouring checkpoints",
    )
    yield (
        "flips_over_expected",
        mean_of_series(
            (late["flipped_fixed"] / late["flipped_expected"]).to_numpy(),
            "pairs of checkpoints since the best step",
        ),
        "flips on a fixed grid over those of uniform positions",
    )


def displacement_findings(table: pd.DataFrame, best: int, spacing: int) -> Found:
    """Angles and growth of distances after the best step."""
    cosines = table[(table["lag"] == 1) & (table["step"] - 2 * spacing >= best)]["cosine"].dropna()
    yield "move_cosine", mean_of_series(cosines.to_numpy(), "moves since the best step"), (
        "cosine of successive moves; 0 for a random walk")  # fmt: skip
    slopes = exponents(table, best, spacing)
    yield "walk_exponent", mean_of_series(slopes.to_numpy(), "end points since the best step"), (
        "growth of the distance with the number of moves; 1/2 for a random walk")  # fmt: skip


def phase_findings(flips: pd.DataFrame) -> Found:
    """Codes flipped by one bump, by one cool phase, and by the baseline over the same spans."""
    for (schedule, phase), rows in flips.groupby(["schedule", "phase"]):
        arm = "baseline" if schedule == "baseline" else "oli"
        about = f"{schedule}, {rows['updates'].iloc[0]} updates"
        yield f"{arm}_{phase}_flips", mean_of(rows["flipped_own"].to_numpy(), "phases"), about


def activation_findings(table: pd.DataFrame, audit: pd.DataFrame, best: int, start: int) -> Found:
    """Activation kurtosis, rounded activations and anisotropy: at the best step and the end."""
    wide = table.set_index(["measure", "name", "step"]).sort_index()
    steps = {"best": near(table["step"], best), "last": int(table["step"].max())}
    for (measure, name), _ in table.groupby(["measure", "name"], sort=False):
        for when, step in steps.items():
            row = wide.loc[(measure, name, step)]
            label = f"{measure}_{name}_{when}".replace(" ", "_").replace("+", "")
            yield label, Value(row["value"], row["low"], row["high"], int(row["n"]),
                               "sequences"), f"step {step}"  # fmt: skip
    low = audit[audit["role"] == "low_bit"].set_index("step")[_DELTA]
    states = table[table["measure"] == "kurtosis"].pivot(
        index="step", columns="name", values="value"
    )
    curve = states.mean(axis=1)
    curve = curve[curve.index >= start]
    yield (
        "activation_kurtosis_rank_r",
        rank_correlation(curve.to_numpy(), low.reindex(curve.index).to_numpy(), "checkpoints"),
        f"Spearman r of the mean over hidden states with the low-bit loss from step {start} on",
    )


def replication_findings(table: pd.DataFrame) -> Found:
    """Onsets that were found, and whether growth changes at each run's own minimum."""
    found = table["onset_step"].notna()
    yield "replicas_with_onset", exact(found.sum(), len(table), "runs"), "runs with an onset"
    yield "replica_slope_change", mean_of(table["slope_change"].to_numpy(), "runs"), (
        "growth after its own minimum less growth before, nats per 1,000 steps")  # fmt: skip
    faster = (table["slope_change_low"] > 0).sum()
    yield "replicas_faster_after_minimum", exact(faster, len(table), "runs"), (
        "runs whose growth is faster after their minimum, by their interval")  # fmt: skip
    both = table[found]
    if len(both) >= 4:
        yield (
            "replica_onset_rank_r",
            rank_correlation(both["fp32_step"].to_numpy(), both["onset_step"].to_numpy(), "runs"),
            "Spearman r of the step of the own minimum and the onset",
        )
