"""The table of an audit: probes in step order, with tokens seen and learning rates.

This is not part of ``scoring``, so that gathering tables needs no torch.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd


def gather_audit(
    probes: pd.DataFrame,
    schedule: Callable[[int], float] | Mapping | None,
    *,
    suite: str,
    lr_max: float | None,
    tokens_per_step: int | None,
) -> pd.DataFrame:
    """The columns of ``audit.csv``: probes in step order with tokens seen and learning rate.

    ``lr`` is the schedule's value at the step, as in the paper's Table 1. It is empty without a
    schedule, and so are the tokens without ``tokens_per_step``.
    """
    table = probes.sort_values("step", kind="stable", ignore_index=True)
    no_rates = pd.Series(np.nan, index=table.index)
    lr = table["step"].map(schedule) if schedule else no_rates
    tokens_seen = pd.NA if tokens_per_step is None else table["step"] * tokens_per_step
    run_columns = pd.DataFrame(
        {
            "suite": suite,
            "step": table["step"],
            "tokens_seen": tokens_seen,
            "lr": lr,
            "lr_fraction": lr / lr_max if lr_max else lr,
        }
    )
    return pd.concat([run_columns, table.drop(columns="step")], axis=1)
