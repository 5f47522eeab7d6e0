"""Does the text about the forks agree with itself? Table 2 against section 5 and appendix B."""

from flatminima.claims import seeds
from flatminima.claims.model import (
    Claim,
    Finding,
    Measurements,
    measured,
    printed,
)
from flatminima.schedules import OscillatoryLockIn, read_kind


@printed("X18")
def kinds_of_mean(m: Measurements, claim: Claim) -> Finding:
    """Is each mean of Table 2 the final value, or the average that the text gives?"""
    p, fork = claim.paper, m.pythia["fork"]
    final = {
        "cosine": p["cosine_table_pct"] != p["cosine_text_pct"],
        "OLI cool": p["oli_cool_table_pct"] != p["oli_cool_text_pct"],
    }
    oli = OscillatoryLockIn(
        bump_steps=fork["bump_steps"], cool_steps=fork["cool_steps"], amplitude=1.0, first="cool"
    )
    seen = oli.visible_phases(fork["probe_every"])
    probes = range(fork["probe_every"], fork["steps"] + 1, fork["probe_every"])
    phases = [oli.phase(step - 1) for step in probes]
    return Finding(
        f"cosine: {p['cosine_table_pct']} in the table, {p['cosine_text_pct']} as average over the "
        f"run; OLI cool phases: {p['oli_cool_table_pct']} in both",
        len(set(final.values())) == 1,
        f"probes every {fork['probe_every']:,} steps see only positions "
        f"{', '.join(map(str, seen))} of the {oli.period}-step cycle; with the cool phase first "
        f"{phases.count('bump')} of {len(phases)} follow a bump, the last one too",
    )


@measured("X18")
def phases_of_suite(m: Measurements, claim: Claim) -> Finding:
    """Positions of the OLI cycle that the suite's probes can see, and the last probe's phase."""
    fork = m.suite.get("fork") or {}
    entries = [d for d in fork.get("schedules", {}).values() if d["kind"] == "oli"]
    if not entries:
        return Finding("no OLI forks", None)
    oli = read_kind(entries[0])
    seen = oli.visible_phases(fork["probe_every"])
    return Finding(
        f"positions {', '.join(map(str, seen))} of {oli.period}; the last probe follows a "
        f"{oli.phase(fork['steps'] - 1)} step",
        None,
    )


@printed("X19")
def possible_wins(m: Measurements, claim: Claim) -> Finding:
    """Wins that three seeds with the printed means and deviations can have at all."""
    p = claim.paper
    control = (p["cosine_pct"], p["cosine_sd"])
    cool, every = (
        seeds.attainable_wins((p[f"{k}_pct"], p[f"{k}_sd"]), control) for k in ("cool", "all")
    )
    return Finding(
        f"cool phases: {count_range(cool)} of {p['seeds'] ** 2} whatever the three values; all "
        f"steps: {count_range(every)}",
        p["wins"] in cool and p["wins"] in every,
        "so the wins and the mean of that row do not describe the same three numbers",
    )


def count_range(counts: list[int]) -> str:
    """``3 to 6`` for consecutive counts."""
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


@measured("X19")
def wins_of_cool(m: Measurements, claim: Claim) -> Finding:
    """Wins of the suite's last cool probes."""
    cool, cosine = seeds.final(m, "oli", "cool"), seeds.final(m, "cosine")
    return Finding(f"{seeds.wins(cool, cosine)} of {len(cool) * len(cosine)}", None)


@printed("X20")
def consistent_improvement(m: Measurements, claim: Claim) -> Finding:
    """Can seed differences hide an improvement that every seed shows?"""
    p = claim.paper
    widest = 2 * p["cosine_sd"]
    pairs = p["seeds"] ** 2
    return Finding(
        f"three values with deviation {p['cosine_sd']} lie at most {widest:.1f} apart; with an "
        f"improvement of {p['improvement']} in each seed all {pairs} pairs are wins, not "
        f"{p['wins']}",
        widest >= p["improvement"],
    )


@printed("X21")
def no_win(m: Measurements, claim: Claim) -> Finding:
    """Exact p of no win."""
    n = claim.paper["seeds"]
    p = seeds.p_of_wins(claim.paper["wins"], n, "two-sided")
    smallest = seeds.smallest_p(n, n)
    decidable = smallest <= claim.tolerance["alpha"]
    holds = bool(p < claim.tolerance["alpha"]) if decidable else None
    return Finding(f"p = {p:.2f}", holds, smallest_p=smallest)


@printed("X22")
def other_disturbance(m: Measurements, claim: Claim) -> Finding:
    """Does training at 2,048 leave the model alone, and does scoring at 512 hurt?"""
    p = claim.paper
    rise = 100 * (p["control_ppl"] / p["audit_ppl"] - 1)
    return Finding(
        f"scored at {p['audit_length']} tokens the checkpoint has {p['audit_ppl']}; the control, "
        f"trained at {p['control_length']:,}, rises by {rise:.0f} %",
        rise < claim.tolerance["below"],
    )


@measured("X22")
def control_rise(m: Measurements, claim: Claim) -> Finding:
    """Rise of the suite's control over its fork point."""
    start = int(seeds.probes(m, "cosine")["fork_step"].iloc[0])
    before = m.at("fp32", "ppl", start)
    after = seeds.final(m, "cosine", role="fp32", column="ppl").mean()
    return Finding(f"{before:.2f} to {after:.2f} is {100 * (after / before - 1):+.1f} %", None)


@printed("X30")
def starting_points(m: Measurements, claim: Claim) -> Finding:
    """What one starting checkpoint can show about checkpoints: a sign test with n = 1."""
    p = claim.paper
    n = p["starting_checkpoints"]
    smallest = min(1.0, 2 * 0.5**n)
    return Finding(
        f"{p['schedules']} schedules x {p['seeds']} seeds = {p['runs']} runs from {n} checkpoint",
        n == p["runs"] if smallest <= claim.tolerance["alpha"] else None,
        "seeds repeat the continuation, not the model; within one checkpoint three a side",
        smallest_p=smallest,
    )


@measured("X30")
def starting_points_of_suite(m: Measurements, claim: Claim) -> Finding:
    """The same for the suite's settings."""
    fork = m.suite.get("fork") or {}
    count = len(fork.get("schedules", {})) * len(fork.get("seeds", ()))
    return Finding(f"{count} runs from one checkpoint, step {fork.get('start')}", None)
