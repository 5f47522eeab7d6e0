"""Fork trajectories reduced to one number a seed, and what three seeds can decide."""

import math

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.claims.model import Measurements, NotMeasured


def schedule_name(m: Measurements, kind: str) -> str:
    """Name under which forks of a kind (cosine, sgdr, oli) were run."""
    definitions = (m.suite.get("fork") or {}).get("schedules", {})
    names = [name for name, definition in definitions.items() if definition["kind"] == kind]
    names = [name for name in names or [kind] if name in set(m.forks["schedule"])]
    if not names:
        raise NotMeasured(f"forks of the kind {kind} in forks.csv")
    return names[0]


def probes(m: Measurements, kind: str, phase: str | None = None,
           role: str = "low_bit") -> pd.DataFrame:  # fmt: skip
    """Rows of one role of one kind of fork, of one update phase where it is given."""
    rows = m.forks[(m.forks["schedule"] == schedule_name(m, kind)) & (m.forks["role"] == role)]
    if phase is not None:
        rows = rows[rows["update_phase"] == phase]
    if rows.empty:
        raise NotMeasured(f"{phase or 'any'} probes of {kind} in forks.csv")
    return rows


def final(m: Measurements, kind: str, phase: str | None = None, *, role: str = "low_bit",
          column: str = "gap_pct") -> pd.Series:  # fmt: skip
    """Value of the last (cool) probe of each seed."""
    rows = probes(m, kind, phase, role).sort_values("step")
    return rows.groupby("seed")[column].last()


def run_mean(m: Measurements, kind: str, phase: str | None = None,
             steps: pd.Series | None = None) -> pd.Series:  # fmt: skip
    """Mean gap over the run of each seed, at ``steps`` only where they are given."""
    rows = probes(m, kind, phase)
    if steps is not None:
        rows = rows[rows["step"].isin(steps)]
    return rows.groupby("seed")["gap_pct"].mean()


def cool_against_cosine(m: Measurements) -> tuple[pd.DataFrame, pd.DataFrame]:
    """OLI's cool probes and cosine's probes at the same steps (appendix B)."""
    cool = probes(m, "oli", "cool")
    cosine = probes(m, "cosine")
    return cool, cosine[cosine["step"].isin(cool["step"])]


def wins(challenger: pd.Series, control: pd.Series) -> int:
    """Pairs of seeds in which the challenger has the smaller gap."""
    return int((challenger.to_numpy()[:, None] < control.to_numpy()[None, :]).sum())


def smallest_p(n_a: int, n_b: int) -> float:
    """Smallest two-sided p of the exact Mann-Whitney test on two samples of these sizes."""
    return stats.mannwhitneyu(range(n_a), range(n_a, n_a + n_b), method="exact").pvalue


def p_of_wins(count: int, n: int, alternative: str) -> float:
    """Exact Mann-Whitney p of ``count`` wins among n x n pairs without ties."""
    full, rest = divmod(count, n)
    beaten = [n] * full + ([rest] if rest else [])
    beaten += [0] * (n - len(beaten))
    challenger = [b + 0.5 + 0.01 * i for i, b in enumerate(beaten)]
    return stats.mannwhitneyu(
        challenger, range(1, n + 1), alternative=alternative, method="exact"
    ).pvalue


def triples(mean: float, sd: float, angles: np.ndarray, n: int = 3) -> np.ndarray:
    """All sets of three values with a mean and a sample standard deviation, one row an angle.

    They lie on a circle: mean + 2 sd / sqrt(3) cos(angle + 2 pi k / 3).
    """
    turns = angles[:, None] + 2 * math.pi * np.arange(n) / n
    return mean + 2 * sd / math.sqrt(3) * np.cos(turns)


def attainable_wins(challenger: tuple[float, float], control: tuple[float, float]) -> list[int]:
    """Numbers of wins that three seeds a side can have, given mean and deviation of both.

    Every pair of angles is tried in steps of one degree.
    """
    angles = np.radians(np.arange(360.0))
    a, b = triples(*challenger, angles), triples(*control, angles)
    counts = (a[:, None, :, None] < b[None, :, None, :]).sum(axis=(2, 3))
    return sorted(int(count) for count in np.unique(counts))


def mean_sd(values: pd.Series) -> str:
    """``12.3 ± 0.8 (n = 3)``; no deviation for a single value."""
    spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread} (n = {len(values)})"


def printed_low_bit_ppl(m: Measurements) -> str:
    """Absolute INT4 perplexities of Table 2 and of the fork point, in words."""
    rows = [("A", m.condition("cosine")), ("B", m.condition("sgdr")), ("C", m.condition("oli"))]
    values = [f"{name} {r.fp32_ppl * (1 + r.mean_gap_pct / 100):.1f}" for name, r in rows]
    start = m.printed(m.pythia["fork"]["start"])
    untouched = start.fp32_ppl * (1 + start.int4_gap_pct / 100)
    return (
        f"absolute INT4 perplexities {', '.join(values)}, and {untouched:.1f} for the checkpoint "
        "the forks start from"
    )
