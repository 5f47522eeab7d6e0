"""What statistics.csv compares: every row against the library that computes it."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from arch.bootstrap import StationaryBootstrap
from scipy import stats
from statsmodels.stats.multitest import multipletests

from flatminima.errors import UserError
from flatminima.hypothesis_tests import COLUMNS
from flatminima.intervals import summarise
from flatminima.statistics_table import (
    BLOCKS,
    bit_width_rows,
    fork_rows,
    kurtosis_rows,
    read_fork_sequences,
    text_rows,
)
from tests import synthetic
from tests.statistics_helpers import close, rows_of, select, sequence_scores

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def forks():
    return synthetic.forks()


@pytest.fixture(scope="module")
def fork_table(forks):
    return rows_of(fork_rows(forks, "cosine"))


def gaps_of(forks, schedule, phases=("", "bump", "cool")):
    """Low-bit gaps of a schedule, steps by seeds."""
    low_bit = forks[forks.role == "low_bit"].fillna({"update_phase": ""})
    rows = low_bit[(low_bit.schedule == schedule) & low_bit.update_phase.isin(phases)]
    return rows.pivot(index="step", columns="seed", values="gap_pct")


def test_summaries_pool_all_probes_and_name_the_phase_of_the_last(forks, fork_table):
    summaries = fork_table[fork_table.test == "summary"]
    for name, phases, said in (
        ("cosine", [""], "last probe at"),
        ("oli cool", ["cool"], "cool probe"),
        ("oli all", ["bump", "cool"], "bump probe"),
    ):
        gaps = gaps_of(forks, name.split()[0], phases).stack()
        row = select(summaries, comparison=name, measure="gap_pct")
        assert close((row.value, row.sd_a, row.n_a), (gaps.mean(), gaps.std(), len(gaps)))
        assert said in select(summaries, comparison=name, measure="final_gap_pct").note


def test_cool_probes_are_compared_with_cosine_at_matching_steps(forks, fork_table):
    cool = gaps_of(forks, "oli", ["cool"])
    cosine = gaps_of(forks, "cosine")
    matching = cosine.loc[cool.index]
    for label, others in (("matching steps", matching), ("all probes", cosine)):
        for test, equal in (("Student t", True), ("Welch t", False)):
            row = select(fork_table, comparison=f"oli cool v cosine ({label})", test=test)
            theirs = stats.ttest_ind(cool.stack(), others.stack(), equal_var=equal)
            assert close((row.value, row.p_value), (theirs.statistic, theirs.pvalue))
            assert (row.unit, row.n_a, row.n_b) == ("probe", 60, others.size)
            assert "not independent" in row.note
    row = select(fork_table, comparison="oli cool v cosine", measure="mean_gap_pct", test="Welch t")
    assert close(row.p_value, stats.ttest_ind(cool.mean(), matching.mean(), equal_var=False).pvalue)
    assert (row.unit, row.n_a, row.n_b) == ("seed", 3, 3)


def test_every_condition_has_every_test_and_every_row_its_unit(fork_table):
    by_seed = fork_table[(fork_table.unit == "seed") & (fork_table.test != "summary")]
    found = by_seed.groupby(["comparison", "measure"]).test.agg(sorted)
    assert len(found) == 3 * 2
    tests = ["Welch t", "paired permutation", "paired t", "pairwise wins"]
    assert all(each == tests for each in found)
    compared = fork_table[fork_table.comparison.str.contains(" v ")]
    assert compared.note.str.startswith("unit: ").all()


def test_a_thin_fork_experiment_gives_rows_and_no_crash(forks):
    keep = "seed == 0", "update_phase != 'cool'", "schedule != 'cosine'", "step == step.max()"
    for thin in (*map(forks.query, keep), forks[:0], forks.assign(gap_pct=1.0, ppl=1.0)):
        table = rows_of(fork_rows(thin, "cosine"))
        if len(table):
            missing = table[table.value.isna()]
            assert (missing.note != "").all() and missing.p_value.isna().all()


@pytest.mark.parametrize(("name", "phases"), [("sgdr", [""]), ("oli cool", ["cool"])])
def test_probes_of_every_condition_are_compared_in_all_ways(forks, fork_table, name, phases):
    differences = (gaps_of(forks, name.split()[0], phases) - gaps_of(forks, "cosine")).dropna()
    rows = fork_table[fork_table.comparison == f"{name} v cosine (matching steps)"]
    probe = rows[rows.unit == "probe"]
    assert set(probe.test) == {"Student t", "Welch t", "pairwise wins", "block bootstrap"}
    assert np.allclose(probe.difference, differences.mean(axis=None), rtol=1e-12)
    block = select(probe, test="block bootstrap")
    length = int(block.note.split("stretch of ")[1].split()[0])
    bootstrap = StationaryBootstrap(length, differences.to_numpy(), seed=np.random.default_rng(0))
    draws = bootstrap.apply(lambda x: x.mean(), 4_999)
    assert close(block.interval_low, np.percentile(draws, 2.5))
    assert close(block.interval_high, np.percentile(draws, 97.5))
    parts = [part.mean() for part in np.split(differences.to_numpy().mean(axis=1), 5)]
    theirs = stats.ttest_1samp(parts, 0)
    row = select(rows, unit="segment")
    assert close(row.value, theirs.statistic) and close(row.p_value, theirs.pvalue)
    assert (row.n_a, row.dof) == (5, 4) and close(row.difference, np.mean(parts))
    assert close(row.interval_high, theirs.confidence_interval().high)


def test_blocks_need_enough_steps_that_both_sides_have(forks):
    steps = sorted(forks.step.unique())
    few = rows_of(fork_rows(forks[forks.step.isin(steps[:11])], "cosine"))
    few = few[few.comparison == "sgdr v cosine (matching steps)"]
    for row in (select(few, test="block bootstrap"), select(few, test="segment t")):
        assert np.isnan(row.p_value) and "takes 12 or more steps" in row.note
    alone = forks[(forks.schedule != "cosine") | (forks.seed == 0)]
    table = rows_of(fork_rows(alone, "cosine"))
    row = select(table, comparison="sgdr v cosine (matching steps)", test="segment t")
    assert close(row.difference, (gaps_of(alone, "sgdr") - gaps_of(alone, "cosine"))[0].mean())


# The text as the unit

SCHEDULES = {"cosine": 0.08, "sgdr": 0.05, "oli": 0.03}
SCORED = np.array([63, 63, 40, 63, 20, 63, 63, 51])


def scores(schedule, seed):
    """Per-sequence scores of one fork; the low-bit loss is worse by about the schedule's value."""
    rng = np.random.default_rng([seed, *schedule.encode()])
    tables = []
    for step in (10, 20, 30):
        nll = rng.normal(2.7, 0.3, len(SCORED)) * SCORED
        shift = SCHEDULES[schedule] * rng.gamma(9, 1 / 9, len(SCORED)) * SCORED
        for role, extra in (("fp32", 0), ("low_bit", shift), ("high_bit", 0.01 * shift)):
            tables.append(sequence_scores(step, role, nll + extra, SCORED))
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Scores read from their files, forks.csv that belongs to them, and the rows of both."""
    folder = tmp_path_factory.mktemp("forks")
    paths = []
    forks = []
    for schedule, seed in product(SCHEDULES, (0, 1)):
        table = scores(schedule, seed)
        paths.append(folder / f"{schedule}-seed{seed}.parquet")
        table.to_parquet(paths[-1])
        measured = summarise(table, ["step"], resamples=2, seed=0)
        forks.append(measured.assign(schedule=schedule, seed=seed))
    forks = pd.concat(forks, ignore_index=True)
    cool = forks.step.map({10: "cool", 20: "bump", 30: "cool"})
    forks["update_phase"] = cool.where(forks.schedule == "oli", None)
    sequences = read_fork_sequences(paths)
    assert set(sequences.role) == {"fp32", "low_bit"}
    return sequences, forks, rows_of(text_rows(sequences, forks, "cosine", resamples=400, seed=7))


def gap_of(sequences, schedule, steps, times):
    """Mean gap over seeds and ``steps`` on each draw of sequences, straight from the definition."""
    part = sequences[(sequences.schedule == schedule) & sequences.step.isin(steps)]
    nll = part.pivot(index=["seed", "step", "role"], columns="sequence", values="nll_nats")
    nll = (nll.to_numpy() @ times.T / (SCORED @ times.T)).reshape(-1, 2, len(times))
    return 100 * np.expm1(nll[:, 1] - nll[:, 0]).mean(axis=0)


CASES = [
    ("sgdr", "final_gap_pct", [30]),
    ("sgdr", "mean_gap_pct", [10, 20, 30]),
    ("oli cool", "mean_gap_pct", [10, 30]),
    ("oli all", "final_gap_pct", [30]),
]


@pytest.mark.parametrize(("name", "measure", "steps"), CASES)
def test_other_text_is_drawn_once_for_all_runs(experiment, name, measure, steps):
    sequences, forks, table = experiment
    schedule = name.split()[0]

    # Eight sequences are eight stretches, of which a draw takes five.
    times = np.random.default_rng(7).multinomial(5, [1 / 8] * 8, 400)
    times = np.vstack([np.ones(8), times])
    schedule_gaps, cosine_gaps = (
        gap_of(sequences, schedule_name, steps, times) for schedule_name in (schedule, "cosine")
    )
    value, *values = schedule_gaps - cosine_gaps
    row = select(table, comparison=f"{name} v cosine", measure=measure)
    assert close(row.value, value) and close(row.difference, row.value)
    assert close(row.interval_low, np.percentile(values, 2.5))
    assert close(row.interval_high, np.percentile(values, 97.5))
    below, above = (np.array(values) <= 0).sum(), (np.array(values) >= 0).sum()
    assert close(row.p_value, min(1, 2 * (min(below, above) + 1) / 401))
    assert (row.unit, row.n_a, row.n_b) == ("text", 8, 8)
    alone = select(table, comparison=name, measure=measure)
    assert close(alone.value, row.mean_a) and alone.interval_low < alone.value
    assert np.isnan(alone.p_value)
    measured = forks[(forks.role == "low_bit") & (forks.schedule == schedule)]
    assert close(alone.value, measured[measured.step.isin(steps)].gap_pct.mean())


def test_a_probe_without_scores_is_named_and_a_schedule_may_have_hyphens(experiment, tmp_path):
    sequences, forks, _ = experiment
    lost = sequences.query("schedule != 'oli' or step != 20")
    with pytest.raises(KeyError, match="oli"):
        list(text_rows(lost, forks, "cosine", resamples=9, seed=0))
    scores("oli", 12).to_parquet(tmp_path / "oli-long-seed12.parquet")
    table = read_fork_sequences([tmp_path / "oli-long-seed12.parquet"])
    assert set(table.schedule) == {"oli-long"} and set(table.seed) == {12}


# Along the run


@pytest.mark.parametrize("onset", [True, False])
def test_kurtosis_is_correlated_over_phase_3_or_after_convergence(onset):
    audit = synthetic.audit()
    kurtosis = synthetic.kurtosis()
    rows = rows_of(kurtosis_rows(kurtosis, audit, synthetic.phases(onset=onset), 40))
    start, label = (80 * 40, "phase 3") if onset else (77 * 40, "after convergence")
    gap = audit[(audit.role == "low_bit") & (audit.step >= start)].set_index("step").gap_pct
    for statistic in ("mean_over_tensors", "pooled"):
        values = kurtosis[kurtosis.statistic == statistic].set_index("step").excess_kurtosis
        name = f"kurtosis {statistic} v low_bit gap"
        row = select(rows, comparison=f"{name} ({label})", test="Pearson r, levels")
        assert close(row.value, stats.pearsonr(values.loc[gap.index], gap).statistic)
        assert row.n_a == len(gap)
        assert ("no onset" in row.note) == (not onset)
        few = select(rows, comparison=f"{name} (16 checkpoints)", test="Pearson r, detrended")
        assert few.n_a == 16


def test_bit_widths_are_compared_by_sums_that_keep_every_checkpoint():
    audit = synthetic.audit(negative_int8=True)
    even = audit[(audit.step > 0) & (audit.step % 40 == 0)]
    added = even.pivot(index="step", columns="role", values="delta_nll_nats_per_token")
    high, low = added["high_bit"].to_numpy(), added["low_bit"].to_numpy()
    assert (high <= 0).any()
    rows = rows_of(bit_width_rows(audit, 40))
    ratio = select(rows, test="ratio")
    assert close(ratio.value, low.sum() / high.sum()) and ratio.n_a == len(high)
    sums = [[p.sum() for p in np.array_split(series, BLOCKS)] for series in (low, high)]
    slope = select(rows, test="log-log regression")
    assert close(slope.value, stats.linregress(*np.log(sums)).slope)
    assert slope.interval_low < slope.value < slope.interval_high


def test_a_tiny_suite_that_converges_at_its_end_gives_rows_without_values():
    audit = synthetic.audit(short=True)
    kurtosis = synthetic.kurtosis(short=True)
    phases = {"onset": {"step": None}, "convergence": {"step": int(audit.step.max())}}
    rows = rows_of(kurtosis_rows(kurtosis, audit, phases, 13 * 40))
    late = rows[rows.comparison.str.endswith("(after convergence)")]
    assert len(late) == 6 and late.p_value.isna().all()
    few = rows_of(bit_width_rows(synthetic.audit().query("step <= 200"), 40))
    assert np.isnan(select(few, test="log-log regression").value)


def test_every_p_belongs_to_a_family_and_one_row_is_primary():
    primary = {
        "test": "paired t",
        "comparison": "sgdr v cosine",
        "unit": "seed",
        "measure": "mean_gap_pct",
    }
    table = synthetic.statistics(primary=primary)
    assert list(table.columns) == COLUMNS and "text" not in set(table.unit)
    assert (table.family != "").equals(table.p_value.notna())
    [primary_row] = table[table.family == "primary"].to_dict("records")
    assert (
        primary.items() <= primary_row.items()
        and primary_row["p_adjusted"] == primary_row["p_value"]
    )
    rest = table[table.family == "exploratory"]
    theirs = multipletests(rest.p_value, method="holm")[1]
    assert rest.p_adjusted.to_numpy() == pytest.approx(theirs, rel=1e-12)
    assert not table.duplicated(["test", "comparison", "unit", "measure"]).any()
    with pytest.raises(UserError, match=r"fork.primary: no test has .*'oli v cosine'"):
        synthetic.statistics(primary=primary | {"comparison": "oli v cosine"})
