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
from tests.statistics_helpers import sequence_scores
from workflow_scripts.compare_replicas import growth_slopes, run_phases


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
    about = {"suite": "toy", "width": 16, "seed": 0, "weight_decay": 0.1}
    return table.assign(**about, tokens_per_weight=4.0 * table["step"]), scores


def test_growth_before_and_after_the_own_minimum_and_while_the_tokens_double():
    table, scores = run(slope_after=0.4)
    row = run_phases(table, scores, spacing=20, resamples=40)
    assert row["fp32_step"] == 400 and row["width"] == 16
    assert row["gap_last_pct"] == pytest.approx(100 * np.expm1(0.05 + 0.16), rel=1e-6)
    for name, value in (("before", 0.1), ("after", 0.4), ("change", 0.3)):
        assert row[f"slope_{name}"] == pytest.approx(value, abs=1e-6)
    assert row["slope_change_low"] > 0
    steps = np.arange(20, 801, 20)
    added = 0.01 + 0.0001 * np.minimum(steps, 400) + 0.0004 * np.maximum(steps - 400, 0)
    expected = added[steps > 720].mean() / added[(steps > 360) & (steps <= 400)].mean()
    assert row["last_doubling"] == pytest.approx(expected, rel=1e-6)
    assert row["last_doubling_low"] < expected < row["last_doubling_high"]
    assert row["tokens_per_weight"] == 3200
    assert row["fp32_last_fifth_nats"] == pytest.approx(0.2, abs=1e-6)
    assert row["fp32_over_best_nats"] == pytest.approx(0.4625 - 0.03, abs=1e-6)
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


def test_findings_of_what_was_measured_and_of_nothing_else():
    steps = np.arange(10, 210, 10)
    audit = pd.DataFrame({"step": steps, "role": "low_bit",
                          "delta_nll_nats_per_token": steps / 1000})  # fmt: skip
    curvature = pd.DataFrame({
        "step": steps, "weight_norm2": 4.0, "trace": steps / 1.0, "trace_low": steps * 0.9,
        "trace_high": steps * 1.1, "trace_n": 20, "top_eigenvalue": 5.0,
        "top_eigenvalue_low": 4.0, "top_eigenvalue_high": 6.0, "top_eigenvalue_n": 8,
    })  # fmt: skip
    phases = {"convergence": {"step": 100}, "rapid_learning_end": {"step": 20}}
    found = findings({"audit": audit, "curvature": curvature}, phases, spacing=10)
    assert list(found.columns) == COLUMNS
    at = found.set_index("finding")["value"]
    assert at["trace_growth"] == 2.0 and at["top_eigenvalue_growth"] == 1.0
    assert at["normalised_trace_growth"] == 2.0
    assert at["trace_rank_r"] == pytest.approx(1.0)
    assert np.isnan(at["top_eigenvalue_rank_r"])  # of a constant
    assert set(at.index) == {
        "trace_growth", "normalised_trace_growth", "top_eigenvalue_growth",
        "normalised_top_eigenvalue_growth", "trace_rank_r", "top_eigenvalue_rank_r",
    }  # fmt: skip
    assert findings({"audit": audit}, phases, spacing=10).empty


def test_noise_and_sensitivity_are_told_apart():
    rows = []
    for step, noise, cost in ((50, 1.0, 0.04), (100, 2.0, 0.1), (150, 2.0, 0.2), (200, 4.0, 0.8)):
        terms = ("measured", "first_order", "second_order", "predicted")
        bounds = {"nats": cost, "low": 0.9 * cost, "high": 1.1 * cost}
        row = {f"{term}_{end}": value for term in terms for end, value in bounds.items()}
        row |= {"step": step, "tensor": "all", "noise_norm2": noise, "weight_norm2": 10.0}
        names = ("low_bit", "high_bit", "noise0", "dither0")
        rows += [{**row, "perturbation": name, "n_weights": 9, "n_batches": 4} for name in names]
    phases = {"convergence": {"step": 100}, "rapid_learning_end": {"step": 20}}
    audit = pd.DataFrame({"step": [100], "role": "low_bit", "delta_nll_nats_per_token": 0.1})
    tables = {"audit": audit, "sensitivity": pd.DataFrame(rows)}
    at = findings(tables, phases, spacing=10).set_index("finding")["value"]
    assert at["cost_growth"] == pytest.approx(8) and at["noise_growth"] == pytest.approx(2)
    assert at["sensitivity_growth"] == pytest.approx(4)
    # From where rapid learning ends: 20 times the cost, 4 times the noise.
    assert at["run_cost_growth"] == pytest.approx(20)
    assert at["run_noise_growth"] == at["run_relative_noise_growth"] == pytest.approx(4)
    assert at["run_sensitivity_growth"] == pytest.approx(5)
    assert at["predicted_over_measured"] == pytest.approx(1)
    assert at["dither_over_rounding"] == at["noise_over_rounding"] == pytest.approx(1)
    assert at["low_over_high_second_order"] == pytest.approx(1)
