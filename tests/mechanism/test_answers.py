"""Answers follow from intervals: the same question, three tables, three answers."""

import pandas as pd
import pytest

from flatminima.forks import rival_table
from flatminima.mechanism import figure_texts
from flatminima.mechanism.answers import above, answers, rival_answer
from tests.synthetic import forks
from tests.test_rivals import average, variant


def table(**found) -> pd.DataFrame:
    rows = [{"finding": name, "value": (low + high) / 2, "low": low, "high": high, "n": 9,
             "unit": "runs", "about": "from step 1 to step 2"}
            for name, (low, high) in found.items()]  # fmt: skip
    return pd.DataFrame(rows)


def growth(noise, sensitivity) -> pd.DataFrame:
    return table(cost_growth=(2, 4), noise_growth=(noise, noise), relative_noise_growth=(1, 1),
                 sensitivity_growth=sensitivity)  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "answer"), [((1.1, 1.3), "yes"), ((0.7, 0.9), "no"), ((0.9, 1.1), "not decided"),
                         ((float("nan"), float("nan")), "not decided")]
)  # fmt: skip
def test_an_answer_is_what_the_interval_decides(ends, answer):
    assert above(pd.Series({"low": ends[0], "high": ends[1]}), 1.0) == answer


@pytest.mark.parametrize(
    ("noise", "sensitivity", "answer"),
    [(2.0, (0.9, 1.1), "noise"), (1.0, (1.5, 2.5), "sensitivity"),
     (2.0, (1.5, 2.5), "noise and sensitivity"), (1.0, (0.9, 1.1), "not decided")],
)  # fmt: skip
def test_the_factor_that_grows_is_named(noise, sensitivity, answer):
    (row,) = answers(growth(noise, sensitivity)).itertuples()
    assert row.answer == answer and "from step 1 to step 2" in row.question
    # Noise and sensitivity both double: half of the growth each.
    assert ("noise is 50 % [" in row.because) == (answer == "noise and sensitivity")


def test_single_losses_that_sum_to_less_than_all_compound():
    def answer(low, high):
        found = table(layers_sum_over_all=(low, high), layers_worst_alone_nats=(0.1, 0.2))
        return answers(found)["answer"].tolist()

    assert answer(0.5, 0.6) == ["yes"] and answer(0.96, 1.02) == ["no"]
    assert answer(0.9, 1.1) == ["not decided"]


def test_what_was_not_measured_is_not_answered():
    assert answers(table(trace_growth=(1, 2))).empty


def test_the_two_ways_to_be_best_are_both_named():
    rivals = rival_table(forks(), [variant("wsd", "cosine", 0)], [average("run")])
    means = rivals[rivals["role"] == "low_bit"]
    means = means[means["update_phase"] != "bump"].groupby("schedule")
    text = rival_answer(rivals)
    assert f"Lowest low-bit perplexity: `{means['ppl'].mean().idxmin()}`" in text
    assert f"smallest gap: `{means['gap_pct'].mean().idxmin()}`" in text


def test_bars_in_a_question_do_not_end_a_cell_of_the_table():
    shown = figure_texts.table(table(noise_growth=(1, 2)), {"noise_growth": "growth of |w|²?"})
    assert shown["question"].tolist() == [r"growth of \|w\|²?"]
    assert shown["value [95 % interval]"].tolist() == ["1.5 [1, 2]"]
