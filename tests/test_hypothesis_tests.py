"""Tests against scipy and statsmodels, the paper's printed numbers, and degenerate input."""

import runpy
import warnings
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttest_ind

from tests import synthetic
from workflow_scripts.lib.checkpoint_tests import bit_width_rows, kurtosis_rows
from workflow_scripts.lib.correlations import correlations
from workflow_scripts.lib.fork_tests import fork_rows
from workflow_scripts.lib.statistics_rows import COLUMNS
from workflow_scripts.lib.two_sample_tests import exact_tests, smallest_p, t_tests

WHERE = {"comparison": "x v y", "unit": "seed", "measure": "gap_pct"}


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def sample(mean, sd, count):
    """``count`` values with exactly this mean and sample standard deviation."""
    values = np.linspace(-1, 1, count)
    return mean + sd * values / np.std(values, ddof=1)


def rows_of(generated):
    return pd.DataFrame([vars(row) for row in generated])


def select(table, **columns):
    for name, value in columns.items():
        table = table[table[name] == value]
    assert len(table) == 1, f"{columns}: {len(table)} rows"
    return table.iloc[0]


def close(ours, theirs):
    return ours == pytest.approx(theirs, rel=1e-12, abs=1e-14)


# --- the paper's printed numbers ---------------------------------------------------------


def test_table_2_sgdr_against_cosine_is_not_significant_with_three_seeds():
    student, welch = t_tests(sample(16.7, 2.7, 3), sample(12.3, 0.8, 3), WHERE)
    assert welch.value == pytest.approx(2.71, abs=0.01)
    assert welch.p_value == pytest.approx(0.096, abs=0.001)
    assert student.dof == 4 and 2 < welch.dof < 3


def test_section_5_2_t_is_that_of_60_pooled_probes_on_each_side():
    student, _ = t_tests(sample(5.3, 2.2, 60), sample(7.7, 2.55, 60), WHERE)
    assert student.value == pytest.approx(-5.5, abs=0.06)
    assert student.p_value < 1e-4 and student.dof == 118
    _, welch = t_tests(sample(5.3, 2.2, 3), sample(7.7, 2.55, 3), WHERE)
    assert welch.p_value > 0.2


def test_no_wins_in_nine_pairs_cannot_be_below_a_tenth():
    wins = next(exact_tests(np.array([4.0, 5, 6]), np.array([1.0, 2, 3]), WHERE))
    assert (wins.value, wins.p_value) == (0, pytest.approx(0.1))
    assert "of 9 pairs" in wins.note and wins.note.endswith("3 v 3 units: 0.1")
    assert smallest_p(3, 3) == pytest.approx(0.1)
    six = next(exact_tests(np.array([1.0, 2, 9]), np.array([3.0, 4, 5]), WHERE))
    assert (six.value, six.p_value) == (6, pytest.approx(0.7))


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


# --- agreement with the libraries --------------------------------------------------------


def test_t_tests_agree_with_statsmodels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 7), rng.normal(0.5, 2, 11)
    for row, usevar in zip(t_tests(a, b, WHERE), ("pooled", "unequal"), strict=True):
        t, p, dof = ttest_ind(a, b, usevar=usevar)
        assert close(row.value, t) and close(row.p_value, p) and close(row.dof, dof)
        assert close(row.mean_a, a.mean()) and close(row.sd_b, b.std(ddof=1))
        assert (row.n_a, row.n_b) == (7, 11)
    pooled = np.sqrt((6 * a.var(ddof=1) + 10 * b.var(ddof=1)) / 16)
    assert close(row.effect_size, (a.mean() - b.mean()) / pooled)
    assert close(row.difference, a.mean() - b.mean())


def test_exact_tests_agree_with_all_regroupings():
    a, b = np.array([1.0, 2.5, 4.2, 0.3]), np.array([3.1, 5.0, 6.5])
    wins, permutation = exact_tests(a, b, WHERE)
    assert wins.value == sum(x < y for x in a for y in b) == 11
    pool = np.concatenate([a, b])
    differences = [
        np.mean(order[:4]) - np.mean(order[4:])
        for order in {(*sorted(p[:4]), *sorted(p[4:])) for p in permutations(pool)}
    ]
    assert len(differences) == 35
    low = np.mean(np.array(differences) <= a.mean() - b.mean() + 1e-12)
    high = np.mean(np.array(differences) >= a.mean() - b.mean() - 1e-12)
    assert close(permutation.p_value, min(1.0, 2 * min(low, high)))
    assert close(wins.p_value, stats.mannwhitneyu(a, b, method="exact").pvalue)
    assert smallest_p(4, 3) == pytest.approx(2 / 35)


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


# --- the fork experiment -----------------------------------------------------------------


@pytest.fixture(scope="module")
def forks():
    return synthetic.forks()


@pytest.fixture(scope="module")
def fork_table(forks):
    return rows_of(fork_rows(forks, "cosine"))


def test_table_2_means_and_standard_deviations(forks, fork_table):
    low_bit = forks[forks.role == "low_bit"]
    oli = low_bit[low_bit.schedule == "oli"]
    expected = {
        "cosine": low_bit[low_bit.schedule == "cosine"],
        "sgdr": low_bit[low_bit.schedule == "sgdr"],
        "oli cool": oli[oli.update_phase == "cool"],
        "oli all": oli,
    }
    summaries = fork_table[fork_table.test == "summary"]
    assert list(summaries.comparison.unique()) == list(expected)
    for name, rows in expected.items():
        seeds = rows.pivot(index="step", columns="seed", values="gap_pct")
        final = select(summaries, comparison=name, measure="final_gap_pct")
        assert close(final.value, seeds.iloc[-1].mean())
        assert close(final.sd_a, seeds.iloc[-1].std())
        mean = select(summaries, comparison=name, measure="mean_gap_pct")
        assert close(mean.value, seeds.mean().mean()) and close(mean.sd_a, seeds.mean().std())
        pooled = select(summaries, comparison=name, unit="probe")
        assert close(pooled.sd_a, rows.gap_pct.std())
        assert pooled.n_a == (60 if name == "oli cool" else 90)
        fp32 = forks[(forks.role == "fp32") & (forks.schedule == name.split()[0])]
        last = fp32[fp32.step == rows.step.max()].ppl
        assert close(
            select(summaries, comparison=name, measure="final_fp32_ppl").value, last.mean()
        )
    assert "bump probe" in select(summaries, comparison="oli all", measure="final_gap_pct").note
    assert "cool probe" in select(summaries, comparison="oli cool", measure="final_gap_pct").note


def test_cool_probes_are_compared_with_cosine_at_matching_steps(forks, fork_table):
    low_bit = forks[forks.role == "low_bit"]
    cool = low_bit[low_bit.update_phase == "cool"]
    cosine = low_bit[low_bit.schedule == "cosine"]
    matching = cosine[cosine.step.isin(cool.step)]
    for label, others, count in (("matching steps", matching, 60), ("all probes", cosine, 90)):
        for test, equal in (("Student t", True), ("Welch t", False)):
            row = select(fork_table, comparison=f"oli cool v cosine ({label})", test=test)
            theirs = stats.ttest_ind(cool.gap_pct, others.gap_pct, equal_var=equal)
            assert close(row.value, theirs.statistic) and close(row.p_value, theirs.pvalue)
            assert (row.unit, row.n_a, row.n_b) == ("probe", 60, count)
            assert "not independent" in row.note
    seeds = [part.groupby("seed").gap_pct.mean() for part in (cool, matching)]
    row = select(fork_table, comparison="oli cool v cosine", measure="mean_gap_pct", test="Welch t")
    assert close(row.p_value, stats.ttest_ind(*seeds, equal_var=False).pvalue)
    assert (row.unit, row.n_a, row.n_b) == ("seed", 3, 3)


def test_every_condition_has_every_test_with_the_seed_as_unit(fork_table):
    tests = {"pairwise wins", "permutation", "Student t", "Welch t", "same-seed sign"}
    for name in ("sgdr", "oli cool", "oli all"):
        for measure in ("final_gap_pct", "mean_gap_pct"):
            rows = fork_table[
                (fork_table.comparison == f"{name} v cosine") & (fork_table.measure == measure)
            ]
            assert set(rows.test) == tests and len(rows) == len(tests)
            assert "0.1" in rows[rows.test == "pairwise wins"].note.iloc[0]


def test_same_seed_sign_counts_seeds_that_are_lower(forks, fork_table):
    finals = forks[(forks.role == "low_bit") & (forks.step == forks.step.max())]
    gap = finals.pivot(index="seed", columns="schedule", values="gap_pct")
    row = select(
        fork_table, comparison="sgdr v cosine", measure="final_gap_pct", test="same-seed sign"
    )
    assert row.value == (gap.sgdr < gap.cosine).sum()


# --- checkpoints -------------------------------------------------------------------------


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


# --- degenerate input --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        ([1.0], [2.0, 3.0], "two or more units on each side, not 1 and 2"),
        ([], [2.0, 3.0], "two or more units on each side, not 0 and 2"),
        ([2.0, 2.0], [2.0, 2.0], "no variance on either side"),
        ([2.0, 2.0 + 4e-16], [3.0, 3.0], "no variance on either side"),
    ],
)
def test_t_tests_without_an_answer_say_why(a, b, note):
    for row in t_tests(np.array(a), np.array(b), WHERE):
        assert np.isnan(row.p_value) and np.isnan(row.value)
        assert note in row.note and (row.n_a, row.n_b) == (len(a), len(b))


def test_exact_tests_without_an_answer_say_why():
    wins, permutation = exact_tests(np.array([1.0]), np.array([2.0]), WHERE)
    assert (wins.value, wins.p_value) == (1, 1.0)
    assert np.isnan(permutation.p_value) and "two or more units" in permutation.note
    tied, _ = exact_tests(np.array([1.0, 2.0]), np.array([2.0, 3.0]), WHERE)
    assert tied.value == 3 and np.isnan(tied.p_value) and "ties" in tied.note
    none, _ = exact_tests(np.array([]), np.array([2.0]), WHERE)
    assert np.isnan(none.value) and "no pairs" in none.note


def test_correlations_without_an_answer_say_why():
    for x, note in ((np.arange(2.0), "three or more"), (np.ones(5), "does not vary")):
        for row in correlations(x, np.arange(float(len(x))), WHERE):
            assert np.isnan(row.value) and np.isnan(row.p_value) and note in row.note


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: f[f.seed == 0],
        lambda f: f.assign(gap_pct=1.0, ppl=1.0),
        lambda f: f[f.update_phase != "cool"],
        lambda f: f[f.schedule != "cosine"],
        lambda f: f[f.schedule == "cosine"],
        lambda f: f[f.step == f.step.max()],
        lambda f: f.iloc[:0],
    ],
    ids=["one seed", "constant", "no cool probe", "no baseline", "baseline only", "one probe",
         "nothing"],
)  # fmt: skip
def test_a_thin_fork_experiment_gives_rows_and_no_crash(forks, spoil):
    table = rows_of(fork_rows(spoil(forks), "cosine"))
    if len(table):
        missing = table[table.value.isna()]
        assert (missing.note != "").all() and missing.p_value.isna().all()


def test_a_tiny_suite_that_converges_at_its_end_gives_rows():
    audit, kurtosis = synthetic.audit(short=True), synthetic.kurtosis(short=True)
    last = int(audit.step.max())
    phases = {"onset": {"step": None}, "convergence": {"step": last}}
    rows = rows_of(kurtosis_rows(kurtosis, audit, phases, 13 * 40))
    late = rows[rows.comparison.str.endswith("(after convergence)")]
    assert len(late) == 4 and late.p_value.isna().all()
    assert late.note.str.contains("three or more observations, not 1").all()


# --- the file ----------------------------------------------------------------------------


def test_script_writes_one_table_with_the_same_bytes_twice(tmp_path):
    folder = synthetic.write(tmp_path / "results")
    written = []
    for name in ("a.csv", "b.csv"):
        inputs = {name: folder / f"{name}.csv" for name in ("forks", "audit", "kurtosis")}
        job = SimpleNamespace(
            input=SimpleNamespace(**inputs, phases=folder / "phases.json"),
            output=SimpleNamespace(statistics=tmp_path / name), log=[tmp_path / "log"],
            params=SimpleNamespace(spacing=40, baseline="cosine"),
        )  # fmt: skip
        runpy.run_path(
            "workflow_scripts/test_hypotheses.py",
            init_globals={"snakemake": job},
            run_name="__main__",
        )
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    table = pd.read_csv(tmp_path / "a.csv")
    assert list(table.columns) == COLUMNS
    assert not table.duplicated(["test", "comparison", "unit", "measure"]).any()
    assert len(table) == len(synthetic.statistics())
