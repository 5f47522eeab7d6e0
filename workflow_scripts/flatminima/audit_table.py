"""The table of an audit: probes in step order, beside what is known of the run.

Apart from ``scoring``, so that gathering needs no torch.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd


def gather_audit(
    probes: pd.DataFrame, schedule: Callable[[int], float] | Mapping | None, *, suite: str,
    lr_max: float | None, tokens_per_step: int | None,
) -> pd.DataFrame:  # fmt: skip
    """The columns of ``audit.csv``: probes in step order with tokens seen and learning rate.

    ``lr`` is the schedule's value at the step, the convention of the paper's Table 1. What
    is not known of the run is empty.
    """
    table = probes.sort_values("step", kind="stable", ignore_index=True)
    lr = table["step"].map(schedule) if schedule else pd.Series(np.nan, index=table.index)
    tokens = pd.NA if tokens_per_step is None else table["step"] * tokens_per_step
    before = {"suite": suite, "step": table["step"], "tokens_seen": tokens, "lr": lr,
              "lr_fraction": lr / lr_max if lr_max else lr}  # fmt: skip
    return pd.concat([pd.DataFrame(before), table.drop(columns="step")], axis=1)
