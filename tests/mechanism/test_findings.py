"""Small runs, estimates and findings, where the answer is known."""

import numpy as np
import pandas as pd
import pytest

from flatminima.intervals import summarise
from flatminima.mechanism.findings import (
    COLUMNS,
    Value,
    exact,
    findings,
    growth,
    mean_of,
    mean_of_series,
    rank_correlation,
)
from flatminima.mechanism.replication import growth_slopes, run_phases
from tests.statistics_helpers import sequence_scores


def run(slope_after: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """40 probes: FP32 is best at step 400, the added loss grows by 0.1 and then otherwise."""
    rng = np.random.default_rng(0)
    steps = np.arange(20, 801, 20)
    fp32 = 3 + 0.5 * np.abs(steps - 400) / 400
    added = 0.01 + 0.0001 * np.minimum(steps, 400) + slope_after * np.maximum(steps - 400, 0) / 1000
    base = rng.uniform(-1, 1, 30)
    rows = []
    for step, nll, more in zip(steps, fp32, added, strict=True):
        for role, value in (("fp32", nll), ("low_bit", nll + more)):
            noise = 0.02 * rng.standard_normal(30) if role == "low_bit" else np.zeros(30)
            nll = 10 * (value + base + noise - noise.mean())
            rows.append(sequence_scores(step, role, nll, 10))
    scores = pd.concat(rows, ignore_index=True)
    table = summarise(scores, ["step"], resamples=30, seed=0)
    run_labels = {"suite": "toy", "width": 16, "seed": 0, "weight_decay": 0.1}
    return table.assign(**run_labels, tokens_per_weight=4.0 * table["step"]), scores


def test_growth_before_and_after_the_own_minimum_and_while_the_tokens_double():
    row = run_phases(*run(slope_after=0.4), spacing=20, resamples=40)
    steps = np.arange(20, 801, 20)
    added = 0.01 + 0.0001 * np.minimum(steps, 400) + 0.0004 * np.maximum(steps - 400, 0)
    doubling = added[steps > 720].mean() / added[(steps > 360) & (steps <= 400)].mean()
    expected = {
        "fp32_step": 400,
        "width": 16,
        "gap_last_pct": 100 * np.expm1(0.05 + 0.16),
        "slope_before": 0.1,
        "slope_after": 0.4,
        "slope_change": 0.3,
        "last_doubling": doubling,
        "tokens_per_weight": 3200,
        "fp32_last_fifth_nats": 0.2,
        "fp32_over_best_nats": 0.4625 - 0.03,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert row["slope_change_low"] > 0
    assert row["last_doubling_low"] < doubling < row["last_doubling_high"]
    # Best at its first probe: there is no growth before.
    assert np.isnan(growth_slopes(steps, np.stack([added, added]), 20)["slope_before"])


def test_ratios_and_means_of_estimates():
    ratio = growth(Value(8, 4, 16, 5, "x"), exact(2, 5, "x"))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((4, 2, 8))
    assert np.isnan(growth(Value(8, -1, 16, 5, "x"), exact(2, 5, "x")).low)
    mean = mean_of(np.array([1.0, 2.0, 3.0]), "x")
    assert mean.value == 2 and mean.high - 2 == pytest.approx(4.302653 / np.sqrt(3))
    assert mean_of(np.array([4.0, 4.0]), "x").low == 4.0
    assert np.isnan(mean_of_series(np.ones(3), "x").low)
    assert mean_of_series(np.arange(30.0), "x").value == 14.5
    assert rank_correlation(np.arange(9.0), np.arange(9.0) ** 3, "x").value == pytest.approx(1.0)


PHASES = {"convergence": {"step": 100}, "rapid_learning_end": {"step": 20}}


def test_findings_of_what_was_measured_and_of_nothing_else():
    steps = np.arange(10, 210, 10)
    audit = pd.DataFrame(
        {"step": steps, "role": "low_bit", "delta_nll_nats_per_token": steps / 1000}
    )
    curvature = pd.DataFrame(
        {
            "step": steps,
            "weight_norm2": 4.0,
            "trace": steps / 1.0,
            "trace_low": steps * 0.9,
            "trace_high": steps * 1.1,
            "trace_n": 20,
            "top_eigenvalue": 5.0,
            "top_eigenvalue_low": 4.0,
            "top_eigenvalue_high": 6.0,
            "top_eigenvalue_n": 8,
        }
    )
    table = findings({"audit": audit, "curvature": curvature}, PHASES, spacing=10)
    assert list(table.columns) == COLUMNS
    assert table.set_index("finding")["value"].to_dict() == pytest.approx(
        {
            "trace_growth": 2.0,
            "normalised_trace_growth": 2.0,
            "top_eigenvalue_growth": 1.0,
            "normalised_top_eigenvalue_growth": 1.0,
            "trace_rank_r": 1.0,
            "top_eigenvalue_rank_r": np.nan,  # of a constant
        },
        nan_ok=True,
    )
    assert findings({"audit": audit}, PHASES, spacing=10).empty


AUDIT = pd.DataFrame({"step": [100], "role": "low_bit", "delta_nll_nats_per_token": 0.1})


def sensitivity(points) -> pd.DataFrame:
    """sensitivity.csv at (step, squared norm of the noise, cost), every term being the cost."""
    rows = []
    terms = ("measured", "first_order", "second_order", "predicted")
    for step, noise, cost in points:
        bounds = {"nats": cost, "low": 0.9 * cost, "high": 1.1 * cost}
        row = {f"{term}_{end}": value for term in terms for end, value in bounds.items()}
        row |= {"step": step, "tensor": "all", "noise_norm2": noise, "weight_norm2": 10.0}
        names = ("low_bit", "high_bit", "noise0", "dither0")
        rows += [{**row, "perturbation": name, "n_weights": 9, "n_batches": 4} for name in names]
    return pd.DataFrame(rows)


def test_noise_and_sensitivity_are_told_apart():
    points = (50, 1.0, 0.04), (100, 2.0, 0.1), (150, 2.0, 0.2), (200, 4.0, 0.8)
    tables = {"audit": AUDIT, "sensitivity": sensitivity(points)}
    expected = {
        "cost_growth": 8,
        "noise_growth": 2,
        "sensitivity_growth": 4,
        # From where rapid learning ends: 20 times the cost, 4 times the noise.
        "run_cost_growth": 20,
        "run_noise_growth": 4,
        "run_relative_noise_growth": 4,
        "run_sensitivity_growth": 5,
        "predicted_over_measured": 1,
        "dither_over_rounding": 1,
        "noise_over_rounding": 1,
        "low_over_high_second_order": 1,
    }
    values = findings(tables, PHASES, spacing=10).set_index("finding")["value"]
    assert values[list(expected)].to_dict() == pytest.approx(expected)


def test_sensitivity_before_the_end_of_rapid_learning_alone_has_no_growth_from_there_on():
    table = sensitivity([(5, 1.0, 0.04), (10, 2.0, 0.1)])
    found = findings({"audit": AUDIT, "sensitivity": table}, PHASES, spacing=10)
    # The step nearest to the best one is the last, so that nothing has grown.
    assert found.set_index("finding")["value"].to_dict() == {
        "cost_growth": 1,
        "noise_growth": 1,
        "relative_noise_growth": 1,
        "sensitivity_growth": 1,
    }


def phase_flips(*oscillations: tuple[str, float]) -> pd.DataFrame:
    """phase_flips.csv: schedules by name with the share that a bump flips; its baseline half."""
    return pd.DataFrame(
        [
            {
                "phases_of": name,
                "schedule": schedule,
                "seed": seed,
                "phase": phase,
                "updates": 3,
                "flipped_own": share * (1.0 if schedule == name else 0.5),
            }
            for name, share in oscillations
            for schedule in (name, "baseline")
            for seed in (0, 1)
            for phase in ("cool", "bump")
        ]
    )


def test_two_oscillating_schedules_have_findings_of_their_own():
    for names, main, other in ((("slow", "oli"), "oli", "slow"), (("a", "b"), "a", "b")):
        table = phase_flips(*zip(names, (0.2, 0.4), strict=True))
        found = findings({"audit": AUDIT, "phase_flips": table}, PHASES, spacing=10)
        assert found["finding"].is_unique and len(found) == 8
        value = found.set_index("finding")["value"]
        share = dict(zip(names, (0.2, 0.4), strict=True))
        assert value["oli_bump_flips"] == pytest.approx(share[main])
        assert value["baseline_cool_flips"] == pytest.approx(share[main] / 2)
        assert value[f"{other}_bump_flips"] == pytest.approx(share[other])
        assert value[f"{other}_baseline_bump_flips"] == pytest.approx(share[other] / 2)


def test_units_without_a_finite_value_do_not_count():
    found = mean_of([1.0, 2.0, np.nan, np.inf], "x")
    assert found == mean_of([1.0, 2.0], "x") and found.n == 2
    assert np.isnan(mean_of([np.nan], "x").value) and mean_of([np.nan], "x").n == 0
