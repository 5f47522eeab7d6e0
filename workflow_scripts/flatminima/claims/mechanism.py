"""Claims about why INT4 collapses: grid, amplitude, drift, averaging (sections 4.4, 6 and B).

What the printed numbers and the settings say; the measurements are in ``beyond``.
"""

import numpy as np

from flatminima.claims.arithmetic import loss
from flatminima.claims.model import Claim, Finding, Measurements, printed

CONFOUNDED = 1.0  # two arms that are unlike in several factors: no p below 1 for any one of them


@printed("C46")
def probe_factors(m: Measurements, claim: Claim) -> Finding:
    """In how many ways the two probes of the audit are unlike."""
    int4 = {"bits": 4, "symmetry": "asymmetric", "granularity": "group of 128"}
    int8 = {"bits": 8, "symmetry": "symmetric", "granularity": "output channel"}
    unlike = [name for name in int4 if int4[name] != int8[name]]
    return Finding(
        f"{claim.paper['probes']} probes that are unlike in {len(unlike)} ways: "
        f"{', '.join(unlike)}",
        None,
        f"to separate them takes {claim.missing}",
        smallest_p=CONFOUNDED if len(unlike) >= claim.paper["probes"] else None,
    )


@printed("C77")
def schedule_factors(m: Measurements, claim: Claim) -> Finding:
    """In how many ways SGDR and OLI are unlike, other than in amplitude."""
    fork = m.pythia["fork"]
    sgdr = {"period": fork["sgdr_period"], "shape": "cosine decay", "amplitude": "to the maximum"}
    oli = {
        "period": fork["bump_steps"] + fork["cool_steps"],
        "shape": "rectangular bump",
        "amplitude": "a multiple of the cosine",
    }
    unlike = [name for name in sgdr if sgdr[name] != oli[name]]
    return Finding(
        f"{claim.paper['arms']} oscillating arms that are unlike in {len(unlike)} ways: "
        f"{', '.join(unlike)} (periods of {sgdr['period']:,} and {oli['period']:,} steps)",
        None,
        f"to separate them takes {claim.missing}",
        smallest_p=CONFOUNDED if len(unlike) >= claim.paper["arms"] else None,
    )


@printed("C69")
def pilot_factors(m: Measurements, claim: Claim) -> Finding:
    """What else a shorter window changes."""
    p = claim.paper
    tokens = [p["batch_size"] * p[length] for length in ("pilot_length", "length")]
    return Finding(
        f"windows of {p['pilot_length']} at the same batch of {p['batch_size']} also change the "
        f"tokens of an update, {tokens[0]:,} against {tokens[1]:,}",
        None,
        f"to separate them takes {claim.missing}",
        smallest_p=CONFOUNDED if tokens[0] != tokens[1] else None,
    )


@printed("C68")
def pilot(m: Measurements, claim: Claim) -> Finding:
    """Size of the printed rise."""
    p = claim.paper
    return Finding(
        f"{p['last_ppl']} / {p['first_ppl']} = {p['last_ppl'] / p['first_ppl']:.1f} times", None
    )


@printed("C70")
def calibrated_amplitude(m: Measurements, claim: Claim) -> Finding:
    """Learning rate that the printed amplitude would have meant at the fork point."""
    lr = m.pythia_schedule("cosine")
    value = claim.paper["amplitude"] * lr(m.pythia["fork"]["start"])
    return Finding(
        f"a learning rate of {value:.2f}, {value / lr.lr_max:.0f} times the maximum", None
    )


@printed("C71")
def bump_reach(m: Measurements, claim: Claim) -> Finding:
    """How far Adam can carry a weight in one bump, per unit of the amplitude that is lost."""
    lr, updates = m.pythia_schedule("cosine"), claim.paper["bump_steps"]
    return Finding(
        f"{updates} updates move a weight by about {updates * lr(m.pythia['fork']['start']):.4f} x "
        "the amplitude at most",
        None,
        "whether that crosses a boundary depends on the groups' step sizes",
    )


@printed("C72")
def worst_fit(m: Measurements, claim: Claim) -> Finding:
    """How much worse the worst position is than a random one, against the printed growth."""
    table = loss(m.table1.set_index("step").loc[[77000, 143000], "int4_gap_pct"])
    return Finding(
        f"all weights at midpoints make the squared error {(1 / 4) / (1 / 12):.0f} times that of "
        f"random positions; from 77,000 to the end the INT4 loss grows {table[1] / table[0]:.1f} "
        "times",
        None,
        "positions alone cannot explain the growth unless step sizes or curvature grow as well",
    )


@printed("C73")
def room_to_walk(m: Measurements, claim: Claim) -> Finding:
    """Share of the run's summed learning rate that lies after the best step."""
    lr = m.pythia_schedule("cosine_neox_v1")
    rates = np.array([lr(step) for step in range(m.pythia["last"])])
    share = 100 * rates[claim.paper["best"] :].sum() / rates.sum()
    return Finding(f"{share:.0f} % of the summed learning rate lies after the best step", None)


@printed("C75")
def oldest_averaged(m: Measurements, claim: Claim) -> Finding:
    """Oldest checkpoint in trailing averages that end with the run."""
    oldest = {k: m.pythia["last"] - (k - 1) * m.pythia["spacing"] for k in (3, 5, 10)}
    inside = [k for k, step in oldest.items() if step <= claim.paper["phase2_last"]]
    return Finding(
        ", ".join(f"the last {k} reach back to {step:,}" for k, step in oldest.items())
        + f"; {len(inside)} of {len(oldest)} reach Phase 2",
        None,
    )
