"""Gather every condition of the forks at its end."""

import pandas as pd

from flatminima.files import read_content, write_table
from flatminima.jobs import run

COLUMNS = [
    "suite", "group", "schedule", "seed", "step", "update_phase", "quantizer", "role",
    "nll_nats_per_token", "ppl", "delta_nll_nats_per_token", "gap_pct", "gap_low_pct",
    "gap_high_pct", "kl_nats_per_token", "top1_changed_pct",
]  # fmt: skip


def settled_rows(trajectories: pd.DataFrame) -> pd.DataFrame:
    """Rows of the last probe of each condition and seed, for OLI of the last one of each phase.

    A fork that ends on a bump is not at rest, so that its last cool probe stands beside its last.
    """
    table = trajectories.astype({"update_phase": object}).fillna({"update_phase": ""})
    last = table.groupby(["schedule", "seed", "update_phase"])["step"].transform("max")
    return table[table["step"] == last]


def main(forks: pd.DataFrame, tables: list[str], table: str) -> None:
    """Write ``rivals.csv``: a row per condition, seed, phase and quantizer, in the order given.

    ``tables`` lie in ``variants/`` (trained) or in ``averages/`` (of the suite's own run, so
    without a seed).
    """
    parts = [settled_rows(forks).assign(group="paper")]
    for path in sorted(tables, key=lambda path: "/averages/" in path):
        if "/averages/" in path:
            parts.append(read_content(path).assign(group="average", update_phase=""))
        else:
            parts.append(settled_rows(read_content(path)).assign(group="rival"))
    rows = pd.concat([part.reindex(columns=COLUMNS) for part in parts], ignore_index=True)
    write_table(table, rows.astype({"seed": "Int64", "step": "int64"}))


if __name__ == "__main__":
    run(main, snakemake)
