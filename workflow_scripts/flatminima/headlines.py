"""The number that matters of a table, in one line: how a job's log ends.

Each function takes the table (a CSV of the same name) that was written or drawn.
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from flatminima.forks import compare
from flatminima.labels import SCHEDULES, quantizer_label, role_labels
from flatminima.quantizer_specs import HIGH_BIT, LOW_BIT

ALPHA = 0.05


def written(paths: Iterable[str | Path], headline: str) -> str:
    """The names of the files, those of one stem together, and the headline."""
    stems: dict[str, list[str]] = {}
    for path in map(Path, paths):
        stems.setdefault(path.stem, []).append(path.suffix)
    names = ", ".join(stem + ", ".join(suffixes) for stem, suffixes in stems.items())
    return f"{names}: {headline}"


def audit(table: pd.DataFrame) -> str:
    """Both gaps at the last step."""
    names, last = role_labels(table), table["step"].max()
    gaps = table[table["step"] == last].set_index("role")["gap_pct"]
    return (
        f"gap at step {last:,}: {names[LOW_BIT]} {gaps[LOW_BIT]:.2f} %, "
        f"{names[HIGH_BIT]} {gaps[HIGH_BIT]:.3f} %"
    )


def kurtosis(table: pd.DataFrame) -> str:
    """Mean excess kurtosis at the last step."""
    means = table[table["statistic"] == "mean_over_tensors"]
    last = means.loc[means["step"].idxmax()]
    return f"mean excess kurtosis {last['excess_kurtosis']:.2f} at step {last['step']:,}"


def forks(table: pd.DataFrame) -> str:
    """Mean low-bit gap of each schedule over seeds, at the last step."""
    last = table["step"].max()
    rows = table[(table["role"] == LOW_BIT) & (table["step"] == last)]
    means = rows.groupby("schedule", sort=False)["gap_pct"].mean()
    gaps = ", ".join(f"{SCHEDULES.get(name, name)} {gap:.2f} %" for name, gap in means.items())
    return f"mean {role_labels(table)[LOW_BIT]} gap at step {last:,}: {gaps}"


def one_fork(table: pd.DataFrame) -> str:
    """Low-bit gap of one fork at its last step."""
    rows = table[table["role"] == LOW_BIT]
    last = rows.loc[rows["step"].idxmax()]
    name = quantizer_label(last["quantizer"])
    return f"{name} gap {last['gap_pct']:.2f} % at step {last['step']:,}, {len(rows)} probes"


def rivals(table: pd.DataFrame) -> str:
    """The condition with the lowest low-bit perplexity, on average over seeds."""
    means = compare(table).groupby("schedule", sort=False)["low_bit_ppl"].mean()
    return (
        f"lowest {role_labels(table)[LOW_BIT]} perplexity of {len(means)} conditions: "
        f"{means.idxmin()}, {means.min():.2f}"
    )


def tests(table: pd.DataFrame) -> str:
    """How many tests a suite's statistics hold, and how many stay below 0.05 after Holm."""
    judged = table["p_adjusted"].notna()
    below = int((table["p_adjusted"] < ALPHA).sum())
    seeds = table["unit"].eq("seed") & judged
    of_seeds = int((table.loc[seeds, "p_adjusted"] < ALPHA).sum())
    return (
        f"{len(table)} rows; after Holm's correction p < {ALPHA:g} in {below} of "
        f"{int(judged.sum())} tests, in {of_seeds} of {int(seeds.sum())} with the seed as the unit"
    )


def warnings(table: pd.DataFrame) -> str:
    """The rule of early warning with the fewest false alarms, and the lead it gave."""
    warned = table[table["warning_step"].notna()]
    chosen = warned if len(warned) else table
    best = chosen.loc[chosen["false_alarms"].idxmin()]
    lead = "no onset to warn of" if pd.isna(best["onset_step"]) else "no warning before the end"
    if pd.notna(best["lead_steps"]):
        lead = f"lead {best['lead_steps']:,} steps"
    return (
        f"{len(table)} rules; fewest false alarms {best['false_alarms']} ({best['rule']}, "
        f"{best['parameter']}), {lead}"
    )


def lambada(table: pd.DataFrame, model: str) -> str:
    """Published perplexity of one model at its best step and at its last."""
    ppl = table[table["model"] == model].set_index("step")["lambada_openai_ppl"]
    return (
        f"{model} is best, {ppl.min():.2f}, at step {ppl.idxmin():,} and ends at {ppl.iloc[-1]:.2f}"
    )
