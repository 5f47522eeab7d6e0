"""Claims about the kurtosis of the weights (section 4.5, Figure 2)."""

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.claims.beyond import number
from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    NotMeasured,
    measured,
    printed,
    within,
)
from flatminima.claims.trends import boundary

PERMUTATIONS = 9999


def definitions(m: Measurements) -> dict[str, pd.Series]:
    """Kurtosis by step: mean over matrices, pooled weights, largest matrix."""
    table = m.kurtosis
    series = {
        name: table[table["statistic"] == statistic].set_index("step")["excess_kurtosis"]
        for name, statistic in (("mean of matrices", "mean_over_tensors"), ("pooled", "pooled"))
    }
    tensors = table[table["statistic"] == "per_tensor"]
    series["largest matrix"] = tensors.groupby("step")["excess_kurtosis"].max()
    series = {name: one.sort_index() for name, one in series.items() if len(one)}
    if not series:
        raise NotMeasured("rows in kurtosis.csv")
    return series


@measured("C48")
def kurtosis_rise(m: Measurements, claim: Claim) -> Finding:
    """First and largest value."""
    values = {name: (one.iloc[0], one.max()) for name, one in definitions(m).items()}
    return Finding(
        "; ".join(f"{name} {a:.2f} to {b:.2f}" for name, (a, b) in values.items()),
        any(
            within(a, claim.paper["first"], claim.tolerance)
            and within(b, claim.paper["peak"], claim.tolerance)
            for a, b in values.values()
        ),
        "one definition that agrees in both values is enough",
    )


@measured("C49")
def kurtosis_peak(m: Measurements, claim: Claim) -> Finding:
    """Step of the largest value."""
    peaks = {name: int(one.idxmax()) for name, one in definitions(m).items()}
    return Finding(
        "; ".join(f"{name} {step:,}" for name, step in peaks.items()),
        any(within(s, m.step(claim.paper["step"]), claim.tolerance) for s in peaks.values()),
        "one definition that agrees is enough",
    )


@measured("C50")
def kurtosis_end(m: Measurements, claim: Claim) -> Finding:
    """Value of the last revision."""
    ends = {name: one.iloc[-1] for name, one in definitions(m).items()}
    return Finding(
        "; ".join(f"{name} {value:.2f}" for name, value in ends.items()),
        any(within(value, claim.paper["last"], claim.tolerance) for value in ends.values()),
        "one definition that agrees is enough",
    )


def p_of_r(r: float, n: int) -> float:
    """Two-sided p of a Pearson correlation of ``n`` pairs, from its exact null distribution."""
    null = stats.beta(n / 2 - 1, n / 2 - 1, loc=-1, scale=2)
    return float(2 * null.sf(abs(r)))


@printed("C51")
def correlation_printed(m: Measurements, claim: Claim) -> Finding:
    """Significance of the printed r if all sixteen checkpoints lay in Phase 3."""
    p = p_of_r(claim.paper["r"], claim.paper["checkpoints"])
    return Finding(
        f"r = {claim.paper['r']} has p = {p:.2f} at n = {claim.paper['checkpoints']}, and fewer "
        "lie in Phase 3",
        None,
        smallest_p=p,
    )


@printed("X15")
def settled_for_good(m: Measurements, claim: Claim) -> Finding:
    """The same at two sizes, and the r that two shapes of the decline would give."""
    p = claim.paper
    n = [p["phase_3_checkpoints"], p["checkpoints"]]
    steps = np.arange(p["peak_step"], m.pythia["last"] + 1, m.pythia["spacing"])
    gaps = np.exp(np.interp(steps, m.table1["step"], np.log(m.table1["int4_gap_pct"])))
    few = np.linspace(0, len(steps) - 1, n[0]).astype(int)
    shapes = {
        "even": np.linspace(p["peak"], p["last"], len(steps))[few],
        "sudden": np.r_[p["peak"], np.full(n[0] - 1, p["last"])],
    }
    r = {name: stats.pearsonr(shape, gaps[few]).statistic for name, shape in shapes.items()}
    values = [p_of_r(p["r"], size) for size in n]
    return Finding(
        f"p = {values[0]:.2f} at n = {n[0]} and {values[1]:.2f} at n = {n[1]}; an even decline "
        f"would give r = {r['even']:.2f}, one right after the peak {r['sudden']:.2f}",
        True if min(values) < claim.tolerance["alpha"] else None,
        smallest_p=min(values),
    )


@measured("C51", "X15")
def correlation(m: Measurements, claim: Claim) -> Finding:
    """Kurtosis against INT4 gap in Phase 3 of the suite."""
    start, name = boundary(m.phases)
    kurtosis = next(iter(definitions(m).values()))
    gap = m.even("low_bit", "gap_pct")
    both = pd.concat([kurtosis, gap], axis=1, join="inner").loc[start:].to_numpy()
    if len(both) < 4:
        raise NotMeasured(f"four revisions in Phase 3, found {len(both)}")
    r = stats.pearsonr(both[:, 0], both[:, 1]).statistic
    rho = stats.spearmanr(both[:, 0], both[:, 1]).statistic
    p = stats.permutation_test(
        (both[:, 0],),
        lambda x, axis: (
            stats.pearsonr(x, np.broadcast_to(both[:, 1], x.shape), axis=axis).statistic
        ),
        vectorized=True,
        permutation_type="pairings",
        n_resamples=PERMUTATIONS,
        rng=np.random.default_rng(0),
    ).pvalue
    if claim.id == "X15":
        holds = bool(r < 0 and p < claim.tolerance["alpha"])
    else:
        holds = within(r, claim.paper["r"], claim.tolerance)
    return Finding(
        f"Pearson {r:.2f} (permutation p = {p:.4f}), Spearman {rho:.2f}, n = {len(both)} from step "
        f"{start:,}",
        holds,
        f"Phase 3 from the {name}, mean of matrices; neighbouring checkpoints are not independent, "
        "so the true p is larger",
    )


def activation_outliers(m: Measurements) -> str:
    """Activation kurtosis and rounded activations, where they were measured."""
    if not m.knows("activation_kurtosis_rank_r"):
        return ""
    r = m.finding("activation_kurtosis_rank_r")
    costs = [
        f"{name} {number(m.finding(f'added_loss_{key}_last'), 3)}"
        for key, name in (("W", "weights"), ("A", "activations"), ("WA", "both"))
    ]
    return (
        f"; activations: rank correlation of their kurtosis with the INT4 loss {number(r)}, and "
        f"rounding at the last step adds {', '.join(costs)} nats per token"
    )


@measured("C52")
def matrices_that_calm(m: Measurements, claim: Claim) -> Finding:
    """Matrices whose kurtosis is lower at the end than at the start of Phase 3."""
    start, name = boundary(m.phases)
    tensors = m.kurtosis[m.kurtosis["statistic"] == "per_tensor"]
    table = tensors.pivot(index="step", columns="tensor", values="excess_kurtosis").sort_index()
    if table.empty or start not in table.index:
        raise NotMeasured(f"kurtosis of single matrices at step {start:,}")
    change = table.iloc[-1] - table.loc[start]
    return Finding(
        f"lower in {int((change < 0).sum())} of {len(change)} matrices; largest rise "
        f"{change.max():+.2f} in {change.idxmax()}",
        bool((change < 0).all()),
        f"since the {name}; extreme values and group ranges are not looked at"
        + activation_outliers(m),
    )


@printed("X14")
def back_to_start(m: Measurements, claim: Claim) -> Finding:
    """Share of the rise that is undone at the end."""
    return _undone(claim.paper["first"], claim.paper["peak"], claim.paper["last"], claim)


@measured("X14")
def back_to_start_of_suite(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite."""
    curve = next(iter(definitions(m).values()))
    return _undone(curve.iloc[0], curve.max(), curve.iloc[-1], claim)


def _undone(first: float, peak: float, last: float, claim: Claim) -> Finding:
    if peak <= first:
        return Finding(f"no rise: {first:.2f} is the largest value", False)
    share = 100 * (peak - last) / (peak - first)
    return Finding(
        f"{first:.2f} to {peak:.2f} to {last:.2f}: {share:.0f} % of the rise is undone",
        bool(share > claim.tolerance["above"]),
        f"the last value is {last / first:.1f} times the first" if first > 0 else "",
    )


@printed("X16")
def normal_and_uniform(m: Measurements, claim: Claim) -> Finding:
    """Distance of the kurtosis from that of a normal and of a uniform distribution."""
    return _distances(claim.paper["peak"], claim.paper["last"])


@measured("X16")
def normal_and_uniform_of_suite(m: Measurements, claim: Claim) -> Finding:
    """The same on the suite."""
    curve = next(iter(definitions(m).values()))
    return _distances(curve.max(), curve.iloc[-1])


def _distances(peak: float, last: float) -> Finding:
    uniform = float(stats.uniform.stats(moments="k"))
    return Finding(
        f"from normal {abs(peak):.1f} to {abs(last):.1f}, from uniform {abs(peak - uniform):.1f} "
        f"to {abs(last - uniform):.1f}",
        abs(last) < abs(peak) and abs(last - uniform) < abs(peak - uniform),
        "a direction only: "
        + ("heavier tails than a normal at the end" if last > 0 else "lighter tails at the end"),
    )
