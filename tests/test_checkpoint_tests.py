"""Correlations along the training run, against scipy and the paper's Table 1."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.comparisons import bit_width_rows, kurtosis_rows
from flatminima.hypothesis_tests import correlations
from tests import synthetic
from tests.statistics_helpers import WHERE, close, rows_of, select

pytestmark = pytest.mark.filterwarnings("error")


def test_table_1_int8_grows_in_proportion_to_int4():
    table = synthetic.PAPER_TABLE1
    audit = pd.concat([
        pd.DataFrame({"step": table.step, "role": role,
                      "delta_nll_nats_per_token": np.log1p(table[column] / 100)})
        for role, column in (("low_bit", "int4_gap_pct"), ("high_bit", "int8_gap_pct"))
    ])  # fmt: skip
    rows = rows_of(bit_width_rows(audit, 1000))
    rows = rows[rows.comparison == "high_bit v low_bit (even steps)"]
    raw, logs = "delta_nll_nats_per_token", "ln delta_nll_nats_per_token"
    assert select(rows, test="Pearson r", measure=raw).value == pytest.approx(0.986, abs=5e-4)
    assert select(rows, test="Pearson r", measure=logs).value == pytest.approx(0.974, abs=5e-4)
    assert select(rows, test="ratio").value == pytest.approx(162, abs=1)
    slope = select(rows, test="log-log regression")
    assert 0.7 < slope.value < 1.3 and slope.n_a == 10


def test_correlations_agree_with_scipy_and_small_samples_are_permuted():
    rng = np.random.default_rng(1)
    x = rng.normal(size=40)
    y = x + rng.normal(size=40)
    pearson, spearman = correlations(x, y, WHERE)
    assert close(pearson.value, stats.pearsonr(x, y).statistic)
    assert close(pearson.p_value, stats.pearsonr(x, y).pvalue)
    assert close(spearman.value, stats.spearmanr(x, y).statistic)
    assert close(spearman.p_value, stats.spearmanr(x, y).pvalue)
    _, perfect = correlations(np.arange(7.0), np.arange(7.0) ** 2, WHERE)
    # 7! orders, one of which agrees as well and one of which disagrees as well.
    assert perfect.value == pytest.approx(1) and perfect.p_value == pytest.approx(2 / 5040)
    _, weak = correlations(np.arange(6.0), np.array([1.0, 0, 3, 2, 5, 4]), WHERE)
    rhos = [stats.spearmanr(np.arange(6), order).statistic for order in permutations(range(6))]
    assert close(weak.p_value, 2 * np.mean(np.array(rhos) >= weak.value - 1e-12))


@pytest.mark.parametrize("onset", [True, False])
def test_kurtosis_is_correlated_over_phase_3_or_after_convergence(onset):
    audit, kurtosis = synthetic.audit(), synthetic.kurtosis()
    phases = synthetic.phases(onset=onset)
    rows = rows_of(kurtosis_rows(kurtosis, audit, phases, 40))
    start, label = (80 * 40, "phase 3") if onset else (77 * 40, "after convergence")
    gap = audit[(audit.role == "low_bit") & (audit.step >= start)].set_index("step").gap_pct
    for statistic in ("mean_over_tensors", "pooled"):
        values = kurtosis[kurtosis.statistic == statistic].set_index("step").excess_kurtosis
        theirs = stats.pearsonr(values.loc[gap.index], gap)
        name = f"kurtosis {statistic} v low_bit gap ({label})"
        row = select(rows, comparison=name, test="Pearson r")
        assert close(row.value, theirs.statistic) and close(row.p_value, theirs.pvalue)
        assert row.n_a == len(gap) == (64 if onset else 67)
        assert ("no onset" in row.note) == (not onset)
        few = select(rows, comparison=f"kurtosis {statistic} v low_bit gap (16 checkpoints)",
                     test="Spearman rho")  # fmt: skip
        assert few.n_a == 16
        late = f"kurtosis {statistic} v low_bit gap (16 checkpoints, {label})"
        assert 5 <= select(rows, comparison=late, test="Pearson r").n_a <= 9


def test_bit_widths_leave_out_and_count_deltas_without_a_logarithm():
    audit = synthetic.audit(negative_int8=True)
    high = audit[audit.role == "high_bit"].delta_nll_nats_per_token.to_numpy()
    low = audit[audit.role == "low_bit"].delta_nll_nats_per_token.to_numpy()
    rows = rows_of(bit_width_rows(audit, 40))
    rows = rows[rows.comparison == "high_bit v low_bit (all)"]
    keep = high > 0
    assert 0 < (~keep).sum() < len(high)
    row = select(rows, test="log-log regression")
    fit = stats.linregress(np.log(low[keep]), np.log(high[keep]))
    assert close(row.value, fit.slope) and close(row.p_value, fit.pvalue)
    assert row.note.startswith(f"{(~keep).sum()} checkpoints") and row.n_a == keep.sum()
    raw = select(rows, test="Pearson r", measure="delta_nll_nats_per_token")
    assert raw.n_a == len(high) and close(raw.value, stats.pearsonr(high, low).statistic)


def test_correlations_without_an_answer_say_why():
    for x, note in ((np.arange(2.0), "three or more"), (np.ones(5), "does not vary")):
        for row in correlations(x, np.arange(float(len(x))), WHERE):
            assert np.isnan(row.value) and np.isnan(row.p_value) and note in row.note


def test_a_tiny_suite_that_converges_at_its_end_gives_rows():
    audit, kurtosis = synthetic.audit(short=True), synthetic.kurtosis(short=True)
    last = int(audit.step.max())
    phases = {"onset": {"step": None}, "convergence": {"step": last}}
    rows = rows_of(kurtosis_rows(kurtosis, audit, phases, 13 * 40))
    late = rows[rows.comparison.str.endswith("(after convergence)")]
    assert len(late) == 4 and late.p_value.isna().all()
    assert late.note.str.contains("three or more observations, not 1").all()
