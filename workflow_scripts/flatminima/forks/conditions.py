"""The forks' probes, grouped into the conditions of Table 2, and one number of each seed."""

import pandas as pd

from flatminima.roles import FP32


def probe_table(forks: pd.DataFrame) -> pd.DataFrame:
    """One row per probe: schedule, seed, step, update_phase, gap_pct and the two perplexities."""
    keys = ["schedule", "seed", "step"]
    columns = [*keys, "update_phase", "gap_pct", "ppl"]
    low_bit = forks.loc[forks["role"] == "low_bit", columns]
    low_bit = low_bit.rename(columns={"ppl": "low_bit_ppl"}).fillna({"update_phase": ""})
    fp32 = forks.loc[forks["role"] == FP32, [*keys, "ppl"]].rename(columns={"ppl": "fp32_ppl"})
    return low_bit.merge(fp32, on=keys, validate="one_to_one")


def conditions(probes: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Table 2's conditions in the order of the table: a schedule with phases counts twice."""
    found = {}
    for schedule, rows in probes.groupby("schedule", sort=False):
        if (rows["update_phase"] != "").any():
            found[f"{schedule} cool"] = rows[rows["update_phase"] == "cool"]
            found[f"{schedule} all"] = rows
        else:
            found[str(schedule)] = rows
    return found


def by_seed(probes: pd.DataFrame, column: str, how: str) -> pd.Series:
    """Each seed's ``final`` value or ``mean`` over its probes."""
    groups = probes.sort_values("step").groupby("seed")[column]
    return groups.last() if how == "final" else groups.mean()
