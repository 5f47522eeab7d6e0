"""Claims about pilot, calibration and amplitude on tables whose answer is put in by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flatminima.claims import verdicts
from tests.test_claims import printed_only
from tests.test_claims_suites import CLAIMS, MINI, PYTHIA, rows

START = 70000


def pilot(ppl) -> pd.DataFrame:
    """pilot.csv; ``ppl(length, state)`` is the FP32 perplexity at the end of an arm."""
    found = []
    arms = [(512, 4, "fresh"), *itertools.product((512,), (16,), ("fresh", "rewarmed"))]
    arms += itertools.product((2048,), (4,), ("fresh", "rewarmed"))
    for (length, batch, state), seed, step in itertools.product(arms, (0, 1), (1000, 2000)):
        keys = {
            "schedule": f"pilot_{length}x{batch}_{state}", "seed": seed, "fork_step": START,
            "length": length, "batch_size": batch, "optimizer_state": state,
            "step": START + step,
        }  # fmt: skip
        value = ppl(length, state) if batch * length == 8192 else ppl("paper", state)
        found += rows(keys, value if step == 2000 else 34.0, {"low_bit": 12.0})
    return pd.DataFrame(found)


def amplitudes(gap) -> pd.DataFrame:
    """amplitudes.csv; ``gap(amplitude, period)`` is the low-bit gap at the end, in percent."""
    found = []
    for value, period, seed in itertools.product((2.0, 5.0, 10.0), (375, 10000), (0, 1)):
        keys = {"schedule": f"oli_x{value:g}_p{period}", "amplitude": value, "period": period,
                "seed": seed, "update_phase": "cool"}  # fmt: skip
        found += rows(keys | {"step": START + 29700}, 40.0, {"low_bit": 99.0})
        found += rows(keys | {"step": START + 30000}, 40.0, {"low_bit": gap(value, period)})
    return pd.DataFrame(found)


def forks() -> pd.DataFrame:
    return pd.DataFrame(
        [
            row
            for seed, gap in ((0, 9.0), (1, 11.0), (2, 90.0))
            for row in rows(
                {"schedule": "cosine", "seed": seed, "step": START + 30000}, 44.0, {"low_bit": gap}
            )
        ]  # fmt: skip
    )


def audit() -> pd.DataFrame:
    return pd.DataFrame(rows({"step": START}, 33.7, {"low_bit": 11.4}))


def judge(name: str, suite=PYTHIA, **tables) -> verdicts.Judgement:
    return verdicts.judge_claim(replace(printed_only(**tables), suite=suite), CLAIMS[name])


@pytest.mark.parametrize(
    ("last", "verdict"), [(130.0, verdicts.REPRODUCED), (36.0, verdicts.DIFFERS)]
)
def test_the_pilot_is_held_against_the_printed_perplexity(last, verdict):
    judged = judge("C68", audit=audit(), pilot=pilot(lambda length, state: last))
    assert judged.verdict == verdict
    assert f"33.7 to {last:.1f}" in judged.measured
    assert "in 2,000 steps of 4 x 512 tokens (2 seeds)" in judged.measured
    assert judged.sources[:2] == ("audit", "pilot")


WINDOW = {512: 60.0, 2048: 40.0, "paper": 130.0}


@pytest.mark.parametrize(
    ("ppl", "verdict", "words"),
    [
        (lambda length, state: WINDOW[length], verdicts.REPRODUCED, "+50.0 %, fresh"),
        (lambda length, state: 60.0 if state == "fresh" else 40.0, verdicts.DIFFERS,
         "moments by +50.0 %"),
        (lambda length, state: 2400.0 / WINDOW[length], verdicts.DIFFERS, "by -33.3 %, fresh"),
    ],
    ids=["window", "moments", "window the other way"],
)  # fmt: skip
def test_window_and_moments_are_told_apart(ppl, verdict, words):
    judged = judge("C69", pilot=pilot(ppl))
    assert judged.verdict == verdict
    assert words in judged.measured


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(60.0, verdicts.REPRODUCED), (5000.0, verdicts.REPRODUCED), (5600.0, verdicts.DIFFERS),
     (5.0, verdicts.DIFFERS)],
)  # fmt: skip
def test_the_calibrated_amplitude_counts_by_its_order_of_magnitude(value, verdict):
    found = {"assumed": "gradient", "amplitudes": {"gradient": value, "adam_fresh": 19.5}}
    judged = judge("C70", calibration=found)
    assert judged.verdict == verdict
    assert f"{value:.3g} from plain gradients; other readings: adam_fresh 19.5" in judged.measured


@pytest.mark.parametrize(
    ("gap", "verdict", "share"),
    [
        (lambda a, p: 10.0 - a, verdicts.REPRODUCED, "amplitude carries 100 %, cadence 0 %"),
        (lambda a, p: 10.0 + np.log(p), verdicts.DIFFERS, "amplitude carries 0 %, cadence 100 %"),
        (lambda a, p: 10.0 + (a - 17 / 3) * (1 if p == 375 else -1), verdicts.DIFFERS,
         "amplitude carries 0 %, cadence 0 %, both together 100 %"),
    ],
    ids=["amplitude", "cadence", "only together"],
)  # fmt: skip
def test_amplitude_and_cadence_are_told_apart(gap, verdict, share):
    judged = judge("C77", amplitudes=amplitudes(gap), forks=forks())
    assert judged.verdict == verdict
    assert share in judged.measured


def test_the_control_has_the_seeds_of_the_sweep():
    judged = judge("C77", amplitudes=amplitudes(lambda a, p: 10.0 - a), forks=forks())
    assert "every 375 steps x2 -2.0, x5 -5.0, x10 -10.0" in judged.measured


def test_one_cadence_cannot_tell():
    table = amplitudes(lambda a, p: 10.0 - a)
    judged = judge("C77", amplitudes=table[table["period"] == 375], forks=forks())
    assert judged.verdict in (verdicts.UNDERPOWERED, verdicts.NOT_RUN)


def test_on_another_suite_the_values_stand_beside_the_verdict():
    judged = judge("C70", suite=MINI, calibration={"assumed": "gradient",
                                                   "amplitudes": {"gradient": 600.0}})  # fmt: skip
    assert judged.verdict == verdicts.NOT_APPLICABLE
    assert judged.analogue.startswith("value only: 600 from plain gradients")
