"""Rules on curves whose alarms are known, and the table of a suite."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.convergence_monitor import ConvergenceMonitor, paired_standard_error
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
from flatminima.intervals import paired_scores, summarise
from tests.statistics_helpers import sequence_scores

pytestmark = pytest.mark.filterwarnings("error")
STEPS = np.arange(10, 510, 10)
SCORED = np.array([63, 63, 20, 63, 40, 63, 51, 63])


def phases(start=50, best=300, onset=400):
    return {
        "suite": "tiny",
        "rapid_learning_end": {"step": start},
        "convergence": {"step": best},
        "onset": {"step": onset},
    }


def steps_of(rings):
    return list(rings.index[rings])


ALARMS = (
    # An alarm is a run of rings; lead counts from the first that is not false.
    (
        [40, 50, 100, 110, 200, 350, 360, 370, 450],
        phases(),
        {
            "alarms": 4,
            "ringing_evaluations": 7,
            "evaluations": 45,
            "first_alarm_step": 100,
            "warning_step": 350,
            "false_alarms": 2,
            "alarms_before_best": 2,
            "lead_steps": 50,
            "note": "",
        },
    ),
    # One from before the watch begins with it.
    ([40, 50, 60, 70], phases(), {"alarms": 1, "first_alarm_step": 60}),
    # After an early onset none is false.
    (
        [200, 280],
        phases(best=300, onset=250),
        {"false_alarms": 1, "alarms_before_best": 2, "warning_step": 280, "lead_steps": -30},
    ),
    # Without an onset all are, and it is said.
    (
        [100, 350],
        phases(onset=None),
        {
            "alarms": 2,
            "false_alarms": 2,
            "alarms_before_best": 1,
            "lead_steps": None,
            "warning_step": None,
            "note": "no onset: every alarm counts as false",
        },
    ),
    ([500], phases(start=500), {"evaluations": 0, "alarms": 0, "first_alarm_step": None}),
)


def test_alarms_are_held_against_what_happened():
    for rings, known, expected in ALARMS:
        found = judge(pd.Series(np.isin(STEPS, rings), index=STEPS), known)
        assert {name: found[name] for name in expected} == expected


def test_slope_is_that_of_the_last_evaluations():
    ppl = pd.Series(20 + np.random.default_rng(0).normal(size=50).cumsum(), index=STEPS)
    for window in (2, 5, 20):
        rings = slope_not_negative(ppl, window)
        for at in range(50):
            part = slice(max(0, at - window + 1), at + 1)
            full = at + 1 >= window
            assert rings.iloc[at] == (full and np.polyfit(STEPS[part], ppl.iloc[part], 1)[0] >= 0)
    turn = pd.Series(np.abs(STEPS - 250.0), index=STEPS)
    assert steps_of(slope_not_negative(turn, 5))[0] == 270
    assert len(steps_of(slope_not_negative(pd.Series(3.0, index=STEPS), 5))) == 46


def test_simple_rules_on_curves_by_hand():
    nll = pd.Series([5, 4, 4.5, 4, 3, 3.2, 3.1, 3.3, 2, 2.1], index=STEPS[:10])
    assert steps_of(no_better_for(nll, 2)) == [40, 70, 80]
    assert steps_of(no_better_for(nll, 3)) == [80]
    # Warm-up does not count.
    fraction = pd.Series([0.1, 0.5, 1.0, 0.8, 0.5, 0.3, 0.1, 0.1], index=STEPS[:8])
    assert steps_of(learning_rate_below(fraction, 0.5)) == [50, 60, 70, 80]
    assert steps_of(learning_rate_below(fraction, 0.1)) == [70, 80]
    # The band is learned first: mean 5, sample deviation sqrt(2/3), so up to 7.449.
    gap = pd.Series(5.0, index=STEPS)
    gap[[60, 70, 80, 90]] = [5, 6, 4, 5]
    gap[300], gap[310], gap[40] = 7.5, 7.4, 99
    assert steps_of(gap_above_band(gap, 50, 4)) == [300]
    assert steps_of(gap_above_band(gap, 480, 4)) == []


def scores(nll, steps=STEPS, scored=SCORED, seed=0, shared=1.0):
    """Per-sequence scores around ``nll`` by step; what sequences have in common is ``shared``."""
    rng = np.random.default_rng(seed)
    difficulty = shared * rng.normal(0, 0.5, len(scored))
    tables = []
    for step, mean in zip(steps, nll, strict=True):
        each = mean + difficulty + rng.normal(0, 0.02, len(scored))
        for role, shift in (("fp32", 0.0), ("low_bit", 0.02 + step / 5e3)):
            tables.append(sequence_scores(step, role, (each + shift) * scored, scored))
    return pd.concat(tables, ignore_index=True)


def fp32_scores(table):
    return paired_scores(table[table.role == "fp32"], ["step"])


def wide(table):
    return table[table.role == "fp32"].pivot(index="step", columns="sequence", values="nll_nats")


def test_the_error_of_a_rise_is_that_of_paired_sequences():
    table = scores([3.0, 2.9, 2.95, 2.8, 2.9], STEPS[:5], np.full(40, 63))
    multiples = above_best_beyond_noise(fp32_scores(table))
    fp32 = wide(table)
    assert (
        list(multiples.index) == list(STEPS[:5]) and multiples.iloc[0] == multiples.iloc[1] == 0.0
    )
    for at, best in ((30, 20), (50, 40)):
        difference = (fp32.loc[at] - fp32.loc[best]) / 63
        assert multiples[at] == pytest.approx(difference.mean() / stats.sem(difference), rel=1e-12)
    # Hard and easy sequences are the same in both evaluations, so the error is small.
    assert multiples[30] > 5
    # Where sequences are unequally long it is near that of a bootstrap.
    rng = np.random.default_rng(5)
    scored = rng.integers(5, 64, 200)
    table = scores([3.0, 3.01], STEPS[:2], scored, seed=3, shared=0.0)
    rise = np.diff(wide(table), axis=0)[0]
    resampled_rows = rng.integers(0, 200, (4000, 200))
    error = (rise[resampled_rows].sum(axis=1) / scored[resampled_rows].sum(axis=1)).std()
    expected = rise.sum() / scored.sum() / error
    assert above_best_beyond_noise(fp32_scores(table))[20] == pytest.approx(expected, rel=0.05)


@pytest.fixture(scope="module")
def suite():
    """Audit and scores: best at 300, onset at 400 where ``phases`` says so."""
    sequences = scores(2.5 + np.abs(STEPS - 300) / 1000)
    audit = summarise(sequences, ["step"], resamples=2, seed=0).assign(suite="tiny")
    audit["lr_fraction"] = np.maximum(0.1, 1 - audit["step"] / 500)
    return audit, sequences


def test_the_table_has_every_rule_once_on_evenly_spaced_steps(suite):
    audit, sequences = suite
    table = warning_table(audit, sequences, phases(), spacing=10)
    rows = table.set_index(["rule", "parameter"])
    assert rows.index.is_unique and rows.groupby("rule").size().to_dict() == {
        PAPER_RULE: 4,
        "FP32 loss above its best": 3,
        "no better FP32 loss": 3,
        "learning rate": 3,
        "low-bit gap": 2,
        MONITOR_RULE: 3,
    }
    assert (table.evaluations == 45).all() and (table.suite == "tiny").all()
    paper = rows.loc[PAPER_RULE, "over 10 evaluations"]
    assert (paper.warning_step, paper.lead_steps) == (350, 50)
    half = rows.loc["learning rate", "at or below 0.5 of the maximum"]
    assert (half.first_alarm_step, half.false_alarms) == (250, 1)
    assert half[["warning_step", "lead_steps"]].isna().all()
    none = warning_table(audit, sequences, phases(onset=None), spacing=10)
    assert (none.false_alarms == none.alarms).all() and none.lead_steps.isna().all()
    assert none.note.str.contains("no onset").all()
    both = pd.concat([audit, audit.assign(step=audit.step + 3, ppl=1e9)])
    assert warning_table(both, sequences, phases(), spacing=10).equals(table)


def test_rules_of_a_learning_rate_that_is_not_known_have_no_answer(suite):
    audit, sequences = suite
    known = warning_table(audit, sequences, phases(), spacing=10)
    unknown = warning_table(audit.assign(lr_fraction=np.nan), sequences, phases(), spacing=10)
    of_rate = unknown["rule"] == "learning rate"
    assert unknown.loc[of_rate, ["alarms", "false_alarms", "best_step"]].isna().all(axis=None)
    assert unknown.loc[of_rate, "note"].str.contains("not known").all()
    assert unknown[~of_rate].equals(known[~of_rate])


def test_the_monitor_sees_what_a_loop_would_have_told_it(suite):
    audit, sequences = suite
    losses = audit[audit.role == "fp32"].set_index("step")["nll_nats_per_token"]
    nll = wide(sequences)
    monitor = ConvergenceMonitor()
    rings = []
    error = None
    for step in STEPS:
        if step > STEPS[0]:
            change = (nll.loc[step].to_numpy(), nll.loc[step - 10].to_numpy())
            error = paired_standard_error(*change, SCORED) / np.sqrt(2)
        rings.append(monitor.update(int(step), losses[step], error).converged)
    assert pd.Series(rings, STEPS).equals(monitor_rings(fp32_scores(sequences), 10))
    table = warning_table(audit, sequences, phases(), spacing=10)
    row = table[(table.rule == MONITOR_RULE) & (table.parameter == "over 10 evaluations")].iloc[0]
    assert (row.alarms, row.ringing_evaluations, row.false_alarms) == (1, sum(rings), 0)
    # The loss is lowest at 300: the fall must have left the window first.
    assert 300 < row.warning_step < 400
