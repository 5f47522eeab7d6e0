"""The paired bootstrap over validation sequences, against scipy on invented scores."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.comparisons import read_fork_sequences, sequence_rows
from flatminima.intervals import summarise
from tests.statistics_helpers import close, rows_of, select

pytestmark = pytest.mark.filterwarnings("error")
SCHEDULES = {"cosine": 0.08, "sgdr": 0.05, "oli": 0.03}
SCORED = np.array([63, 63, 40, 63, 20, 63, 63, 51])


def scores(schedule, seed, steps=(10, 20, 30)):
    """Per-sequence scores of one fork; the low-bit loss is worse by about the schedule's value."""
    rng = np.random.default_rng([seed, *schedule.encode()])
    tables = []
    for step in steps:
        nll = rng.normal(2.7, 0.3, len(SCORED)) * SCORED
        shift = SCHEDULES[schedule] * rng.gamma(9, 1 / 9, len(SCORED)) * SCORED
        for name, role, extra in (("fp32", "fp32", 0), ("q4", "low_bit", shift),
                                  ("q8", "high_bit", 0.01 * shift)):  # fmt: skip
            tables.append(pd.DataFrame({
                "step": step, "quantizer": name, "role": role, "sequence": range(len(SCORED)),
                "nll_nats": nll + extra, "kl_nats": 0.0, "top1_changed": 0.0, "scored": SCORED,
            }))  # fmt: skip
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Files of scores, their table and the forks.csv that belongs to them."""
    folder, paths, forks = tmp_path_factory.mktemp("forks"), [], []
    for schedule in SCHEDULES:
        for seed in (0, 1):
            table = scores(schedule, seed)
            paths.append(folder / f"{schedule}-seed{seed}.parquet")
            table.to_parquet(paths[-1])
            measured = summarise(table, ["step"], resamples=2, seed=0)
            forks.append(measured.assign(schedule=schedule, seed=seed))
    forks = pd.concat(forks, ignore_index=True)
    cool = forks.step.map({10: "cool", 20: "bump", 30: "cool"})
    forks["update_phase"] = cool.where(forks.schedule == "oli", None)
    return paths, read_fork_sequences(paths), forks


@pytest.fixture(scope="module")
def rows(experiment):
    _, sequences, forks = experiment
    return rows_of(sequence_rows(sequences, forks, "cosine", resamples=400, seed=7))


def gap_of(sequences, schedule, steps, drawn):
    """Mean gap over seeds and ``steps`` on each draw of sequences, straight from the definition."""
    part = sequences[(sequences.schedule == schedule) & sequences.step.isin(steps)]
    gaps = []
    for _, probe in part.groupby(["seed", "step"]):
        nll = {
            role: table.sort_values("sequence").nll_nats.to_numpy()[drawn].sum(axis=-1)
            / SCORED[drawn].sum(axis=-1)
            for role, table in probe.groupby("role")
        }
        gaps.append(100 * (np.exp(nll["low_bit"] - nll["fp32"]) - 1))
    return np.mean(gaps, axis=0)


CASES = [("sgdr", "final_gap_pct", [30]), ("sgdr", "mean_gap_pct", [10, 20, 30]),
         ("oli cool", "mean_gap_pct", [10, 30]), ("oli all", "final_gap_pct", [30])]  # fmt: skip


@pytest.mark.parametrize(("name", "measure", "steps"), CASES)
def test_interval_and_difference_are_those_of_scipy(experiment, rows, name, measure, steps):
    _, sequences, _ = experiment
    schedule = name.split()[0]

    def difference(drawn):
        return gap_of(sequences, schedule, steps, drawn) - gap_of(sequences, "cosine", steps, drawn)

    row = select(rows, comparison=f"{name} v cosine", measure=measure)
    assert close(row.value, difference(np.arange(8))) and close(row.difference, row.value)
    # scipy's own draws with the seed of the rule.
    drawn = np.random.default_rng(7).integers(0, 8, (400, 8))
    values = difference(drawn)
    assert close(row.interval_low, np.percentile(values, 2.5))
    assert close(row.interval_high, np.percentile(values, 97.5))
    below, above = (values <= 0).sum(), (values >= 0).sum()
    assert close(row.p_value, min(1, 2 * (min(below, above) + 1) / 401))
    assert (row.unit, row.n_a, row.n_b) == ("sequence", 8, 8)
    alone = select(rows, comparison=name, measure=measure)
    assert close(alone.value, row.mean_a) and alone.interval_low < alone.value
    assert np.isnan(alone.p_value)


def test_one_run_alone_has_the_interval_of_scipy(experiment):
    _, sequences, forks = experiment
    one = forks[(forks.schedule == "cosine") & (forks.seed == 0)]
    row = select(
        rows_of(sequence_rows(sequences, one, "cosine", resamples=300, seed=1)),
        measure="final_gap_pct",
    )
    part = sequences.query("schedule == 'cosine' and seed == 0 and step == 30")
    fp32, low_bit = (part[part.role == role].nll_nats.to_numpy() for role in ("fp32", "low_bit"))

    def gap(fp32, low_bit, scored):
        return 100 * np.expm1((low_bit - fp32).sum() / scored.sum())

    theirs = stats.bootstrap(
        (fp32, low_bit, SCORED), gap, paired=True, vectorized=False, n_resamples=300,
        method="percentile", rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert close(row.interval_low, theirs.low) and close(row.interval_high, theirs.high)


def test_values_are_those_of_forks_csv(experiment, rows):
    _, _, forks = experiment
    low_bit = forks[(forks.role == "low_bit") & (forks.schedule == "sgdr")]
    row = select(rows, comparison="sgdr", measure="final_gap_pct")
    assert close(row.value, low_bit[low_bit.step == 30].gap_pct.mean())
    row = select(rows, comparison="sgdr v cosine", measure="mean_gap_pct")
    assert close(row.mean_a, low_bit.gap_pct.mean())


def test_the_control_is_compared_with_nothing(rows):
    assert list(rows.comparison.unique()) == [
        "cosine", "sgdr", "sgdr v cosine", "oli cool", "oli cool v cosine", "oli all",
        "oli all v cosine",
    ]  # fmt: skip
    assert (rows.groupby("comparison").size() == 2).all()


def test_thin_experiments_give_rows(experiment):
    _, sequences, forks = experiment
    for part in (
        forks[forks.schedule != "cosine"], forks[forks.update_phase != "cool"],
        forks[forks.schedule == "cosine"], forks[forks.step == 30], forks.iloc[:0],
        forks[(forks.schedule != "cosine") | (forks.step == 10)],
    ):  # fmt: skip
        table = rows_of(sequence_rows(sequences, part, "cosine", resamples=9, seed=0))
        if len(table):
            assert table.interval_low.notna().all()
            assert (table.interval_low <= table.interval_high).all()


def test_a_probe_without_scores_is_named(experiment):
    _, sequences, forks = experiment
    lost = sequences[(sequences.schedule != "oli") | (sequences.step != 20)]
    with pytest.raises(ValueError, match="fork oli, seed 0, step 20: no scores of sequences"):
        list(sequence_rows(lost, forks, "cosine", resamples=9, seed=0))


def test_files_are_read_by_their_names(experiment, tmp_path):
    paths, sequences, _ = experiment
    assert set(sequences.schedule) == set(SCHEDULES) and set(sequences.seed) == {0, 1}
    assert set(sequences.role) == {"fp32", "low_bit"}
    dashed = tmp_path / "oli-long-seed12.parquet"
    dashed.write_bytes(paths[0].read_bytes())
    table = read_fork_sequences([dashed])
    assert set(table.schedule) == {"oli-long"} and set(table.seed) == {12}
    for name in ("cosine.parquet", "cosine-seedx.parquet", "-seed1.parquet"):
        with pytest.raises(ValueError, match=rf"{name}: a fork's scores are named"):
            read_fork_sequences([tmp_path / name])
