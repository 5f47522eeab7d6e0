"""Means, gaps and intervals over text and along a run against independent computations."""

import numpy as np
import pandas as pd
import pytest
from arch.bootstrap import optimal_block_length
from scipy import stats

from flatminima.intervals import (
    paired_scores,
    percentile_interval,
    resampled_curves,
    resampled_means,
    segment_means,
    stationary_bootstrap,
    summarise,
    two_sided_p,
)
from tests.statistics_helpers import ar1, sequence_scores

ROLES = {"fp32": 0.0, "low_bit": 0.1, "high_bit": 0.001}  # what rounding adds


def table(steps=(40, 80, 120), sequences=24, seed=0):
    rng = np.random.default_rng(seed)
    scored = rng.integers(3, 60, sequences)
    rows = []
    for step in steps:
        base = rng.normal(3.0, 0.5, sequences)
        for role, shift in ROLES.items():
            nll = base + shift * rng.gamma(4.0, 0.25, sequences)
            rows.append(
                sequence_scores(
                    step, role, nll * scored, scored, kl_nats=nll, top1_changed=range(sequences)
                )
            )
    return pd.concat(rows, ignore_index=True)


# Text


def test_means_weigh_every_token_alike_where_sequences_are_ragged():
    rng = np.random.default_rng(3)
    lengths = [1, 2, 17, 100]
    tokens = {role: [rng.gamma(2.0, 1.5, n) for n in lengths] for role in ROLES}
    rows = []
    for role, parts in tokens.items():
        nll = np.array([part.sum() for part in parts])
        changed = [float((part > 3).sum()) for part in parts]
        rows.append(sequence_scores(7, role, nll, lengths, kl_nats=nll / 10, top1_changed=changed))
    summary = summarise(pd.concat(rows), ["step"], resamples=20, seed=0).set_index("role")
    flat = {role: np.concatenate(parts) for role, parts in tokens.items()}
    for role, nll in flat.items():
        expected = {
            "nll_nats_per_token": nll.mean(),
            "ppl": np.exp(nll.mean()),
            "n_tokens": 120,
            "gap_pct": 100 * (np.exp(nll.mean()) / np.exp(flat["fp32"].mean()) - 1),
            "kl_nats_per_token": nll.mean() / 10,
            "top1_changed_pct": 100 * (nll > 3).mean(),
        }
        measured = summary.loc[role, list(expected)].to_dict()
        assert measured == pytest.approx(expected, rel=1e-12, abs=1e-12)
    zero = ["delta_nll_nats_per_token", "gap_pct", "gap_low_pct", "gap_high_pct"]
    assert (summary.loc["fp32", zero] == 0).all()


def test_intervals_are_the_percentiles_of_whole_stretches_drawn_anew():
    data = table(steps=(40,))
    summary = summarise(data, ["step"], resamples=400, seed=11).set_index("role")
    # 7 draws of 10 are as wide as Student's t.
    assert round(9 * (1.959964 / stats.t.ppf(0.975, 9)) ** 2) == 7
    stretch = np.repeat(range(10), [2, 2, 3, 2, 3, 2, 2, 3, 2, 3])
    draws = np.random.default_rng(11).multinomial(7, [0.1] * 10, 400)[:, stretch]
    nll = data.pivot(index="sequence", columns="role", values="nll_nats").to_numpy()
    means = draws @ nll / (draws @ data[data.role == "fp32"].scored.to_numpy())[:, None]
    low, high = np.exp(np.quantile(means, [0.025, 0.975], axis=0))
    for place, role in enumerate(sorted(ROLES)):
        row = summary.loc[role]
        assert (row.ppl_low, row.ppl_high) == pytest.approx((low[place], high[place]), rel=1e-9)
        gap = np.quantile(100 * np.expm1(means[:, place] - means[:, 0]), [0.025, 0.975])
        assert (row.gap_low_pct, row.gap_high_pct) == pytest.approx(tuple(gap), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("rho", "rho_added"), [(0.0, 0.0), (0.55, 0.2)])
def test_95_percent_over_correlated_text_hold_more_than_92(rho, rho_added):
    """The rho of neighbouring sequences measured on mini; single ones would hold 70 and 88."""
    count = 256
    steps = range(400)
    added = 0.08
    rng = np.random.default_rng(5)
    base = 2.7 + 0.7 * np.array([ar1(rng, count, rho) for _ in steps])
    low_bit = base + added + 0.09 * np.array([ar1(rng, count, rho_added) for _ in steps])
    sequences = pd.concat(
        sequence_scores(step, role, nll[step] * 63)
        for role, nll in (("fp32", base), ("low_bit", low_bit))
        for step in steps
    )
    rows = summarise(sequences, ["step"], resamples=400, seed=1)
    gap = rows[rows.role == "low_bit"]
    coverage = {
        "fp32": rows[rows.role == "fp32"].eval("ppl_low <= @np.exp(2.7) <= ppl_high").mean(),
        "low_bit": gap.eval("ppl_low <= @np.exp(2.7 + @added) <= ppl_high").mean(),
        "gap": gap.eval("gap_low_pct <= 100 * @np.expm1(@added) <= gap_high_pct").mean(),
    }
    assert min(coverage.values()) > 0.92 and max(coverage.values()) < 0.985, coverage
    if rho:
        errors = stats.sem(base, axis=1), stats.sem(low_bit - base, axis=1)
        singly = [
            (np.abs(x.mean(axis=1) - wanted) < 1.96 * error).mean()
            for x, wanted, error in zip((base, low_bit - base), (2.7, added), errors, strict=True)
        ]
        assert singly == pytest.approx([0.70, 0.88], abs=0.05)


def test_a_summary_depends_on_neither_the_order_of_rows_nor_on_other_keys():
    data = table()
    summary = summarise(data, ["step"], resamples=50, seed=5)
    shuffled = data.sample(frac=1, random_state=1).sort_values(
        "quantizer", ascending=False, kind="stable"
    )
    pd.testing.assert_frame_equal(summary, summarise(shuffled, ["step"], resamples=50, seed=5))
    assert list(summary.role) == ["fp32", "low_bit", "high_bit"] * 3
    assert list(summary.step) == [40] * 3 + [80] * 3 + [120] * 3
    other = table(seed=1).assign(schedule="cosine", scored=data.scored)
    forks = pd.concat([other, data.assign(schedule="oli")])
    both = summarise(forks, ["schedule", "step"], resamples=50, seed=5)
    own = both[both.schedule == "oli"].drop(columns="schedule").reset_index(drop=True)
    pd.testing.assert_frame_equal(own, summary, rtol=1e-12)


def test_curves_are_the_resampled_means_of_each_role_at_the_steps_asked_for():
    data = table()
    means = resampled_means(paired_scores(data, ["step"]), resamples=6, seed=2)
    curves = resampled_curves(data, [40, 80, 120], resamples=6, seed=2)
    for offset, role in enumerate(("fp32", "low_bit", "high_bit")):
        np.testing.assert_array_equal(curves[role], means[offset::3].T)
    assert resampled_curves(data, [40, 120], resamples=2, seed=0)["fp32"].shape == (2, 2)
    with pytest.raises(ValueError, match="role fp32: one row at each of the 2 steps is needed"):
        resampled_curves(data, [40, 160], resamples=2, seed=0)


def test_a_table_that_cannot_be_paired_is_refused_in_one_line():
    data = table()
    for spoiled, message in (
        (data.drop(index=25), "40, .*low_bit: every model must be scored on"),
        (data.assign(scored=data.scored.where(data.index != 20, 1)), "models differ"),
        (data[(data.role != "fp32") | (data.step != 80)], "exactly one row with role fp32"),
        (data[data.sequence == 0], "1 sequences, 10 resamples"),
    ):
        with pytest.raises(ValueError, match=message):
            summarise(spoiled, ["step"], resamples=10, seed=0)


def test_p_and_interval_of_draws_go_together():
    draws = np.arange(-49.0, 951.0)  # 50 of 1,000 at or below zero
    assert two_sided_p(draws) == two_sided_p(-draws) == pytest.approx(2 * 51 / 1_001)
    assert percentile_interval(draws) == pytest.approx((-24.025, 925.025))
    assert two_sided_p(np.zeros(9)) == 1.0
    assert two_sided_p(np.ones(999)) == pytest.approx(2 / 1_000)


# Series along a run


def test_blocks_are_as_long_and_intervals_as_wide_as_the_dependence_asks_for():
    rng = np.random.default_rng(0)
    differences = rng.normal(1.0, 2.0, (400, 1))
    low, high, p, length = stationary_bootstrap(differences)
    half = 1.96 * differences.std() / np.sqrt(400)  # the central limit theorem
    assert length <= 3 and p == pytest.approx(2 / 5_000)
    assert (low + half, high - half) == pytest.approx([differences.mean()] * 2, abs=0.15 * half)
    differences = ar1(rng, 400, 0.8)[:, None]
    low, high, _, length = stationary_bootstrap(differences)
    low_end, high_end, _, shuffled = stationary_bootstrap(rng.permutation(differences))
    assert length == np.ceil(optimal_block_length(differences)["stationary"].iloc[0])
    assert length > 3 * shuffled
    # The variance of the mean of such a series is (1 + 0.8) / (1 - 0.8) = 9 times larger.
    assert 2.0 < (high - low) / (high_end - low_end) < 3.5
    # What seeds share at a step stays together.
    shared = differences[:60]
    independent = rng.normal(size=(60, 3))
    three = stationary_bootstrap(np.repeat(shared, 3, axis=1))
    assert three[:2] == pytest.approx(stationary_bootstrap(shared)[:2], rel=1e-12)
    low, high, *_ = stationary_bootstrap(independent)
    low_end, high_end, *_ = stationary_bootstrap(np.repeat(independent[:, :1], 3, axis=1))
    assert high - low < 0.8 * (high_end - low_end)


def test_how_often_intervals_of_30_dependent_probes_hold_the_true_mean():
    held = np.zeros(3)
    repeats = 150
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        three = np.column_stack([ar1(rng, 30, 0.5) for _ in range(3)])
        low, high, *_ = stationary_bootstrap(three, resamples=499)
        tests = [stats.ttest_1samp(means, 0) for means in (segment_means(three), three.ravel())]
        held += [low <= 0 <= high, *(test.pvalue > 0.05 for test in tests)]
    # By the bootstrap, by segments, and by all probes as if they were independent.
    assert held / repeats == pytest.approx([0.78, 0.92, 0.72], abs=0.05)
