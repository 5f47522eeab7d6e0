"""The power law of the low-bit loss: closed form, the paper's rows, and what is said of it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flatminima.errors import UserError
from flatminima.scaling_law import (
    Answer,
    excess_answer,
    excess_sentence,
    fit_line,
    fit_power_law,
    printed_excess,
    suite_excess,
)
from tests.statistics_helpers import ar1
from tests.synthetic import PAPER_TABLE1

TOKENS = np.arange(1.0, 21.0) * 1e6


def test_a_law_is_found_and_what_leaves_it_is_its_excess():
    delta = 3e-4 * TOKENS**0.4
    delta[-1] *= 5.0
    found = fit_power_law(TOKENS, delta, 2e6, 15e6)
    expected = {"exponent": 0.4, "excess": 5.0, "predicted_nats": 3e-4 * 2e7**0.4}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    with pytest.raises(UserError, match="3 checkpoints with a positive loss .*, not 0"):
        fit_power_law(TOKENS, -delta, 2e6, 15e6)


def test_the_law_is_fitted_up_to_the_onset_where_that_comes_before_convergence():
    """A collapse from 3,120 on that FP32 convergence at 3,920 does not see."""
    steps = np.arange(40, 5721, 40)
    delta = 1e-3 * steps**0.4 * np.where(steps > 3120, np.exp((steps - 3120) / 1000), 1.0)
    audit = pd.DataFrame(
        {
            "role": "low_bit",
            "step": steps,
            "tokens_seen": 1024 * steps,
            "delta_nll_nats_per_token": delta,
        }
    )
    phases = {
        "rapid_learning_end": {"step": 280},
        "convergence": {"step": 3920},
        "onset": {"step": 3120},
    }
    law = suite_excess(audit, phases, spacing=40)
    assert law["tokens_stop"] == 1024 * 3120
    assert law["exponent"] == pytest.approx(0.4)
    assert law["excess"] == pytest.approx(np.exp(2.6))
    assert excess_answer(law) is Answer.LEFT
    for onset in (None, 4000):
        law = suite_excess(audit, phases | {"onset": {"step": onset}}, spacing=40)
        assert law["tokens_stop"] == 1024 * 3920


def test_the_papers_rows_leave_theirs():
    found = printed_excess(PAPER_TABLE1)
    assert found["excess"] == pytest.approx(13.3, abs=0.05)
    assert (found["excess_low"], found["excess_high"]) == pytest.approx((11, 15), abs=0.6)


def test_the_sentence_says_no_more_than_the_interval():
    for excess, low, high, said in (
        (13.0, 11.0, 15.0, "left its power law of the tokens seen: 13 times"),
        (0.5, 0.4, 0.6, "fell below"),
        (1.1, 0.7, 1.5, "did not leave"),
        (1.4, 1e-6, 5e5, "cannot be told"),
        # Nearly two decades around 1; the law was once said to hold here.
        (9.4, 0.87, 82, "cannot be told"),
        (0.1, 0.012, 1.1, "cannot be told"),
        (1.1, 0.12, 9.9, "did not leave"),
        (90.0, 1.1, 8000, "left its power law"),
    ):
        found = {"excess": excess, "excess_low": low, "excess_high": high, "unit": "tokens"}
        assert said in excess_sentence(found)


@pytest.mark.parametrize("count", [12, 28, 42])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7])
def test_slopes_and_predictions_hold_their_95_percent(count, rho):
    rng = np.random.default_rng(3)
    held = np.zeros(2)
    trials = 200
    x = np.arange(count + 10.0)
    for _ in range(trials):
        y = 0.1 * x + ar1(rng, len(x), rho)
        (_, low, high), (_, below, above) = fit_line(x[:count], y[:count], x[-1])
        held += [low <= 0.1 <= high, below <= y[-1] <= above]
    assert (100 * held / trials > 92).all(), held


def test_few_points_have_the_line_and_the_prediction_of_least_squares():
    x, y = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 2.5, 2.9, 5.2])
    (slope, _, high), (_, _, predicted_high) = fit_line(x, y, 6.0)
    theirs = stats.linregress(x, y)
    assert slope == pytest.approx(theirs.slope)
    assert high - slope == pytest.approx(theirs.stderr * stats.t.ppf(0.975, 2), rel=1e-6)
    rest = y - theirs.intercept - theirs.slope * x
    spread = np.sqrt(rest @ rest / 2 * (1 + 1 / 4 + (6 - x.mean()) ** 2 / (4 * x.var())))
    wanted = theirs.intercept + 6 * theirs.slope + spread * stats.t.ppf(0.975, 2)
    assert predicted_high == pytest.approx(wanted, rel=1e-6)
