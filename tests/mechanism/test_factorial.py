"""The cells of the factorial, and effects that are known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from flatminima.mechanism.factorial import Cell, cells, probe_cells
from flatminima.mechanism.factors import (
    analyse,
    one_sensitivity,
    two_level_effects,
    variance_shares,
)
from flatminima.mechanism.visits import Visit
from flatminima.quantizers import linear_weights
from tests.conftest import affine

BITS, GRANULARITIES = [2, 3, 4, 5], ["tensor", "channel", "g8"]
SENSITIVITY = 0.02


def design() -> pd.DataFrame:
    rows = list(product(BITS, [False, True], GRANULARITIES))
    return pd.DataFrame(rows, columns=["bits", "symmetric", "granularity"])


def test_shares_of_additive_effects_are_in_proportion_and_told_from_an_interaction():
    table = design()
    y = table["bits"] + 3.0 * table["symmetric"].astype(float)
    shares = variance_shares(table, y.to_numpy(float))
    wanted = np.var(BITS) / (np.var(BITS) + 9 * 0.25)
    assert shares["bits"] == pytest.approx(wanted)
    assert shares["symmetry"] == pytest.approx(1 - wanted)
    assert shares["bits x symmetry"] == pytest.approx(0, abs=1e-12)
    y = np.where(table["symmetric"], 1.0, -1.0) * (table["bits"] - np.mean(BITS))
    assert variance_shares(table, y.to_numpy())["bits x symmetry"] == pytest.approx(1.0)


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
    assert found["sensitivity"] == pytest.approx(SENSITIVITY) and found["r2"] == pytest.approx(1.0)
    assert found["slope"] == pytest.approx(1.0) and found["factor"] == pytest.approx(1.0)
    steep = one_sensitivity(noise**2, noise)
    assert steep["slope"] == pytest.approx(2.0) and steep["r2"] < 1


def test_cells_are_the_whole_crossing_and_each_layer_set():
    low = {"symmetric": False, "granularity": "g8"}
    found = cells(bits=[2, 4], group_sizes=[8, 16], formats=["nf4"], sets=["blocks", "mlp", "all"],
                  low=low)  # fmt: skip
    names = {cell.name for cell in found}
    assert len(found) == len(names) == 2 * 2 * 4 + 2 * 2 + 1
    assert {"int4-asym-g8-blocks", "int2-sym-tensor-blocks", "int4-asym-g8-mlp",
            "nf4-blocks"} <= names  # fmt: skip
    assert Cell("blocks", "int", 4, False, "g8").spec == affine(4, "group", False, 8)
    assert Cell("blocks", "int", 8, True, "channel").spec == affine(8, "channel", True)
    assert Cell("blocks", "nf4").spec.label == "NF4"


def test_a_factorial_probe_says_what_each_cell_did(tiny_model, tiny_tokens):
    design = {"bits": [2, 8], "group_sizes": [8, 512], "formats": ["nvfp4"],
              "low": {"symmetric": False, "granularity": "g8"}}  # fmt: skip
    table, scores = probe_cells(Visit(7, tiny_model, tiny_tokens, 4, 20), design)
    assert len(table) == scores["quantizer"].nunique() == 1 + 2 * 2 * 3 + 8 * 2 + 1
    rows = table.set_index("quantizer")
    assert np.isnan(rows.loc["fp32", "n_weights"])
    whole = rows.loc["int8-asym-g8-blocks"]
    assert whole["n_weights"] == sum(w.numel() for w in linear_weights(tiny_model).values())
    # Positions are as good as uniform, so the two agree.
    assert whole["error_norm2"] == pytest.approx(whole["step_variance"], rel=0.1)
    assert rows.loc["int2-asym-g8-blocks", "kl_nats_per_token"] > whole["kl_nats_per_token"]
    assert np.isnan(rows.loc["nvfp4-blocks", "step_variance"])
    assert (table["step"] == 7).all()


def measurements(noise_sd=0.0):
    """Cells whose loss is one sensitivity times step², and scores of 40 sequences."""
    rng = np.random.default_rng(0)
    table = design()
    step = {"tensor": 4.0, "channel": 2.0, "g8": 1.0}
    variance = [
        (step[r.granularity] * (1.2 if r.symmetric else 1.0) / (2**r.bits - 1)) ** 2
        for r in table.itertuples()
    ]
    names = [f"int{r.bits}-{r.symmetric}-{r.granularity}-blocks" for r in table.itertuples()]
    table = table.assign(step=10, quantizer=names, format="int", layers="blocks",
                         step_variance=variance)  # fmt: skip
    rows = []
    base = rng.uniform(2, 4, 40)
    for name, value in [("fp32", 0.0), *zip(names, SENSITIVITY * np.array(variance), strict=True)]:
        for sequence in range(40):
            added = value * (1 + noise_sd * rng.standard_normal())
            rows.append({"step": 10, "quantizer": name,
                         "role": "fp32" if name == "fp32" else "variant", "sequence": sequence,
                         "nll_nats": 10 * (base[sequence] + added), "kl_nats": 10 * value,
                         "top1_changed": 0, "scored": 10})  # fmt: skip
    return table, pd.DataFrame(rows)


def test_the_analysis_finds_the_sensitivity_and_the_factors_between_two_probes():
    cells, scores = measurements(noise_sd=0.3)
    low = {"bits": 2, "symmetric": False, "granularity": "g8"}
    high = {"bits": 5, "symmetric": True, "granularity": "channel"}
    found = analyse(cells, scores, low=low, high=high, resamples=12)
    at = found.set_index(["response", "analysis", "term", "measure"])["value"]
    r2 = at[("added_loss", "prediction", "paper's layers", "r2")]
    assert r2 > 0.99
    assert at[("kl", "prediction", "all layer sets", "sensitivity")] == pytest.approx(SENSITIVITY)
    assert at[("kl", "paper", "bits", "factor")] == pytest.approx((31 / 3) ** 2)
    assert at[("kl", "paper", "symmetry", "factor")] == pytest.approx(1 / 1.44)
    assert at[("kl", "paper", "granularity", "factor")] == pytest.approx(0.25)
    assert at[("kl", "paper", "bits x granularity", "factor")] == pytest.approx(1.0)
    shares = found[(found["analysis"] == "variance") & (found["response"] == "added_loss")]
    assert shares["value"].sum() == pytest.approx(1.0)
    assert (found["low"] <= found["high"] + 1e-12).all()


def test_cells_that_are_lost_in_noise_are_left_out_and_the_rest_stays_balanced():
    cells, scores = measurements(noise_sd=0.0)
    lost = scores["quantizer"].eq("int5-True-g8-blocks")
    # Plus in one half of the text, minus in the other: neighbours are resampled together.
    wave = np.where(scores["sequence"] < scores["sequence"].nunique() / 2, 1.0, -1.0)
    scores.loc[lost, "nll_nats"] += 5 * wave[lost]
    low = {"bits": 2, "symmetric": False, "granularity": "g8"}
    high = {"bits": 5, "symmetric": True, "granularity": "g8"}
    found = analyse(cells, scores, low=low, high=high, resamples=12)
    shares = found[(found["response"] == "added_loss") & (found["analysis"] == "variance")]
    assert set(shares["n"]) == {3 * 2 * 3}
    assert not ((found["response"] == "added_loss") & (found["analysis"] == "paper")).any()
