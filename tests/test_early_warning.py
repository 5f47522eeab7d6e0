"""Rules on curves whose alarms are known, and the table of a suite."""

import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.early_warning import (
    MONITOR_RULE,
    PAPER_RULE,
    above_best_beyond_noise,
    gap_above_band,
    judge,
    learning_rate_below,
    monitor_rings,
    no_better_for,
    slope_not_negative,
    warning_table,
)
from flatminima.intervals import summarise
from flatminima.monitor import ConvergenceMonitor, paired_standard_error

pytestmark = pytest.mark.filterwarnings("error")
STEPS = np.arange(10, 510, 10)
SCORED = np.array([63, 63, 20, 63, 40, 63, 51, 63])


def phases(start=50, best=300, onset=400):
    return {"suite": "tiny", "rapid_learning_end": {"step": start},
            "convergence": {"step": best}, "onset": {"step": onset}}  # fmt: skip


def ringing(*steps):
    return pd.Series(np.isin(STEPS, steps), index=STEPS)


def steps_of(rings):
    return list(rings.index[rings])


def test_alarms_are_runs_of_rings_and_lead_counts_from_the_first_that_is_not_false():
    found = judge(ringing(40, 50, 100, 110, 200, 350, 360, 370, 450), phases())
    assert (found.alarms, found.ringing_evaluations, found.evaluations) == (4, 7, 45)
    assert (found.first_alarm_step, found.warning_step) == (100, 350)
    assert (found.false_alarms, found.alarms_before_best, found.lead_steps) == (2, 2, 50)
    assert found.note == ""


def test_an_alarm_from_before_the_watch_begins_with_it():
    found = judge(ringing(40, 50, 60, 70), phases())
    assert (found.alarms, found.first_alarm_step) == (1, 60)


def test_a_late_alarm_has_a_negative_lead():
    found = judge(ringing(440), phases())
    assert (found.lead_steps, found.false_alarms) == (-40, 0)


def test_an_alarm_after_an_early_onset_is_not_false():
    found = judge(ringing(200, 280), phases(best=300, onset=250))
    assert (found.false_alarms, found.alarms_before_best) == (1, 2)
    assert (found.warning_step, found.lead_steps) == (280, -30)


def test_without_an_onset_every_alarm_is_false_and_it_is_said():
    found = judge(ringing(100, 350), phases(onset=None))
    assert (found.alarms, found.false_alarms, found.alarms_before_best) == (2, 2, 1)
    assert found.lead_steps is None and found.warning_step is None
    assert found.note == "no onset: every alarm counts as false"


def test_a_rule_that_never_rings_has_no_alarm():
    found = judge(ringing(), phases())
    assert (found.alarms, found.false_alarms, found.first_alarm_step) == (0, 0, None)
    assert judge(ringing(500), phases(start=500)).evaluations == 0


@pytest.mark.parametrize("window", [2, 5, 20])
def test_slope_is_that_of_the_last_evaluations(window):
    ppl = pd.Series(20 + np.random.default_rng(0).normal(size=50).cumsum(), index=STEPS)
    rings = slope_not_negative(ppl, window)
    for at in range(50):
        part = slice(max(0, at - window + 1), at + 1)
        full = at + 1 >= window
        assert rings.iloc[at] == (full and np.polyfit(STEPS[part], ppl.iloc[part], 1)[0] >= 0)
    # Only the past is looked at.
    assert slope_not_negative(ppl.iloc[:30], window).equals(rings.iloc[:30])


def test_a_v_shaped_curve_rings_half_a_window_after_its_lowest_point():
    ppl = pd.Series(np.abs(STEPS - 250.0), index=STEPS)
    assert steps_of(slope_not_negative(ppl, 2))[0] == 260
    assert steps_of(slope_not_negative(ppl, 5))[0] == 270
    flat = pd.Series(3.0, index=STEPS)
    assert len(steps_of(slope_not_negative(flat, 5))) == 46


def test_patience_counts_evaluations_since_the_lowest_loss():
    nll = pd.Series([5, 4, 4.5, 4, 3, 3.2, 3.1, 3.3, 2, 2.1], index=STEPS[:10])
    assert steps_of(no_better_for(nll, 2)) == [40, 70, 80]
    assert steps_of(no_better_for(nll, 3)) == [80]
    assert steps_of(no_better_for(nll.iloc[:7], 2)) == [40, 70]


def test_the_learning_rate_of_warm_up_does_not_count():
    fraction = pd.Series([0.1, 0.5, 1.0, 0.8, 0.5, 0.3, 0.1, 0.1], index=STEPS[:8])
    assert steps_of(learning_rate_below(fraction, 0.5)) == [50, 60, 70, 80]
    assert steps_of(learning_rate_below(fraction, 0.1)) == [70, 80]


def test_the_band_is_learned_first_and_three_deviations_wide():
    gap = pd.Series(5.0, index=STEPS)
    gap[[60, 70, 80, 90]] = [5, 6, 4, 5]  # mean 5, sample deviation sqrt(2/3)
    gap[300], gap[310], gap[40] = 7.5, 7.4, 99
    assert 5 + 3 * np.sqrt(2 / 3) == pytest.approx(7.449, abs=1e-3)
    assert steps_of(gap_above_band(gap, 50, 4)) == [300]
    assert steps_of(gap_above_band(gap, 480, 4)) == []


def scores(nll, steps=STEPS, scored=SCORED, seed=0, shared=1.0):
    """Per-sequence scores around ``nll`` by step; what sequences have in common is ``shared``."""
    rng = np.random.default_rng(seed)
    difficulty = shared * rng.normal(0, 0.5, len(scored))
    tables = []
    for step, mean in zip(steps, nll, strict=True):
        each = mean + difficulty + rng.normal(0, 0.02, len(scored))
        for name, role, shift in (("fp32", "fp32", 0.0), ("q4", "low_bit", 0.02 + step / 5e3)):
            tables.append(pd.DataFrame({
                "step": step, "quantizer": name, "role": role, "sequence": range(len(scored)),
                "nll_nats": (each + shift) * scored, "kl_nats": 0.0, "top1_changed": 0.0,
                "scored": scored,
            }))  # fmt: skip
    return pd.concat(tables, ignore_index=True)


def test_the_error_of_a_rise_is_that_of_paired_sequences():
    equal = np.full(40, 63)
    table = scores([3.0, 2.9, 2.95, 2.8, 2.9], STEPS[:5], equal)
    found = above_best_beyond_noise(table, STEPS[:5])
    fp32 = table[table.role == "fp32"].pivot(index="step", columns="sequence", values="nll_nats")
    assert list(found.index) == list(STEPS[:5]) and found.iloc[0] == found.iloc[1] == 0.0
    for at, best in ((30, 20), (50, 40)):
        difference = (fp32.loc[at] - fp32.loc[best]) / 63
        assert found[at] == pytest.approx(difference.mean() / stats.sem(difference), rel=1e-12)
    # Hard and easy sequences are the same in both evaluations, so the error is small.
    assert found[30] > 5


def test_the_error_of_unequal_sequences_is_near_that_of_a_bootstrap():
    rng = np.random.default_rng(5)
    scored = rng.integers(5, 64, 200)
    table = scores([3.0, 3.01], STEPS[:2], scored, seed=3, shared=0.0)
    fp32 = table[table.role == "fp32"].pivot(index="step", columns="sequence", values="nll_nats")
    rise = (fp32.loc[20] - fp32.loc[10]).to_numpy()
    drawn = rng.integers(0, 200, (4000, 200))
    error = (rise[drawn].sum(axis=1) / scored[drawn].sum(axis=1)).std()
    expected = rise.sum() / scored.sum() / error
    assert above_best_beyond_noise(table, STEPS[:2])[20] == pytest.approx(expected, rel=0.05)


def test_a_rise_that_is_the_same_everywhere_is_beyond_any_noise():
    table = scores([3.0, 3.0], STEPS[:2], np.full(4, 8))
    first = table[(table.role == "fp32") & (table.step == 10)].nll_nats.to_numpy()
    table.loc[(table.role == "fp32") & (table.step == 20), "nll_nats"] = first + 4.0
    assert above_best_beyond_noise(table, STEPS[:2])[20] > 1e6


@pytest.fixture(scope="module")
def suite():
    """Audit, scores and phases: best at 300, onset at 400 where ``phases`` says so."""
    nll = 2.5 + np.abs(STEPS - 300) / 1000
    sequences = scores(nll)
    audit = summarise(sequences, ["step"], resamples=2, seed=0).assign(suite="tiny")
    audit["lr_fraction"] = np.maximum(0.1, 1 - audit["step"] / 500)
    return audit, sequences


def test_the_table_has_every_rule_once(suite):
    table = warning_table(*suite, phases(), spacing=10)
    assert list(table.columns[:3]) == ["suite", "rule", "parameter"]
    assert not table.duplicated(["rule", "parameter"]).any()
    assert table.groupby("rule").size().to_dict() == {
        PAPER_RULE: 4, "FP32 loss above its best": 3, "no better FP32 loss": 3,
        "learning rate": 3, "low-bit gap": 2, MONITOR_RULE: 3,
    }  # fmt: skip
    assert (table.evaluations == 45).all() and (table.suite == "tiny").all()
    paper = table[(table.rule == PAPER_RULE) & (table.parameter == "over 10 evaluations")].iloc[0]
    assert paper.warning_step == 350 and paper.lead_steps == 50
    half = table[table.parameter == "at or below 0.5 of the maximum"].iloc[0]
    assert (half.first_alarm_step, half.false_alarms) == (250, 1)
    assert half.isna().warning_step and half.isna().lead_steps
    none = warning_table(*suite, phases(onset=None), spacing=10)
    assert (none.false_alarms == none.alarms).all() and none.lead_steps.isna().all()
    assert none.note.str.contains("no onset").all()


def test_only_evenly_spaced_steps_are_evaluations(suite):
    audit, sequences = suite
    odd = audit.assign(step=audit.step + 3, ppl=1e9)
    both = pd.concat([audit, odd])
    assert warning_table(both, sequences, phases(), spacing=10).equals(
        warning_table(audit, sequences, phases(), spacing=10)
    )


def test_the_monitor_sees_what_a_loop_would_have_told_it(suite):
    audit, sequences = suite
    table = warning_table(audit, sequences, phases(), spacing=10)
    row = table[(table.rule == MONITOR_RULE) & (table.parameter == "over 10 evaluations")].iloc[0]
    assert row.parameter == f"over {ConvergenceMonitor().settings.window} evaluations"
    fp32 = audit[audit.role == "fp32"].set_index("step")["nll_nats_per_token"]
    wide = sequences[sequences.role == "fp32"].pivot(
        index="step", columns="sequence", values="nll_nats"
    )
    monitor, rings = ConvergenceMonitor(), []
    for step in STEPS:
        error = None
        if step > STEPS[0]:
            change = (wide.loc[step].to_numpy(), wide.loc[step - 10].to_numpy())
            error = paired_standard_error(*change, SCORED) / np.sqrt(2)
        rings.append(monitor.update(int(step), fp32[step], error).converged)
    rings = pd.Series(rings, STEPS)
    assert rings.equals(monitor_rings(sequences, STEPS, 10))
    assert (row.alarms, row.ringing_evaluations) == (1, rings.sum())
    # The loss is lowest at 300: the fall must have left the window first.
    assert 300 < row.warning_step < 400 and row.false_alarms == 0


def test_script_writes_the_same_bytes_twice(suite, tmp_path):
    audit, sequences = suite
    audit.to_csv(tmp_path / "audit.csv", index=False)
    sequences.to_parquet(tmp_path / "sequences.parquet")
    (tmp_path / "phases.json").write_text(
        '{"suite": "tiny", "rapid_learning_end": {"step": 50}, "convergence": {"step": 300},'
        ' "onset": {"step": null}}'
    )
    written = []
    for name in ("a.csv", "b.csv"):
        job = SimpleNamespace(
            input=SimpleNamespace(
                audit=tmp_path / "audit.csv", sequences=tmp_path / "sequences.parquet",
                phases=tmp_path / "phases.json",
            ),
            output=SimpleNamespace(table=tmp_path / name), log=[tmp_path / "log"],
            params=SimpleNamespace(spacing=10),
        )  # fmt: skip
        runpy.run_path(
            "workflow_scripts/warn_early.py", init_globals={"snakemake": job}, run_name="__main__"
        )
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(b"suite,rule,parameter,watched_from,best_step,onset_step,")
