"""Verdicts on measurements: each kind occurs, and another suite or other data change it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flatminima.claims import verdicts
from flatminima.claims.model import Finding, Measurements
from flatminima.claims.trends import slope, spread_around_line
from flatminima.schedules import CosineNeoxV1
from tests.test_claims import LEDGER, SUITE, printed_only

PYTHIA = {**SUITE, "name": "pythia-160m", "label": "Pythia-160m"}
MINI = {
    "name": "mini",
    "label": "mini (embedded suite, not Pythia)",
    "is_paper_model": False,
    "lr_max": 0.01,
    "lr_min": 0.001,
    "warmup_steps": 57,
    "last": 5720,
    "spacing": 40,
    "tokens_per_step": 1024,
    "fork": {
        "start": 2800,
        "steps": 1200,
        "probe_every": 40,
        "seeds": [0, 1, 2],
        "schedules": {
            "cosine": {"kind": "cosine"},
            "sgdr": {"kind": "sgdr", "period": 400},
            "oli": {
                "kind": "oli",
                "bump_steps": 3,
                "cool_steps": 12,
                "amplitude": 5.0,
                "first": "cool",
            },
        },
    },
}
CLAIMS = {claim.id: claim for claim in LEDGER.claims}


def rows(keys: dict, ppl: float, gaps: dict[str, float]) -> list[dict]:
    """One model's rows, FP32 and both quantizers."""
    found = []
    for role in ("fp32", "low_bit", "high_bit"):
        gap = gaps.get(role, 0.0)
        found.append(
            keys
            | {
                "role": role,
                "ppl": ppl * (1 + gap / 100),
                "nll_nats_per_token": np.log(ppl * (1 + gap / 100)),
                "delta_nll_nats_per_token": np.log1p(gap / 100),
                "gap_pct": gap,
                "gap_low_pct": gap - 0.02 * abs(gap),
                "gap_high_pct": gap + 0.02 * abs(gap),
            }
        )
    return found


def audit(suite: dict) -> pd.DataFrame:
    """A run through the numbers of Table 1 on the suite's grid, without noise."""
    table = printed_only().table1
    spacing = suite["spacing"]
    schedule = CosineNeoxV1(
        lr_max=suite["lr_max"], lr_min=suite["lr_min"], warmup_steps=suite["warmup_steps"],
        total_steps=suite["last"],
    )  # fmt: skip
    found = []
    for k in range(144):
        at = [
            np.exp(np.interp(k * 1000, table["step"], np.log(table[c])))
            for c in ("fp32_ppl", "int4_gap_pct", "int8_gap_pct")
        ]
        lr = schedule(k * spacing)
        keys = {"step": k * spacing, "lr": lr, "lr_fraction": lr / suite["lr_max"]}
        found += rows(keys, at[0] if k else 61000.0, {"low_bit": at[1], "high_bit": at[2]})
    return pd.DataFrame(found)


def phases(suite: dict) -> dict:
    k = suite["spacing"]
    return {
        "convergence": {
            "step": 77 * k, "step_low": 74 * k, "step_high": 79 * k,
            "ppl": 33.4, "final_ppl": 35.3, "rise_pct": 5.7,
        },
        "rapid_learning_end": {"step": 7 * k, "step_low": 6 * k, "step_high": 8 * k},
        "onset": {"step": 78 * k, "step_low": 77 * k, "step_high": 79 * k, "reason": ""},
        "lag_steps": k, "lag_low": -2 * k, "lag_high": 5 * k,
    }  # fmt: skip


def kurtosis(suite: dict) -> pd.DataFrame:
    found = []
    for k in range(144):
        value = np.interp(k, [0, 87, 143], [1.2, 27.9, 3.3])
        entries = [("per_tensor", "a", value - 1), ("per_tensor", "b", value + 1)]
        entries += [("mean_over_tensors", "all", value), ("pooled", "all", 2 * value)]
        found += [(k * suite["spacing"], *entry) for entry in entries]
    return pd.DataFrame(found, columns=["step", "statistic", "tensor", "excess_kurtosis"])


def forks(suite: dict, n: int = 3) -> pd.DataFrame:
    """Forks that end at Table 2's means, ``n`` seeds of each kind with their own offsets."""
    fork, found = suite["fork"], []
    for seed in range(n):
        for k in range(1, 31):
            done, bump = k / 30, k % 3 == 0
            kinds = {
                "cosine": (3.1 + 9.2 * done, 34 + 10 * done, ""),
                "sgdr": (7.5 + 9.2 * done, 34 + 10.1 * done, ""),
                "oli": (23.9 if bump else 5.3, 76.0, "bump" if bump else "cool"),
            }
            for name, (gap, ppl, phase) in kinds.items():
                keys = {
                    "schedule": name,
                    "seed": seed,
                    "fork_step": fork["start"],
                    "step": fork["start"] + k * fork["probe_every"],
                    "update_phase": phase,
                }
                gap += 0.3 * (seed - (n - 1) / 2)
                found += rows(keys, ppl, {"low_bit": gap, "high_bit": 0.1})
    return pd.DataFrame(found)


def suite_table() -> pd.DataFrame:
    hashes = ["a", *(f"h{k}" for k in range(153))]
    hashes[1] = "a"
    return pd.DataFrame({"step": range(154), "status": "present", "weights_sha256": hashes})


def measure(suite: dict = PYTHIA, **changes) -> Measurements:
    given = {
        "audit": audit(suite),
        "phases": phases(suite),
        "kurtosis": kurtosis(suite),
        "forks": forks(suite),
        "suite_table": suite_table(),
    }
    return replace(printed_only(), suite=suite, **(given | changes))


@pytest.fixture(scope="module")
def pythia() -> Measurements:
    return measure()


@pytest.fixture(scope="module")
def mini() -> Measurements:
    return measure(MINI)


def verdict(m: Measurements, name: str) -> str:
    return verdicts.judge_claim(m, CLAIMS[name]).verdict


def scaled(m: Measurements, role: str, column: str, factor: float) -> Measurements:
    table = m.audit.copy()
    table.loc[table["role"] == role, column] *= factor
    return replace(m, audit=table)


def with_phases(m: Measurements, part: str | None = None, **values) -> Measurements:
    found = {**m.phases}
    if part:
        found[part] = {**found[part], **values}
    else:
        found |= values
    return replace(m, phases=found)


def test_all_six_kinds_occur(pythia, mini):
    found = {j.verdict for j in verdicts.judge(pythia)} | {j.verdict for j in verdicts.judge(mini)}
    assert found == set(verdicts.VERDICTS)


def test_a_run_like_the_table_agrees_with_the_table(pythia):
    names = [f"C{n:02d}" for n in range(6, 28)] + ["C31", "C36", "C37", "C38", "C39", "C41", "C43"]
    names += ["C48", "C49", "C50", "C52", "C56", "C57", "C58", "C59", "C60", "C65"]
    assert {name: verdict(pythia, name) for name in names} == dict.fromkeys(
        names, verdicts.REPRODUCED
    )


def test_another_suite_is_not_judged_but_given(mini):
    for name in ("C06", "C25", "C27", "C39", "C56"):
        judgement = verdicts.judge_claim(mini, CLAIMS[name])
        assert judgement.verdict == verdicts.NOT_APPLICABLE
        assert "mini" not in judgement.measured and judgement.analogue
    assert verdicts.judge_claim(mini, CLAIMS["C06"]).analogue.startswith("value only: 110.10")
    assert verdicts.judge_claim(mini, CLAIMS["C27"]).analogue.startswith("analogue holds")


def test_contradictions_stand_for_every_suite_with_its_analogue(mini, pythia):
    for name in ("C32", "C44", "C47", "C64", "C67"):
        judgement = verdicts.judge_claim(mini, CLAIMS[name])
        assert judgement.verdict == verdict(pythia, name) == verdicts.CONTRADICTED
        assert judgement.measured.startswith("printed numbers:") and judgement.analogue


def test_analogue_follows_the_data(mini):
    louder = scaled(mini, "high_bit", "gap_pct", 2.0)
    judgement = verdicts.judge_claim(louder, CLAIMS["C27"])
    assert judgement.verdict == verdicts.NOT_APPLICABLE
    assert judgement.analogue.startswith("analogue does not hold: at most 1.580 %")


def without_tail(m: Measurements) -> Measurements:
    table = m.audit.copy()
    table["lr"] = np.linspace(1, 0.1, len(table))
    return replace(m, audit=table)


CHANGES = {
    "C01": lambda m: replace(m, suite_table=suite_table().iloc[1:]),
    "C04": lambda m: replace(m, suite={**m.suite, "warmup_steps": 2000}),
    "C10": lambda m: scaled(m, "fp32", "ppl", 1.05),
    "C25": lambda m: scaled(m, "low_bit", "gap_pct", 0.7),
    "C26": lambda m: scaled(m, "high_bit", "gap_pct", 1.2),
    "C27": lambda m: scaled(m, "high_bit", "gap_pct", 2.0),
    "C30": lambda m: scaled(m, "fp32", "ppl", 0.5),
    "C31": lambda m: scaled(m, "low_bit", "gap_pct", 2.0),
    "C36": lambda m: with_phases(m, "convergence", step=60000),
    "C38": lambda m: scaled(m, "fp32", "ppl", 1.05),
    "C39": lambda m: with_phases(m, lag_low=1000),
    "C43": lambda m: scaled(m, "low_bit", "delta_nll_nats_per_token", -1.0),
    "C41": lambda m: scaled(m, "low_bit", "delta_nll_nats_per_token", -1.0),
    "C45": lambda m: scaled(m, "high_bit", "gap_pct", 3.0),
    "C48": lambda m: replace(m, kurtosis=m.kurtosis.assign(excess_kurtosis=9.0)),
    "C52": lambda m: replace(m, kurtosis=m.kurtosis.assign(excess_kurtosis=9.0)),
    "C54": lambda m: replace(m, suite={**m.suite, "fork": {**m.suite["fork"], "steps": 15000}}),
    "C56": lambda m: replace(m, forks=m.forks.assign(gap_pct=m.forks["gap_pct"] + 3)),
    "C60": lambda m: replace(m, forks=m.forks.assign(ppl=50.0)),
    "C66": lambda m: replace(m, forks=m.forks.assign(ppl=50.0)),
    "C65": lambda m: replace(m, forks=m.forks.assign(gap_pct=5.0)),
    "C74": lambda m: scaled(m, "low_bit", "ppl", -1.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_change_the_verdict(pythia, name):
    assert verdict(pythia, name) == verdicts.REPRODUCED
    assert verdict(CHANGES[name](pythia), name) == verdicts.DIFFERS


def test_a_fall_that_both_intervals_show_makes_the_gap_not_monotonic(pythia):
    assert verdict(pythia, "C78") == verdicts.DIFFERS
    table = pythia.audit.copy()
    late = (table["role"] == "low_bit") & (table["step"] == 120000)
    table.loc[late, ["gap_pct", "gap_low_pct", "gap_high_pct"]] = [20.0, 19.0, 21.0]
    assert verdict(replace(pythia, audit=table), "C78") == verdicts.REPRODUCED


def test_early_warning_needs_an_onset_after_the_alarm(pythia):
    """On the noiseless run the rule first rings after the best step."""
    late = with_phases(pythia, "onset", step=100000)
    assert verdict(late, "C42") == verdicts.REPRODUCED
    assert verdict(pythia, "C42") == verdicts.DIFFERS
    early = with_phases(pythia, "convergence", step=120000)
    assert verdict(early, "C42") == verdicts.DIFFERS


def test_one_missing_file_is_not_run_with_its_command(pythia, mini):
    judgement = verdicts.judge_claim(replace(mini, forks=None), CLAIMS["C56"])
    assert judgement.verdict == verdicts.NOT_RUN
    assert "`snakemake --cores all results/mini/forks.csv`" in judgement.reason
    assert verdict(replace(pythia, audit=None), "C67") == verdicts.CONTRADICTED


def test_a_step_that_was_not_probed_is_named(pythia):
    short = replace(pythia, audit=pythia.audit[pythia.audit["step"] != 30000])
    judgement = verdicts.judge_claim(short, CLAIMS["C09"])
    assert judgement.verdict == verdicts.NOT_RUN
    assert judgement.reason == "missing: step 30000 in audit.csv"


def test_a_run_without_a_constant_tail_cannot_tell(pythia):
    judgement = verdicts.judge_claim(without_tail(pythia), CLAIMS["C41"])
    assert judgement.verdict == verdicts.NOT_RUN
    assert "constant learning rate" in judgement.reason


def test_no_onset_is_no_coincidence(pythia):
    none = with_phases(pythia, lag_steps=None, lag_low=None, lag_high=None)
    none = with_phases(none, "onset", step=None, reason="a straight line fits as well")
    judgement = verdicts.judge_claim(none, CLAIMS["C39"])
    assert judgement.verdict == verdicts.DIFFERS
    assert "a straight line fits as well" in judgement.reason


def test_three_seeds_cannot_decide_and_five_can(pythia):
    assert verdict(pythia, "C62") == verdicts.UNDERPOWERED
    assert verdict(pythia, "C63") == verdicts.UNDERPOWERED
    more = replace(pythia, forks=forks(PYTHIA, n=5))
    assert verdict(more, "C62") == verdicts.REPRODUCED
    assert verdict(more, "C63") == verdicts.REPRODUCED
    swapped = more.forks.replace({"schedule": {"cosine": "sgdr", "sgdr": "cosine"}})
    assert verdict(replace(more, forks=swapped), "C62") == verdicts.DIFFERS


def test_undecidable_analogues_say_so(mini):
    judgement = verdicts.judge_claim(mini, CLAIMS["C62"])
    assert judgement.verdict == verdicts.UNDERPOWERED
    assert judgement.analogue.startswith(
        "analogue holds (not decidable: smallest attainable p = 0.10)"
    )


def test_a_measured_correlation_replaces_the_printed_design(pythia):
    """With 66 checkpoints in Phase 3 the printed n = 16 no longer limits the answer."""
    assert verdict(pythia, "X15") == verdicts.REPRODUCED
    steady = replace(pythia, kurtosis=pythia.kurtosis.assign(
        excess_kurtosis=np.tile(np.random.default_rng(0).normal(size=144)[:, None], 4).ravel()
    ))  # fmt: skip
    assert verdict(steady, "X15") == verdicts.DIFFERS


def test_wins_must_be_the_printed_ones(pythia):
    more = replace(pythia, forks=forks(PYTHIA, n=5))
    assert verdict(more, "C61") == verdicts.DIFFERS
    text = verdicts.judge_claim(pythia, CLAIMS["C61"]).measured
    assert text == "pythia-160m: sgdr 0/9, oli_cool 9/9, oli_all 0/9"


def test_forks_of_a_schedule_that_was_not_run(pythia):
    only = replace(pythia, forks=pythia.forks[pythia.forks["schedule"] != "sgdr"])
    judgement = verdicts.judge_claim(only, CLAIMS["C57"])
    assert judgement.verdict == verdicts.NOT_RUN
    assert "forks of the kind sgdr" in judgement.reason


def test_forks_are_found_by_kind_not_by_name(pythia):
    renamed = replace(
        pythia,
        forks=pythia.forks.replace({"schedule": {"sgdr": "restarts"}}),
        suite={
            **PYTHIA,
            "fork": {**PYTHIA["fork"], "schedules": {"restarts": {"kind": "sgdr", "period": 1}}},
        },
    )
    assert verdict(renamed, "C57") == verdicts.REPRODUCED


def decide(**changes) -> str:
    given = {"printed": None, "measured": Finding("1", True), "missing": [],
             "is_paper_model": True}  # fmt: skip
    return verdicts.decide(CLAIMS["C25"], **(given | changes))


def test_order_of_the_questions():
    contradicted = Finding("", False)
    weak = Finding("", None, smallest_p=0.1)
    assert decide() == verdicts.REPRODUCED
    assert decide(measured=Finding("2", False)) == verdicts.DIFFERS
    assert decide(measured=Finding("2", True, smallest_p=0.2)) == verdicts.UNDERPOWERED
    assert decide(is_paper_model=False) == verdicts.NOT_APPLICABLE
    assert decide(measured=None, missing=["audit.csv"]) == verdicts.NOT_RUN
    assert decide(measured=None, missing=["x"], printed=weak) == verdicts.UNDERPOWERED
    assert decide(printed=contradicted) == verdicts.CONTRADICTED
    assert decide(printed=contradicted, missing=["x"], measured=None) == verdicts.CONTRADICTED
    assert decide(printed=contradicted, is_paper_model=False) == verdicts.CONTRADICTED
    assert decide(printed=weak) == verdicts.REPRODUCED


def test_slope_is_that_of_least_squares_with_an_interval_around_it():
    rng = np.random.default_rng(0)
    steps = np.arange(1000, 60001, 1000)
    curve = pd.Series(2.0 + 0.5 * steps / 1000 + rng.normal(0, 1, 60), index=steps)
    value, low, high = slope(curve)
    assert value == pytest.approx(np.polyfit(steps / 1000, curve, 1)[0], abs=1e-12)
    assert low < 0.5 < high
    assert 0.5 < spread_around_line(curve) < 1.5


def test_steps_of_a_suite_lie_as_far_along(mini, pythia):
    assert [mini.step(s) for s in (1000, 70000, 77000, 143000)] == [40, 2800, 3080, 5720]
    assert pythia.step(82000) == 82000


@pytest.mark.parametrize("lr_min", [0.0, 1e-7])
def test_a_minimum_that_is_never_reached_is_a_finding(mini, lr_min):
    m = replace(mini, suite={**mini.suite, "lr_min": lr_min})
    found = verdicts.judge_claim(m, CLAIMS["C05"])
    assert f"lr_min {lr_min} is never reached" in found.analogue
    assert "does not hold" in found.analogue
    assert len(verdicts.judge(m)) == len(LEDGER.claims)
