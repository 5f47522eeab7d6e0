"""Findings about added losses: factors, layers, noise and sensitivity, curvature."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from flatminima.mechanism.estimates import (
    Value,
    exact,
    growth,
    mean_of_series,
    rank_correlation,
)
from flatminima.mechanism.layerwise import additivity

Found = Iterator[tuple[str, Value, str]]
_DELTA = "delta_nll_nats_per_token"


def near(steps: pd.Series, wanted: int) -> int:
    """The measured step nearest to ``wanted``, the earlier one at a tie."""
    known = np.sort(steps.unique())
    return int(known[np.abs(known - wanted).argmin()])


def interval_of(row: pd.Series, name: str, unit: str, n: str | int) -> Value:
    """A column (``name`` or ``name_nats``) with its ``_low`` and ``_high``.

    ``n`` is a number or the column that holds it.
    """
    value = f"{name}_nats" if f"{name}_nats" in row else name
    ends = (float(row[column]) for column in (value, f"{name}_low", f"{name}_high"))
    return Value(*ends, int(row[n]) if isinstance(n, str) else n, unit)


def factorial_findings(factors: pd.DataFrame) -> Found:
    """Shares, factors between the two probes, and the step² prediction at the last step."""
    last = factors[factors["step"] == factors["step"].max()]
    for row in last.itertuples():
        term = row.term.replace(" x ", "_x_").replace("'", "").replace(" ", "_")
        name = f"{row.analysis}_{row.response}_{term}_{row.measure}"
        unit = "cells; interval over sequences"
        yield name, Value(row.value, row.low, row.high, row.n, unit), f"step {row.step}"


def layer_findings(layers: pd.DataFrame, best: int) -> Found:
    """Do matrices add up, and which one costs most at the end?"""
    sums = additivity(layers)
    late = sums[sums["step"] >= best]
    total = late["sum_in"].sum() / late["all"].sum()
    spread = mean_of_series(late["ratio"].to_numpy(), "checkpoints")
    yield "layers_sum_over_all", Value(total, spread.low, spread.high, spread.n, spread.unit), (
        "losses of single matrices, summed, over the loss of all; since the best step")  # fmt: skip
    last = layers[(layers["step"] == layers["step"].max()) & (layers["probe"] == "in")]
    worst = last.loc[last[_DELTA].idxmax()]
    ends = np.log1p(worst[["gap_low_pct", "gap_high_pct"]].to_numpy(float) / 100)
    yield (
        "layers_worst_alone_nats",
        Value(worst[_DELTA], ends[0], ends[1], int(worst["n_sequences"]), "sequences"),
        f"{worst['tensor']} at the last step",
    )


def _growth_findings(first: pd.Series, last: pd.Series, prefix: str) -> Found:
    """Growth of the cost and of its two factors between two checkpoints."""
    about = f"from step {first.name} to step {last.name}"
    terms = {
        name: growth(interval_of(last, name, "batches", "n_batches"),
                     interval_of(first, name, "batches", "n_batches"))
        for name in ("measured", "second_order")
    }  # fmt: skip
    noise = last["noise_norm2"] / first["noise_norm2"]
    size = last["weight_norm2"] / first["weight_norm2"]
    second = terms["second_order"]
    per_noise = Value(second.value / noise, second.low / noise, second.high / noise,
                      second.n, second.unit)  # fmt: skip
    yield f"{prefix}cost_growth", terms["measured"], about
    yield f"{prefix}noise_growth", exact(noise, 1, "checkpoint"), about
    yield f"{prefix}relative_noise_growth", exact(noise / size, 1, "checkpoint"), about
    yield f"{prefix}sensitivity_growth", per_noise, about


def sensitivity_findings(table: pd.DataFrame, best: int, start: int) -> Found:
    """Which factor grew, since the best step and since ``start``; is their product the cost?

    ``start`` is where rapid learning ends; ratios are taken over all checkpoints from it on.
    """
    whole = table[table["tensor"] == "all"]
    low = whole[whole["perturbation"] == "low_bit"].set_index("step").sort_index()
    kept, last = low[low.index >= start], low.iloc[-1]
    yield from _growth_findings(low.loc[near(pd.Series(low.index), best)], last, "")
    yield from _growth_findings(kept.iloc[0], last, "run_")
    unit = f"checkpoints from step {start} on"
    ratio = kept["predicted_nats"].sum() / kept["measured_nats"].sum()
    spread = mean_of_series((kept["predicted_nats"] / kept["measured_nats"]).to_numpy(), "")
    yield (
        "predicted_over_measured",
        Value(ratio, spread.low, spread.high, spread.n, unit),
        "first- plus second-order term over the measured loss",
    )
    for control in ("noise", "dither"):
        rows = whole[whole["perturbation"].str.startswith(control) & whole["step"].ge(start)]
        if rows.empty:
            continue
        mean = rows.groupby("step")["second_order_nats"].mean()
        yield (
            f"{control}_over_rounding",
            mean_of_series((mean / kept["second_order_nats"]).to_numpy(), unit),
            "second-order cost of the control over that of rounding",
        )
    high = whole[whole["perturbation"] == "high_bit"].set_index("step").sort_index()
    ratios = (kept["second_order_nats"] / high["second_order_nats"]).dropna()
    yield (
        "low_over_high_second_order",
        mean_of_series(ratios.to_numpy(), unit),
        "second-order cost of the low-bit quantizer over that of the high-bit one",
    )


def curvature_findings(table: pd.DataFrame, best: int) -> Found:
    """How curvature changed since the best step, as it is and for weights of unit norm."""
    rows = table.set_index("step").sort_index()
    first, last = rows.loc[near(pd.Series(rows.index), best)], rows.iloc[-1]
    about = f"from step {first.name} to step {last.name}"
    size = last["weight_norm2"] / first["weight_norm2"]
    for name in ("trace", "top_eigenvalue"):
        unit = "random vectors" if name == "trace" else "batches"
        grown = growth(
            interval_of(last, name, unit, f"{name}_n"), interval_of(first, name, unit, f"{name}_n")
        )
        yield f"{name}_growth", grown, about
        yield (
            f"normalised_{name}_growth",
            Value(grown.value * size, grown.low * size, grown.high * size, grown.n, grown.unit),
            f"{about}, times the squared norm of the weights",
        )


def curvature_relation(curvature: pd.DataFrame, audit: pd.DataFrame, start: int) -> Found:
    """Rank correlation of curvature and the low-bit loss over checkpoints."""
    low = audit[audit["role"] == "low_bit"].set_index("step")[_DELTA]
    rows = curvature[curvature["step"] >= start].set_index("step")
    for name in ("trace", "top_eigenvalue"):
        yield (
            f"{name}_rank_r",
            rank_correlation(
                rows[name].to_numpy(), low.reindex(rows.index).to_numpy(), "checkpoints"
            ),
            f"Spearman r with the low-bit loss from step {start} on",
        )
