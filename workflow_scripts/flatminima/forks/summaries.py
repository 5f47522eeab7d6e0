"""The cells of Table 2: mean and standard deviation of each condition of the forks."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from flatminima.forks.conditions import by_seed
from flatminima.statistics.rows import Row
from flatminima.statistics.two_sample_tests import mean, standard_deviation


def summary_rows(condition: str, probes: pd.DataFrame) -> Iterator[Row]:
    """Mean and standard deviation over seeds, and over all probes pooled."""
    last = probes[probes["step"] == probes["step"].max()]
    phases = sorted(set(last["update_phase"]) - {""})
    final = f"last probe at step {last['step'].iloc[0]}" if len(last) else "no such probe"
    final += f", which is a {' and '.join(phases)} probe" if phases else ""
    for column in ("gap_pct", "fp32_ppl", "low_bit_ppl"):
        for how in ("final", "mean"):
            sample = by_seed(probes, column, how).to_numpy()
            each = len(probes) // max(1, len(sample))
            note = final if how == "final" else f"mean over {each} probes of each seed"
            yield _summary(condition, "seed", f"{how}_{column}", sample, note)
    yield _summary(condition, "probe", "gap_pct", probes["gap_pct"].to_numpy(), "all seeds pooled")


def _summary(condition: str, unit: str, measure: str, sample: np.ndarray, note: str) -> Row:
    return Row(
        "summary", condition, unit, measure, "mean", value=mean(sample), n_a=len(sample),
        mean_a=mean(sample), sd_a=standard_deviation(sample), note=note,
    )  # fmt: skip
