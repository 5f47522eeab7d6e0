"""Effects that are known, told apart from the cells of the factorial."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest

from flatminima.mechanism.factors import (
    analyse,
    one_sensitivity,
    two_level_effects,
    variance_shares,
)
from tests.statistics_helpers import sequence_scores

BITS = [2, 3, 4, 5]
STEPS = {"tensor": 4.0, "channel": 2.0, "g8": 1.0}
SENSITIVITY = 0.02
LOW = {"bits": 2, "symmetric": False, "granularity": "g8"}


def design() -> pd.DataFrame:
    rows = list(product(BITS, [False, True], STEPS))
    return pd.DataFrame(rows, columns=["bits", "symmetric", "granularity"])


def test_shares_of_additive_effects_are_in_proportion_and_told_from_an_interaction():
    table = design()
    y = table["bits"] + 3.0 * table["symmetric"].astype(float)
    shares = variance_shares(table, y.to_numpy(float))
    wanted = np.var(BITS) / (np.var(BITS) + 9 * 0.25)
    for term, share in (("bits", wanted), ("symmetry", 1 - wanted), ("bits x symmetry", 0.0)):
        assert shares[term] == pytest.approx(share, abs=1e-12)
    codes = {name: pd.factorize(column)[0] for name, column in table.items()}
    for a, b in combinations(codes, 2):
        y = (codes[a] - codes[a].mean()) * (codes[b] - codes[b].mean())
        term = f"{a} x {b}".replace("symmetric", "symmetry")
        assert variance_shares(table, y)[term] == pytest.approx(1.0)


def test_two_level_effects_are_differences_of_means():
    corners = np.array(list(product([-1, 1], repeat=3)))
    levels = {name: corners[:, i] for i, name in enumerate("abc")}
    y = (2 * corners[:, 0] - corners[:, 1] + 0.5 * corners[:, 0] * corners[:, 2])[:, None]
    found = two_level_effects(y, levels)
    assert {k: v.item() for k, v in found.items()} == pytest.approx(
        {"a": 4.0, "b": -2.0, "c": 0.0, "a x b": 0.0, "a x c": 1.0, "b x c": 0.0}
    )


def test_one_sensitivity_is_found_where_it_made_the_losses():
    noise = np.geomspace(1e-3, 10, 30)
    found = one_sensitivity(SENSITIVITY * noise, noise)
    assert found == pytest.approx({"sensitivity": SENSITIVITY, "r2": 1, "factor": 1, "slope": 1})
    steep = one_sensitivity(noise**2, noise)
    assert steep["slope"] == pytest.approx(2.0) and steep["r2"] < 1


def measurements(noise_sd: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cells whose loss is one sensitivity times step², and scores of 40 sequences."""
    rng = np.random.default_rng(0)
    table = design()
    step = table["granularity"].map(STEPS) * np.where(table["symmetric"], 1.2, 1.0)
    table = table.assign(
        step=10,
        format="int",
        layers="blocks",
        quantizer=[f"cell{n}" for n in table.index],
        step_variance=(step / (2 ** table["bits"] - 1)) ** 2,
    )
    base = rng.uniform(2, 4, 40)
    scores = []
    losses = {"fp32": 0.0, **dict(zip(table["quantizer"], table["step_variance"], strict=True))}
    for name, variance in losses.items():
        value = SENSITIVITY * variance
        added = value * (1 + noise_sd * rng.standard_normal(40))
        role = "fp32" if name == "fp32" else "variant"
        nll = 10 * (base + added)
        scores.append(sequence_scores(10, role, nll, 10, quantizer=name, kl_nats=10 * value))
    return table, pd.concat(scores, ignore_index=True)


def test_the_analysis_finds_the_sensitivity_and_the_factors_between_two_probes():
    high = {"bits": 5, "symmetric": True, "granularity": "channel"}
    found = analyse(*measurements(noise_sd=0.3), low=LOW, high=high, resamples=12)
    keys = ["response", "analysis", "term", "measure"]
    at = found.set_index(keys)["value"].sort_index()
    assert at["added_loss", "prediction", "paper's layers", "r2"] > 0.99
    assert at["kl", "prediction", "all layer sets", "sensitivity"] == pytest.approx(SENSITIVITY)
    factors = at["kl", "paper"].droplevel("measure")
    assert factors["bits"] == pytest.approx((31 / 3) ** 2)
    assert factors["symmetry"] == pytest.approx(1 / 1.44)
    assert factors["granularity"] == pytest.approx(0.25)
    assert factors["bits x granularity"] == pytest.approx(1.0)
    assert at["added_loss", "variance"].sum() == pytest.approx(1.0)
    assert (found["low"] <= found["high"] + 1e-12).all()


def test_cells_that_are_lost_in_noise_are_left_out_and_the_rest_stays_balanced():
    cells, scores = measurements(noise_sd=0.0)
    [name] = cells.query("bits == 5 and symmetric and granularity == 'g8'")["quantizer"]
    lost = scores["quantizer"] == name
    # Plus in one half of the text, minus in the other: neighbours are resampled together.
    wave = np.where(scores["sequence"] < scores["sequence"].nunique() / 2, 1.0, -1.0)
    scores.loc[lost, "nll_nats"] += 5 * wave[lost]
    high = {"bits": 5, "symmetric": True, "granularity": "g8"}
    found = analyse(cells, scores, low=LOW, high=high, resamples=12)
    at = found[found["response"] == "added_loss"].set_index("analysis")
    assert set(at.loc["variance", "n"]) == {3 * 2 * 3} and "paper" not in at.index
