"""The tests of the fork experiment: every row against the library that computes it."""

import numpy as np
import pytest
from arch.bootstrap import StationaryBootstrap
from scipy import stats

from flatminima.comparisons import fork_rows
from tests import synthetic
from tests.statistics_helpers import close, rows_of, select

pytestmark = pytest.mark.filterwarnings("error")


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
    tests = {"pairwise wins", "permutation", "Student t", "Welch t", "same-seed sign",
             "block bootstrap"}  # fmt: skip
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


def paired(forks, schedule, phases=("", "bump", "cool")):
    """Gap of a schedule minus cosine's at the same step and seed, steps by seeds."""
    low_bit = forks[forks.role == "low_bit"]
    a, b = (
        low_bit[low_bit.schedule == name].pivot(index="step", columns="seed", values="gap_pct")
        for name in (schedule, "cosine")
    )
    kept = low_bit[(low_bit.schedule == schedule) & low_bit.update_phase.isin(phases)]
    return (a - b).loc[sorted(kept.step.unique())]


@pytest.mark.parametrize(("name", "phases"), [("sgdr", [""]), ("oli cool", ["cool"])])
def test_probes_of_every_condition_are_compared_in_all_ways(forks, fork_table, name, phases):
    differences = paired(forks, name.split()[0], phases).to_numpy()
    rows = fork_table[fork_table.comparison == f"{name} v cosine (matching steps)"]
    probe = rows[rows.unit == "probe"]
    assert set(probe.test) == {
        "Student t", "Welch t", "pairwise wins", "permutation", "block bootstrap"
    }  # fmt: skip
    assert np.allclose(probe.difference, differences.mean(), rtol=1e-12)
    assert probe.cohens_d.nunique() == probe.cliffs_delta.nunique() == 1
    block = select(probe, test="block bootstrap")
    length = int(block.note.split("stretch of ")[1].split()[0])
    bootstrap = StationaryBootstrap(length, differences, seed=np.random.default_rng(0))
    draws = bootstrap.apply(lambda x: x.mean(), 4_999)
    assert close(block.interval_low, np.percentile(draws, 2.5))
    assert close(block.interval_high, np.percentile(draws, 97.5))
    parts = [part.mean() for part in np.split(differences.mean(axis=1), 5)]
    theirs = stats.ttest_1samp(parts, 0)
    row = select(rows, unit="segment")
    assert close(row.value, theirs.statistic) and close(row.p_value, theirs.pvalue)
    assert (row.n_a, row.dof) == (5, 4) and close(row.difference, differences.mean())
    assert close(row.interval_high, theirs.confidence_interval().high)


def test_runs_resampled_whole_give_their_range_and_no_p(forks, fork_table):
    rows = fork_table[(fork_table.test == "block bootstrap") & (fork_table.unit == "seed")]
    row = select(rows, comparison="sgdr v cosine", measure="mean_gap_pct")
    by_seed = paired(forks, "sgdr").mean()
    assert close(row.difference, by_seed.mean()) and np.isnan(row.p_value)
    assert (row.interval_low, row.interval_high) == pytest.approx((by_seed.min(), by_seed.max()))
    assert "in 75 of 100 experiments, not 95" in row.note
    many = synthetic.forks(seeds=tuple(range(6)))
    rows = rows_of(fork_rows(many, "cosine"))
    rows = rows[(rows.test == "block bootstrap") & (rows.comparison == "sgdr v cosine")]
    row = select(rows, unit="seed", measure="mean_gap_pct")
    by_seed = paired(many, "sgdr").mean()
    theirs = stats.bootstrap(
        (by_seed,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert close(row.interval_low, theirs.low) and close(row.interval_high, theirs.high)
    assert by_seed.min() < row.interval_low and "experiments" not in row.note


def test_the_range_of_three_holds_the_median_in_three_of_four_experiments():
    samples = np.random.default_rng(1).normal(size=(20_000, 3))
    held = (samples.min(axis=1) < 0) & (samples.max(axis=1) > 0)
    assert held.mean() == pytest.approx(0.75, abs=0.01)


def test_every_row_says_what_its_unit_is(fork_table):
    compared = fork_table[fork_table.comparison.str.contains(" v ")]
    assert compared.note.str.startswith("unit: ").all()


def test_blocks_need_enough_steps_that_both_sides_have(forks):
    steps = sorted(forks.step.unique())
    few = rows_of(fork_rows(forks[forks.step.isin(steps[:11])], "cosine"))
    few = few[few.comparison == "sgdr v cosine (matching steps)"]
    for row in (select(few, test="block bootstrap"), select(few, test="segment t")):
        assert np.isnan(row.p_value)
        assert row.note == "takes 12 or more steps that both sides have, not 11"
    alone = forks[(forks.schedule != "cosine") | (forks.seed == 0)]
    row = select(
        rows_of(fork_rows(alone, "cosine")),
        comparison="sgdr v cosine (matching steps)", test="segment t",
    )  # fmt: skip
    assert close(row.difference, paired(alone, "sgdr")[0].mean())
