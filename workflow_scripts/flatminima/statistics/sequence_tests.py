"""The forks' gaps on other validation text: a paired bootstrap over sequences."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from flatminima.forks.conditions import conditions, probe_table
from flatminima.roles import FP32, LOW_BIT
from flatminima.statistics.intervals import (
    gap_pct,
    paired_scores,
    percentile_interval,
    resampled_means,
    two_sided_p,
)
from flatminima.statistics.rows import Row

TEST = "paired bootstrap"
NOTE = "unit: one validation sequence; other text for these very runs, not other runs"
_KEYS = ["schedule", "seed", "step"]
_COLUMNS = ["step", "quantizer", "role", "sequence", "nll_nats", "scored"]


def read_fork_sequences(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Per-sequence scores of all forks from ``{schedule}-seed{seed}.parquet``.

    Columns: schedule, seed, step, quantizer, role, sequence, nll_nats, scored; the rows of
    full precision and of the low-bit quantizer. Raises ``ValueError`` for another name.
    """
    tables = []
    for path in map(Path, paths):
        schedule, _, seed = path.stem.rpartition("-seed")
        if not (schedule and seed.isdecimal()):
            raise ValueError(f"{path}: a fork's scores are named {{schedule}}-seed{{seed}}.parquet")
        table = pd.read_parquet(path, columns=_COLUMNS)
        table = table[table["role"].isin((FP32, LOW_BIT))]
        tables.append(table.assign(schedule=schedule, seed=int(seed)))
    return pd.concat(tables, ignore_index=True)


def sequence_rows(
    sequences: pd.DataFrame, forks: pd.DataFrame, baseline: str, *, resamples: int, seed: int
) -> Iterator[Row]:
    """Interval of each condition's gap, and of its difference from ``baseline``.

    ``sequences`` is as ``read_fork_sequences`` makes it, ``forks`` is forks.csv. The gap is
    the mean over seeds of the last probe (final) or of all probes of the condition (mean);
    the baseline is taken at the same steps. One draw of sequences serves all runs. Raises
    ``ValueError`` where a probe of ``forks`` has no scores.
    """
    gaps = _ResampledGaps(sequences, resamples=resamples, seed=seed)
    groups = conditions(probe_table(forks))
    control = groups.get(baseline)
    for name, probes in groups.items():
        for measure, chosen in _measures(probes).items():
            where = {"unit": "sequence", "measure": measure}
            value, draws = gaps.mean(chosen)
            low, high = percentile_interval(draws)
            yield Row(
                TEST, name, **where, statistic="mean over seeds", value=value, interval_low=low,
                interval_high=high, n_a=gaps.count, mean_a=value, note=NOTE,
            )  # fmt: skip
            if control is None or name == baseline:
                continue
            matching = control[control["step"].isin(chosen["step"])]
            if matching.empty:
                continue
            other, other_draws = gaps.mean(matching)
            low, high = percentile_interval(draws - other_draws)
            yield Row(
                TEST, f"{name} v {baseline}", **where, statistic="difference of means",
                value=value - other, interval_low=low, interval_high=high,
                p_value=two_sided_p(draws - other_draws), n_a=gaps.count, n_b=gaps.count,
                mean_a=value, mean_b=other, difference=value - other, note=NOTE,
            )  # fmt: skip


def _measures(probes: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Probes behind each measure of a condition; none where it has no probe."""
    if probes.empty:
        return {}
    last = probes.groupby("seed")["step"].transform("max") == probes["step"]
    return {"final_gap_pct": probes[last], "mean_gap_pct": probes}


class _ResampledGaps:
    """Gap of every probe, as measured and on resampled sequences."""

    def __init__(self, sequences: pd.DataFrame, *, resamples: int, seed: int):
        scores = paired_scores(sequences, _KEYS)
        means, _ = resampled_means(scores, resamples=resamples, seed=seed)
        nll, reference = scores.mean_nll(), scores.reference
        self.count = len(scores.scored)
        self._values = gap_pct(nll, nll[reference])
        self._draws = gap_pct(means, means[reference])
        low_bit = scores.rows[scores.rows["role"] == LOW_BIT]
        self._at = pd.Series(low_bit.index, index=pd.MultiIndex.from_frame(low_bit[_KEYS]))

    def mean(self, probes: pd.DataFrame) -> tuple[float, np.ndarray]:
        """Mean gap of ``probes``, each seed weighing alike, and the same of each resample."""
        keys = pd.MultiIndex.from_frame(probes[_KEYS])
        missing = keys.difference(self._at.index)
        if len(missing):
            schedule, seed, step = missing[0]
            raise ValueError(f"fork {schedule}, seed {seed}, step {step}: no scores of sequences")
        at = self._at.loc[keys].to_numpy()
        share = 1.0 / probes.groupby("seed")["step"].transform("size").to_numpy()
        weights = share / share.sum()
        return float(weights @ self._values[at]), np.einsum("p,pr->r", weights, self._draws[at])
