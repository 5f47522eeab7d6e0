"""The ledger's arithmetic: what the paper's printed numbers say when they are added up."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.claims import seeds, verdicts
from flatminima.claims.kurtosis import p_of_r
from flatminima.claims.model import MEASURED, PRINTED, Measurements, read_ledger, within
from flatminima.claims.sources import lambada

PAPER = Path(__file__).parents[1] / "resources" / "paper"
TEXT = (PAPER / "claims.yaml").read_text(encoding="utf-8")
LEDGER = read_ledger(f"{PAPER}/claims.yaml")
SUITE = {
    "name": "paper",
    "label": "the paper's printed tables",
    "is_paper_model": True,
    "lr_max": 6.0e-4,
    "lr_min": 6.0e-5,
    "warmup_steps": 1430,
    "last": 143000,
    "spacing": 1000,
    "tokens_per_step": 2097152,
    "fork": {
        "start": 70000,
        "steps": 30000,
        "probe_every": 1000,
        "seeds": [0, 1, 2],
        "schedules": {
            "cosine": {"kind": "cosine"},
            "sgdr": {"kind": "sgdr", "period": 10000},
            "oli": {
                "kind": "oli",
                "bump_steps": 75,
                "cool_steps": 300,
                "amplitude": 5.0,
                "first": "cool",
            },
        },
    },
}


def printed_only(**changes) -> Measurements:
    given = {
        "table1": pd.read_csv(f"{PAPER}/table1.csv"),
        "table2": pd.read_csv(f"{PAPER}/table2.csv"),
        "lambada": pd.read_csv(f"{PAPER}/pythia_lambada.csv"),
    }
    return Measurements(LEDGER, suite=SUITE, **(given | changes))


@pytest.fixture(scope="module")
def judged():
    return {j.claim.id: j for j in verdicts.judge(printed_only())}


def test_every_row_has_a_function_and_every_function_a_row():
    ids = [claim.id for claim in LEDGER.claims]
    assert set(ids) == PRINTED.keys() | MEASURED.keys()
    wanted = [f"C{n:02d}" for n in range(1, 80)] + [f"X{n:02d}" for n in range(1, 34)]
    assert ids == [*wanted, "L01", "L02", "L03"]


def test_a_row_without_a_function_is_named():
    short = read_ledger(f"{PAPER}/claims.yaml")
    object.__setattr__(short, "claims", short.claims[1:])
    with pytest.raises(ValueError, match=r"functions without a row \['C01'\]"):
        verdicts.check_registered(short)


def test_no_verdict_stands_in_the_ledger():
    text = TEXT.upper()
    for verdict in verdicts.VERDICTS:
        assert verdict not in text
    assert not re.search(r"CONTRADICT|REPRODUCE[DS]\b|VERDICT:", text)


def test_an_unknown_need_is_one_clear_line(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(TEXT.replace("needs: [lambada]", "needs: [lambda]", 1), encoding="utf-8")
    with pytest.raises(ValueError, match="L01 needs 'lambda'; known are paper, config"):
        read_ledger(path)


def test_ids_are_unique(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(TEXT.replace("id: C06", "id: C07", 1), encoding="utf-8")
    with pytest.raises(ValueError, match="claim C07 occurs 2 times"):
        read_ledger(path)


def test_lines_point_at_their_rows():
    lines = TEXT.splitlines()
    for claim in LEDGER.claims:
        assert f"id: {claim.id}" in lines[claim.line - 1]


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("C01", verdicts.REPRODUCED),
        ("C02", verdicts.CONTRADICTED),
        ("C05", verdicts.DIFFERS),
        ("C25", verdicts.NOT_RUN),
        ("C29", verdicts.CONTRADICTED),
        ("C30", verdicts.REPRODUCED),
        ("C40", verdicts.DIFFERS),
        ("C44", verdicts.CONTRADICTED),
        ("C47", verdicts.CONTRADICTED),
        ("C54", verdicts.REPRODUCED),
        ("C61", verdicts.UNDERPOWERED),
        ("C64", verdicts.CONTRADICTED),
        ("C67", verdicts.CONTRADICTED),
        ("C74", verdicts.REPRODUCED),
        ("X02", verdicts.CONTRADICTED),
        ("X05", verdicts.REPRODUCED),
        ("X30", verdicts.UNDERPOWERED),
        ("L01", verdicts.DIFFERS),
        ("L03", verdicts.REPRODUCED),
    ],
)
def test_verdicts_on_the_printed_tables(judged, name, verdict):
    assert judged[name].verdict == verdict


def test_rows_that_no_measurement_reached_are_the_ones_that_need_one(judged):
    for judgement in judged.values():
        if judgement.verdict == verdicts.NOT_RUN:
            assert set(judgement.claim.needs) - {"paper", "config", "lambada"}
            assert "missing:" in judgement.reason


def test_the_missing_file_comes_with_the_command_for_pythia(judged):
    assert (
        "missing: audit.csv, phases.json; make it with `snakemake --cores all "
        "results/pythia-160m/audit.csv results/pythia-160m/phases.json`"
    ) in judged["C36"].reason
    assert "no rule of this workflow" in judged["X31"].reason
    # claims.md never reads what `extended` measures; the ledger that does is named.
    for name, file in (("C72", "mechanism/findings.csv"), ("C68", "audit.csv, pilot.csv")):
        assert (
            f"missing: {file}; make it with `snakemake --cores all "
            "results/pythia-160m/claims_extended.md`, which judges this row"
        ) in judged[name].reason


def test_improvement_is_2_4_points(judged):
    assert judged["C64"].measured == "printed numbers: 7.7 - 5.3 = 2.4, not 2.2"
    assert judged["X01"].verdict == verdicts.CONTRADICTED


def test_654_fold_against_500_and_650(judged):
    assert judged["X02"].measured.endswith("654.6 against 500 and 650")
    assert judged["C45"].verdict == verdicts.REPRODUCED


def test_learning_rate_column_under_both_formulas(judged):
    text = judged["C29"].measured
    assert "9 of 10 rows agree with the paper's cosine (not step 7,000)" in text
    assert "2 of 10 with the schedule that was run" in text
    assert "99.66 %" in judged["X12"].measured
    assert "115,139" in judged["C05"].measured and "27,861" in judged["C05"].measured
    assert "40.1 %" in judged["C40"].measured and "45.3 %" in judged["C40"].reason


def test_int8_and_int4_losses_rise_together(judged):
    text = judged["C47"].measured
    assert "r = 0.986" in text and "log-log r = 0.974" in text
    assert "84 to 231 (median 162)" in text
    assert "INT8 grows 19.7 times and INT4 20.9 times" in judged["C47"].reason


def test_absolute_int4_perplexities(judged):
    assert "A 49.4, B 51.5, C 84.7, and 37.5" in judged["C66"].reason
    assert "37.5 at step 70,000, 217.8 at the end" in judged["C74"].measured


def test_exact_p_of_wins(judged):
    assert seeds.p_of_wins(0, 3, "two-sided") == pytest.approx(0.10, abs=1e-12)
    assert seeds.p_of_wins(6, 3, "greater") == pytest.approx(0.35, abs=1e-12)
    assert "p = 0.10" in judged["C61"].measured and "0.35" in judged["C61"].measured
    for name in ("C61", "C62", "C63", "X21"):
        assert "smallest attainable p = 0.10" in judged[name].reason


@pytest.mark.parametrize("wins", range(10))
def test_p_of_wins_is_that_of_samples_with_so_many_wins(wins):
    """Against the definition: the share of the 20 orders with at least as many wins."""
    counts = [sum(a > b for a in ranks for b in range(6) if b not in ranks)
              for ranks in combinations(range(6), 3)]  # fmt: skip
    assert seeds.p_of_wins(wins, 3, "greater") == pytest.approx(
        np.mean([c >= wins for c in counts]), abs=1e-12
    )


def test_welch_on_table_2(judged):
    assert "Welch t = 2.71, p = 0.096" in judged["C62"].measured
    by_hand = stats.ttest_ind_from_stats(16.7, 2.7, 3, 12.3, 0.8, 3, equal_var=False)
    assert by_hand.statistic == pytest.approx(2.7063, abs=1e-4)


def test_probes_as_units_give_the_printed_t(judged):
    text = judged["C63"].measured
    assert "t = -5.46 takes 60 independent probes" in text
    assert "t = -1.78, p = 0.19" in text
    pooled = stats.ttest_ind_from_stats(5.3, 2.2, 60, 7.7, 2.55, 60)
    assert pooled.statistic == pytest.approx(-5.5, abs=0.05)


def test_control_misses_by_a_factor_of_about_four(judged):
    assert "12.3 against 47.0 % (3.8 times)" in judged["C67"].measured
    assert "117 of Pythia's steps" in judged["C67"].reason


def test_rise_after_the_best_step(judged):
    assert "+5.8 %" in judged["C44"].measured


def test_correlation_of_a_quarter_at_8_and_16_checkpoints(judged):
    assert p_of_r(-0.26, 8) == pytest.approx(0.53, abs=0.005)
    assert p_of_r(-0.26, 16) == pytest.approx(0.33, abs=0.005)
    assert "p = 0.53 at n = 8 and 0.33 at n = 16" in judged["X15"].measured


def test_p_of_r_is_the_one_of_scipy():
    x, y = np.random.default_rng(3).normal(size=(2, 12))
    r = stats.pearsonr(x, y)
    assert p_of_r(r.statistic, 12) == pytest.approx(r.pvalue, abs=1e-12)


def test_initial_perplexity(judged):
    assert "61,441" in judged["C30"].measured


def test_published_lambada(judged):
    m = printed_only()
    small, larger = lambada(m, "pythia-160m"), lambada(m, "pythia-410m")
    assert small.idxmin() == 63000 and small.iloc[-1] > 1.5 * small.min()
    assert larger.idxmin() == 133000 and larger.iloc[-1] < 1.03 * larger.min()
    assert "at step 63,000, evaluated also at 53,000 and 73,000" in judged["L01"].measured


def test_wins_and_means_of_table_2_exclude_each_other(judged):
    assert seeds.attainable_wins((5.3, 2.2), (12.3, 0.8)) == [9]
    assert seeds.attainable_wins((16.7, 2.7), (12.3, 0.8)) == [0]
    assert seeds.attainable_wins((11.5, 2.4), (12.3, 0.8)) == [3, 4, 5, 6]
    assert judged["X19"].verdict == verdicts.CONTRADICTED


def test_triples_have_the_mean_and_deviation_asked_for():
    values = seeds.triples(5.3, 2.2, np.radians(np.arange(0, 360, 7.0)))
    assert np.allclose(values.mean(axis=1), 5.3) and np.allclose(values.std(axis=1, ddof=1), 2.2)


def test_probe_cadence_sees_three_positions_of_the_cycle(judged):
    assert "positions 125, 250, 375 of 375" in judged["X18"].measured
    assert "10 of 30 follow a bump, the last one too" in judged["X18"].reason


@pytest.mark.parametrize(
    ("value", "target", "tolerance", "inside"),
    [
        (1.03, 1.0, {"relative_pct": 3}, True),
        (1.031, 1.0, {"relative_pct": 3}, False),
        (99.66, 99.9, {"rounding": 0.05}, False),
        (80000, 77000, {"steps": 3000}, True),
        (153, 154, {"exact": True}, False),
        (154, 154, {"exact": True}, True),
    ],
)
def test_within(value, target, tolerance, inside):
    assert within(value, target, tolerance) is inside


# A printed number that changes must change the verdict that rests on it.


def with_paper(name: str, **numbers_of_paper):
    claim = next(c for c in LEDGER.claims if c.id == name)
    changed = {**claim.__dict__, "paper": {**claim.paper, **numbers_of_paper}}
    return type(claim)(**changed)


@pytest.mark.parametrize(
    ("name", "changes", "verdict"),
    [
        ("C02", {"checkpoints": 153}, verdicts.REPRODUCED),
        ("X01", {"improvement": 2.4}, verdicts.REPRODUCED),
        ("X02", {"introduction": 650}, verdicts.REPRODUCED),
        ("X05", {"section_4_2": 78000}, verdicts.CONTRADICTED),
        ("X11", {"appendix": 33.7}, verdicts.REPRODUCED),
        ("X12", {"lr_pct": 99.7}, verdicts.REPRODUCED),
        ("X14", {"last": 10.0}, verdicts.CONTRADICTED),
        ("X17", {"fork_gap_pct": 45.0, "fork_ppl": 34.5}, verdicts.REPRODUCED),
        ("X19", {"wins": 9}, verdicts.CONTRADICTED),
        ("X19", {"cool_pct": 11.5, "cool_sd": 2.4}, verdicts.REPRODUCED),
        ("X20", {"cosine_sd": 2.0}, verdicts.REPRODUCED),
        ("X26", {"listed": "Q-BERT"}, verdicts.REPRODUCED),
        ("X30", {"starting_checkpoints": 9}, verdicts.REPRODUCED),
        ("X30", {"starting_checkpoints": 6}, verdicts.CONTRADICTED),
        ("X21", {"seeds": 4, "wins": 0}, verdicts.REPRODUCED),
        ("X21", {"seeds": 4, "wins": 6}, verdicts.CONTRADICTED),
        ("X15", {"checkpoints": 100}, verdicts.REPRODUCED),
        ("L01", {"step": 63000}, verdicts.REPRODUCED),
        ("L03", {"model": "pythia-160m"}, verdicts.DIFFERS),
    ],
)
def test_changed_numbers_change_verdicts(name, changes, verdict):
    claim = with_paper(name, **changes)
    assert verdicts.judge_claim(printed_only(), claim).verdict == verdict


def test_a_table_with_another_shape_is_judged_otherwise():
    table = pd.read_csv(f"{PAPER}/table1.csv")
    table["int8_gap_pct"] = table["int8_gap_pct"].to_numpy()[::-1]
    claim = next(c for c in LEDGER.claims if c.id == "C47")
    assert verdicts.judge_claim(printed_only(table1=table), claim).verdict == verdicts.NOT_RUN


def test_without_the_published_results_their_rows_are_not_run():
    claim = next(c for c in LEDGER.claims if c.id == "L02")
    judgement = verdicts.judge_claim(printed_only(lambada=None), claim)
    assert judgement.verdict == verdicts.NOT_RUN
    assert "the published LAMBADA results" in judgement.reason
