"""Claims about what the forks show: wins, tests and the improvement (section 5.2)."""

import math

from scipy import stats

from flatminima.claims import seeds
from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    measured,
    printed,
    within,
)


@printed("C61")
def wins_printed(m: Measurements, claim: Claim) -> Finding:
    """What no win and six wins of nine amount to."""
    n = math.isqrt(claim.paper["pairs"])
    none = seeds.p_of_wins(claim.paper["sgdr"], n, "two-sided")
    six = seeds.p_of_wins(claim.paper["oli_cool"], n, "greater")
    return Finding(
        f"no win of {n * n}: exact two-sided p = {none:.2f}; six wins or more by chance: {six:.2f}",
        None,
        seeds.printed_low_bit_ppl(m),
        smallest_p=seeds.smallest_p(n, n),
    )


@measured("C61")
def wins_of_suite(m: Measurements, claim: Claim) -> Finding:
    """Wins of the suite's forks at their last probe."""
    control = seeds.final(m, "cosine")
    arms = {
        "sgdr": seeds.final(m, "sgdr"),
        "oli_cool": seeds.final(m, "oli", "cool"),
        "oli_all": seeds.final(m, "oli"),
    }
    counts = {name: seeds.wins(values, control) for name, values in arms.items()}
    pairs = len(control) * len(arms["sgdr"])
    return Finding(
        ", ".join(f"{name} {count}/{pairs}" for name, count in counts.items()),
        all(counts[name] == claim.paper[name] for name in counts),
        smallest_p=seeds.smallest_p(len(arms["sgdr"]), len(control)),
    )


@printed("C62")
def sgdr_printed(m: Measurements, claim: Claim) -> Finding:
    """Welch's test from the means and deviations of Table 2."""
    p, n = claim.paper, claim.paper["seeds"]
    welch = stats.ttest_ind_from_stats(
        p["sgdr_pct"], p["sgdr_sd"], n, p["cosine_pct"], p["cosine_sd"], n, equal_var=False
    )
    return Finding(
        f"Welch t = {welch.statistic:.2f}, p = {welch.pvalue:.3f} at {n} seeds against {n}",
        None,
        smallest_p=seeds.smallest_p(n, n),
    )


@measured("C62", "X21")
def sgdr_of_suite(m: Measurements, claim: Claim) -> Finding:
    """SGDR against cosine at the last step, one value a seed."""
    sgdr, cosine = seeds.final(m, "sgdr"), seeds.final(m, "cosine")
    welch = stats.ttest_ind(sgdr, cosine, equal_var=False)
    exact = stats.mannwhitneyu(sgdr, cosine, method="exact")
    floor = seeds.smallest_p(len(sgdr), len(cosine))
    worse = sgdr.mean() > cosine.mean()
    decidable = floor <= claim.tolerance["alpha"]
    return Finding(
        f"{sgdr.mean():.2f} against {cosine.mean():.2f} %, {seeds.wins(sgdr, cosine)} wins of "
        f"{len(sgdr) * len(cosine)}, Welch t = {welch.statistic:.2f} (p = {welch.pvalue:.3f}), "
        f"exact Mann-Whitney p = {exact.pvalue:.2f}",
        bool(worse and (exact.pvalue < claim.tolerance["alpha"] or not decidable)),
        smallest_p=floor,
    )


@printed("C63")
def cool_phases_printed(m: Measurements, claim: Claim) -> Finding:
    """The printed t with probes as the unit, and the same means with seeds as the unit."""
    p = claim.paper
    difference, n = p["cosine_pct"] - p["oli_cool_pct"], p["probes"]
    implied = math.sqrt((difference / p["t"]) ** 2 * n - p["oli_cool_sd"] ** 2)
    pooled = stats.ttest_ind_from_stats(
        p["oli_cool_pct"], p["oli_cool_sd"], n, p["cosine_pct"], implied, n
    )
    by_seed = stats.ttest_ind_from_stats(
        p["oli_cool_pct"], p["oli_cool_sd"], p["seeds"],
        p["cosine_pct"], p["cosine_sd_final"], p["seeds"], equal_var=False,
    )  # fmt: skip
    return Finding(
        f"t = {pooled.statistic:.2f} takes {n} independent probes a side (and a cosine deviation "
        f"of {implied:.2f}); with {p['seeds']} seeds a side and Table 2's deviations "
        f"t = {by_seed.statistic:.2f}, p = {by_seed.pvalue:.2f}",
        None,
        "probes of one run are not independent; the independent units are the seeds",
        smallest_p=seeds.smallest_p(p["seeds"], p["seeds"]),
    )


@measured("C63")
def cool_phases(m: Measurements, claim: Claim) -> Finding:
    """Both units side by side on the suite."""
    cool, cosine = seeds.cool_against_cosine(m)
    pooled = stats.ttest_ind(cool["gap_pct"], cosine["gap_pct"])
    a, b = (rows.groupby("seed")["gap_pct"].mean() for rows in (cool, cosine))
    by_seed, exact = (
        stats.ttest_ind(a, b, equal_var=False),
        stats.mannwhitneyu(a, b, method="exact"),
    )
    floor = seeds.smallest_p(len(a), len(b))
    decidable = floor <= claim.tolerance["alpha"]
    return Finding(
        f"probes t = {pooled.statistic:.2f} (p = {pooled.pvalue:.1e}, n = {len(cool)} and "
        f"{len(cosine)}); seeds t = {by_seed.statistic:.2f} (p = {by_seed.pvalue:.3f}), exact "
        f"Mann-Whitney p = {exact.pvalue:.2f}",
        bool(a.mean() < b.mean() and (exact.pvalue < claim.tolerance["alpha"] or not decidable)),
        smallest_p=floor,
    )


@printed("C64", "X01")
def improvement_printed(m: Measurements, claim: Claim) -> Finding:
    """Difference of the two means."""
    p = claim.paper
    value = p["cosine_pct"] - p["oli_cool_pct"]
    return Finding(
        f"{p['cosine_pct']} - {p['oli_cool_pct']} = {value:.1f}, not {p['improvement']}",
        within(value, p["improvement"], claim.tolerance),
        "Table 2 prints the same 2.2 as the deviation of the cool phases",
    )


@measured("C64", "X01")
def improvement(m: Measurements, claim: Claim) -> Finding:
    """Mean of cosine minus mean of the cool phases at the same steps."""
    cool, cosine = seeds.cool_against_cosine(m)
    value = cosine["gap_pct"].mean() - cool["gap_pct"].mean()
    return Finding(
        f"{cosine['gap_pct'].mean():.2f} - {cool['gap_pct'].mean():.2f} = {value:.2f} points",
        within(value, claim.paper["improvement"], claim.tolerance),
    )


@measured("C65", "X20")
def seed_by_seed(m: Measurements, claim: Claim) -> Finding:
    """Sign of the improvement in each seed."""
    cool, cosine = seeds.cool_against_cosine(m)
    difference = (
        cosine.groupby("seed")["gap_pct"].mean() - cool.groupby("seed")["gap_pct"].mean()
    ).dropna()
    return Finding(
        ", ".join(f"seed {s} {d:+.2f}" for s, d in difference.items()) + " points",
        bool((difference > 0).all()),
    )
