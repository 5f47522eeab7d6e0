"""Means, gaps and paired bootstrap intervals against independent computations."""

import numpy as np
import pandas as pd
import pytest
from arch.bootstrap import optimal_block_length
from scipy import stats

from flatminima.intervals import (
    fit_line,
    gap_intervals,
    paired_scores,
    percentile_interval,
    resampled_curves,
    resampled_means,
    segment_t_test,
    stationary_bootstrap,
    summarise,
    two_sided_p,
)

ROLES = {"fp32": "fp32", "rtn_int4": "low_bit", "rtn_int8": "high_bit"}


def table(steps=(40, 80, 120), sequences=12, seed=0, ragged=True):
    rng = np.random.default_rng(seed)
    scored = rng.integers(3, 60, sequences) if ragged else np.full(sequences, 63)
    rows = []
    for step in steps:
        base = rng.normal(3.0, 0.5, sequences)
        for name, role in ROLES.items():
            shift = {"fp32": 0.0, "low_bit": 0.1, "high_bit": 0.001}[role]
            extra = shift * rng.gamma(4.0, 0.25, sequences)
            for i in range(sequences):
                rows.append({
                    "step": step, "quantizer": name, "role": role, "sequence": i,
                    "nll_nats": (base[i] + extra[i]) * scored[i],
                    "kl_nats": extra[i] * scored[i],
                    "top1_changed": float(round(min(extra[i], 1.0) * scored[i])),
                    "scored": int(scored[i]),
                })  # fmt: skip
    return pd.DataFrame(rows)


def test_means_weigh_every_token_alike_where_sequences_are_ragged():
    rng = np.random.default_rng(3)
    lengths = [1, 2, 17, 100]
    tokens = {name: [rng.gamma(2.0, 1.5, n) for n in lengths] for name in ROLES}
    rows = [
        {"step": 7, "quantizer": name, "role": role, "sequence": i, "nll_nats": nll.sum(),
         "kl_nats": (nll / 10).sum(), "top1_changed": float((nll > 3).sum()), "scored": len(nll)}
        for name, role in ROLES.items() for i, nll in enumerate(tokens[name])
    ]  # fmt: skip
    summary = summarise(pd.DataFrame(rows), ["step"], resamples=20, seed=0).set_index("role")
    flat = {name: np.concatenate(parts) for name, parts in tokens.items()}
    for name, role in ROLES.items():
        row = summary.loc[role]
        ppl, ppl_fp32 = np.exp(flat[name].mean()), np.exp(flat["fp32"].mean())
        assert row.nll_nats_per_token == pytest.approx(flat[name].mean(), rel=1e-13)
        assert row.ppl == pytest.approx(ppl, rel=1e-13)
        assert row.gap_pct == pytest.approx(100 * (ppl - ppl_fp32) / ppl_fp32, rel=1e-12, abs=1e-12)
        assert row.kl_nats_per_token == pytest.approx(flat[name].mean() / 10, rel=1e-13)
        assert row.top1_changed_pct == pytest.approx(100 * (flat[name] > 3).mean(), rel=1e-13)
        assert (row.n_sequences, row.n_tokens) == (4, 120)
    unweighted = np.mean([part.mean() for part in tokens["fp32"]])
    assert abs(summary.loc["fp32"].nll_nats_per_token - unweighted) > 1e-3


def test_interval_equals_scipys_paired_bootstrap_on_the_scores_themselves():
    data = table()
    ours = gap_intervals(data, ["step"], resamples=400, seed=11)

    def gap(nll, nll_fp32, scored, axis):
        total = scored.sum(axis=axis)
        ratio = np.exp(nll.sum(axis=axis) / total) / np.exp(nll_fp32.sum(axis=axis) / total)
        return 100 * (ratio - 1)

    for (step, name), rows in data.groupby(["step", "quantizer"]):
        fp32 = data[(data.step == step) & (data.role == "fp32")]
        samples = [part.to_numpy(float) for part in (rows.nll_nats, fp32.nll_nats, rows.scored)]
        scipys = stats.bootstrap(
            samples, gap, paired=True, vectorized=True, n_resamples=400, batch=90,
            method="percentile", rng=np.random.default_rng(11),
        ).confidence_interval  # fmt: skip
        row = ours[(ours.step == step) & (ours.quantizer == name)].iloc[0]
        assert row.gap_low_pct == pytest.approx(scipys.low, rel=1e-9, abs=1e-10)
        assert row.gap_high_pct == pytest.approx(scipys.high, rel=1e-9, abs=1e-10)


def test_pairing_removes_the_difference_between_sequences():
    data = table(steps=(40,), sequences=60)
    low_bit = gap_intervals(data, ["step"], resamples=500, seed=0).set_index("role").loc["low_bit"]
    nll = data.pivot(index="sequence", columns="role", values="nll_nats")
    scored = data[data.role == "fp32"].set_index("sequence").scored
    unpaired = stats.bootstrap(
        (nll.low_bit / scored, nll.fp32 / scored),
        lambda a, b, axis: 100 * np.expm1(a.mean(axis=axis) - b.mean(axis=axis)),
        method="percentile", n_resamples=500, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    assert low_bit.gap_high_pct - low_bit.gap_low_pct < 0.2 * (unpaired.high - unpaired.low)


def test_interval_covers_the_true_gap_in_about_95_of_100_experiments():
    true_delta, covered = 0.1, 0
    for trial in range(200):
        rng = np.random.default_rng(1000 + trial)
        base = rng.normal(3, 0.5, 80)
        low_bit = base + rng.normal(true_delta, 0.05, 80)
        rows = pd.concat([
            pd.DataFrame({"step": 1, "quantizer": role, "role": role, "sequence": range(80),
                          "nll_nats": nll * 63, "scored": 63})
            for role, nll in (("fp32", base), ("low_bit", low_bit))
        ])  # fmt: skip
        row = gap_intervals(rows, ["step"], resamples=200, seed=trial).iloc[1]
        covered += row.gap_low_pct <= 100 * np.expm1(true_delta) <= row.gap_high_pct
    assert 176 <= covered <= 199  # binomial(200, 0.93) within about three standard deviations


def test_full_precision_rows_have_no_gap_and_no_width():
    fp32 = summarise(table(), ["step"], resamples=50, seed=0).query("role == 'fp32'")
    assert (fp32[["delta_nll_nats_per_token", "gap_pct", "gap_low_pct", "gap_high_pct",
                  "kl_nats_per_token", "top1_changed_pct"]] == 0).all(axis=None)  # fmt: skip


def test_columns_order_and_independence_from_row_order():
    data = table()
    shuffled = data.sample(frac=1, random_state=1).sort_values("quantizer", kind="stable")
    summary = summarise(data, ["step"], resamples=50, seed=5)
    pd.testing.assert_frame_equal(summary, summarise(shuffled, ["step"], resamples=50, seed=5))
    assert list(summary.columns) == [
        "step", "quantizer", "role", "nll_nats_per_token", "ppl", "delta_nll_nats_per_token",
        "gap_pct", "gap_low_pct", "gap_high_pct", "kl_nats_per_token", "top1_changed_pct",
        "n_sequences", "n_tokens",
    ]  # fmt: skip
    assert list(summary.role) == ["fp32", "low_bit", "high_bit"] * 3
    assert list(summary.step) == [40] * 3 + [80] * 3 + [120] * 3


def test_several_key_columns_each_find_their_own_full_precision_row():
    names = enumerate(("oli", "cosine"))
    forks = pd.concat([table(seed=i, ragged=False).assign(schedule=name) for i, name in names])
    summary = summarise(forks, ["schedule", "step"], resamples=10, seed=0)
    alone = summarise(table(seed=0, ragged=False), ["step"], resamples=10, seed=0)
    pd.testing.assert_frame_equal(
        summary[summary.schedule == "oli"].drop(columns="schedule").reset_index(drop=True), alone
    )


def test_curves_are_the_resampled_means_of_each_role():
    data = table()
    means, _ = resampled_means(paired_scores(data, ["step"]), resamples=6, seed=2)
    curves = list(resampled_curves(data, [40, 80, 120], resamples=6, seed=2))
    assert len(curves) == 6
    for b, curve in enumerate(curves):
        assert list(curve) == ["fp32", "low_bit", "high_bit"]
        for offset, role in enumerate(curve):
            np.testing.assert_array_equal(curve[role], means[offset::3, b])
    drawn = np.random.default_rng(2).integers(0, 12, (6, 12))
    rows = data[(data.step == 80) & (data.role == "low_bit")].sort_values("sequence")
    for b, curve in enumerate(curves):
        nll, scored = rows.nll_nats.to_numpy()[drawn[b]], rows.scored.to_numpy()[drawn[b]]
        assert curve["low_bit"][1] == pytest.approx(nll.sum() / scored.sum(), rel=1e-13)


def test_curves_leave_out_other_steps_and_name_a_missing_one():
    data = table()
    curve = next(resampled_curves(data, [40, 120], resamples=2, seed=0))
    assert curve["fp32"].shape == (2,)
    with pytest.raises(ValueError, match="role fp32: one row at each of the 2 steps is needed"):
        next(resampled_curves(data, [40, 160], resamples=2, seed=0))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.drop(index=13), "step 40, quantizer rtn_int4, role low_bit: nll_nats is "
                                     "missing for sequence 1;"),
        (lambda d: pd.concat([d, d.iloc[[5]]]), "sequence 5: scored twice"),
        (lambda d: d.assign(scored=d.scored.where(d.index != 20, 1)), "sequence 8: models differ"),
        (lambda d: d[(d.role != "fp32") | (d.step != 80)], "exactly one row with role fp32"),
        (lambda d: d[d.sequence == 0], "1 sequences, 10 resamples"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_paired_is_refused_in_one_line(spoil, message):
    with pytest.raises(ValueError, match=message) as error:
        summarise(spoil(table()), ["step"], resamples=10, seed=0)
    assert "\n" not in str(error.value)


# Series along a run


def series(rng, count, lag_one):
    """A stationary series with this lag-1 autocorrelation and variance 1."""
    noise = rng.normal(size=count)
    for i in range(1, count):
        noise[i] = lag_one * noise[i - 1] + np.sqrt(1 - lag_one**2) * noise[i]
    return noise


def test_independent_differences_have_the_interval_of_the_central_limit_theorem():
    differences = np.random.default_rng(0).normal(1.0, 2.0, (400, 1))
    found = stationary_bootstrap(differences)
    half = 1.96 * differences.std() / np.sqrt(400)
    assert found.length <= 3
    assert found.low == pytest.approx(differences.mean() - half, abs=0.15 * half)
    assert found.high == pytest.approx(differences.mean() + half, abs=0.15 * half)
    assert found.p_value == pytest.approx(2 / 5_000)


def test_dependent_differences_have_longer_blocks_and_wider_intervals():
    rng = np.random.default_rng(1)
    differences = series(rng, 400, 0.8)[:, None]
    found, shuffled = (
        stationary_bootstrap(rows) for rows in (differences, rng.permutation(differences))
    )
    assert found.length == np.ceil(optimal_block_length(differences)["stationary"].iloc[0])
    assert found.length > 3 * shuffled.length
    # The variance of the mean of such a series is (1 + 0.8) / (1 - 0.8) = 9 times larger.
    ratio = (found.high - found.low) / (shuffled.high - shuffled.low)
    assert 2.0 < ratio < 3.5


def test_what_seeds_share_at_a_step_stays_together():
    shared = series(np.random.default_rng(2), 60, 0.0)
    three = stationary_bootstrap(np.column_stack([shared, shared, shared]))
    one = stationary_bootstrap(shared[:, None])
    assert (three.low, three.high) == pytest.approx((one.low, one.high), rel=1e-12)
    own = np.random.default_rng(3).normal(size=(60, 3))
    narrower = stationary_bootstrap(own)
    assert narrower.high - narrower.low < 0.8 * (three.high - three.low)


def test_how_often_intervals_of_30_dependent_probes_hold_the_true_mean():
    held = dict.fromkeys(("bootstrap", "segments", "pooled"), 0)
    repeats = 150
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        three = np.column_stack([series(rng, 30, 0.5) for _ in range(3)])
        block, segments = stationary_bootstrap(three, resamples=499), segment_t_test(three)
        held["bootstrap"] += block.low <= 0 <= block.high
        held["segments"] += segments.low <= 0 <= segments.high
        held["pooled"] += stats.ttest_1samp(three.ravel(), 0).pvalue > 0.05
    shares = {name: count / repeats for name, count in held.items()}
    assert shares["bootstrap"] == pytest.approx(0.78, abs=0.08)
    assert shares["segments"] == pytest.approx(0.92, abs=0.05)
    assert shares["pooled"] == pytest.approx(0.72, abs=0.08)


def test_segment_t_is_a_t_test_of_five_means():
    differences = np.random.default_rng(4).normal(0.3, 1.0, (23, 3))
    mean = differences.mean(axis=1)
    parts = [mean[a:b].mean() for a, b in ((0, 5), (5, 10), (10, 15), (15, 19), (19, 23))]
    theirs = stats.ttest_1samp(parts, 0)
    found = segment_t_test(differences)
    assert (found.t, found.p_value, found.dof) == pytest.approx(
        (theirs.statistic, theirs.pvalue, 4), rel=1e-12
    )


def test_p_and_interval_of_draws_go_together():
    draws = np.arange(-49.0, 951.0)  # 50 of 1,000 at or below zero
    assert two_sided_p(draws) == pytest.approx(2 * 51 / 1_001)
    assert percentile_interval(draws) == pytest.approx((-24.025, 925.025))
    assert two_sided_p(-draws) == two_sided_p(draws)
    assert two_sided_p(np.zeros(9)) == 1.0
    assert two_sided_p(np.ones(999)) == pytest.approx(2 / 1_000)


def test_too_few_probes_are_refused():
    with pytest.raises(ValueError, match="11 probes: blocks need 12 or more"):
        stationary_bootstrap(np.zeros((11, 3)))


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("count", [12, 28, 42])
def test_slopes_with_dependent_residuals_hold_their_95_percent(count, rho):
    rng, held, trials = np.random.default_rng(3), 0, 200
    x = 40.0 * np.arange(count)
    for _ in range(trials):
        line = fit_line(x, series(rng, count + 50, rho)[50:] + 0.01 * x, x[-1])
        held += line.slope_low <= 0.01 <= line.slope_high
    assert 100 * held / trials > 92


def test_predictions_hold_new_observations():
    rng, held, trials, x = np.random.default_rng(4), 0, 200, np.arange(30.0)
    for _ in range(trials):
        noise = series(rng, 100, 0.5)[50:]
        line = fit_line(x[:20], 0.1 * x[:20] + noise[:20], x[-1])
        held += line.predicted_low <= 0.1 * x[-1] + noise[29] <= line.predicted_high
    assert 100 * held / trials > 92


def test_few_points_have_the_line_and_the_prediction_of_least_squares():
    x, y = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 2.5, 2.9, 5.2])
    line, theirs = fit_line(x, y, 6.0), stats.linregress(x, y)
    assert line.slope == pytest.approx(theirs.slope)
    half = theirs.stderr * stats.t.ppf(0.975, 2)
    assert line.slope_high - line.slope == pytest.approx(half, rel=1e-6)
    rest = y - theirs.intercept - theirs.slope * x
    spread = np.sqrt(rest @ rest / 2 * (1 + 1 / 4 + (6 - x.mean()) ** 2 / (4 * x.var())))
    wanted = theirs.intercept + 6 * theirs.slope + spread * stats.t.ppf(0.975, 2)
    assert line.predicted_high == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(ValueError, match="3 or more"):
        fit_line(x[:2], y[:2], 1.0)
