"""Gather every condition of the forks at its end."""

import pandas as pd

from flatminima.files import write_table
from flatminima.jobs import run

COLUMNS = [
    "suite",
    "group",
    "schedule",
    "seed",
    "step",
    "update_phase",
    "quantizer",
    "role",
    "nll_nats_per_token",
    "ppl",
    "delta_nll_nats_per_token",
    "gap_pct",
    "gap_low_pct",
    "gap_high_pct",
    "kl_nats_per_token",
    "top1_changed_pct",
]


def settled_rows(trajectories: pd.DataFrame) -> pd.DataFrame:
    """Rows of the last probe of each condition and seed. OLI has the last probe of each phase.

    A fork that ends on a bump is not at rest, so its last cool probe is given too.
    """
    table = trajectories.astype({"update_phase": object}).fillna({"update_phase": ""})
    last = table.groupby(["schedule", "seed", "update_phase"])["step"].transform("max")
    return table[table["step"] == last]


def main(
    forks: pd.DataFrame,
    trained: list[pd.DataFrame],
    averages: list[pd.DataFrame],
    table: str,
) -> None:
    """Write ``rivals.csv``: a row per condition, seed, phase and quantizer, in the order given.

    ``trained`` are the trajectories of rivals. ``averages`` belong to the suite's run and have no
    seed.
    """
    parts = [settled_rows(forks).assign(group="paper")]
    for trajectory in trained:
        parts.append(settled_rows(trajectory).assign(group="rival"))
    for average in averages:
        parts.append(average.assign(group="average", update_phase=""))
    rows = pd.concat([part.reindex(columns=COLUMNS) for part in parts], ignore_index=True)
    write_table(table, rows.astype({"seed": "Int64", "step": "int64"}))


if __name__ == "__main__":
    run(main, snakemake)
