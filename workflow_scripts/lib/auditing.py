"""The audit: the probes of all revisions as one tidy table."""

import pandas as pd

from workflow_scripts.lib.schedules import Schedule


def gather_audit(
    probes: pd.DataFrame, schedule: Schedule, *, suite: str, lr_max: float, tokens_per_step: int
) -> pd.DataFrame:
    """The columns of ``audit.csv``: probes in step order with tokens seen and learning rate.

    ``lr`` is the schedule's value at the step, the convention of the paper's Table 1.
    """
    table = probes.sort_values("step", kind="stable", ignore_index=True)
    lr = table["step"].map(schedule)
    before = pd.DataFrame(
        {
            "suite": suite,
            "step": table["step"],
            "tokens_seen": table["step"] * tokens_per_step,
            "lr": lr,
            "lr_fraction": lr / lr_max,
        }
    )
    return pd.concat([before, table.drop(columns="step")], axis=1)
