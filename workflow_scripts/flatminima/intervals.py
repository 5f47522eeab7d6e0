"""Intervals of what was measured: resampled text, resampled stretches of a run.

Text is resampled in ``STRETCHES`` stretches of neighbouring sequences, because sequences are
cut from one stream: on `mini` neighbours correlate at 0.55 in their loss and at 0.2 in what
rounding adds to it. Drawn singly they would give 95 % intervals that hold 70 and 88 of 100
(a test measures both ways). One draw serves full precision and every quantizer at every step,
so that differences between them are paired.

Series along a run have the stationary bootstrap and the means of a few long segments: for
three series of 30 points with a lag-1 autocorrelation of 0.5 the 95 % interval of the first
holds the true mean in about 78 of 100 cases, a t-test on the second in about 92, and one on
all 90 points in about 72 (a test measures this too).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.errors import UserError
from flatminima.quantizer_specs import FP32

CONFIDENCE = 0.95
STRETCHES = 10  # long enough to hold several documents, enough for Student's t


@dataclass(frozen=True)
class PairedScores:
    """Scores of all models on one set of sequences, ready to be resampled."""

    rows: pd.DataFrame  # a model each: keys, quantizer, role; full precision first in each key
    nll_nats: np.ndarray  # [rows, sequences], sums over the scored tokens
    scored: np.ndarray  # [sequences], scored tokens
    reference: np.ndarray  # [rows], the row of its own full-precision model

    def mean_nll(self) -> np.ndarray:
        """Token-weighted mean NLL of each row, nats per token."""
        return self.nll_nats.sum(axis=1) / self.scored.sum()


def paired_scores(sequences: pd.DataFrame, keys: list[str]) -> PairedScores:
    """Arrange a long per-sequence table by model.

    ``sequences`` has the columns of ``keys`` (such as ``["step"]``), ``quantizer``, ``role``,
    ``sequence``, ``nll_nats`` and ``scored``; quantizers keep the order of their first
    appearance. Raises ``ValueError`` for scores that cannot be paired.
    """
    rank = pd.Series(pd.factorize(sequences["quantizer"])[0], sequences.index)
    rank = rank.where(sequences["role"] != FP32, -1)
    index, values = [*keys, "rank", "quantizer", "role"], ["nll_nats", "scored"]
    table = sequences.assign(rank=rank).pivot(index=index, columns="sequence", values=values)
    if (lacking := table.isna().any(axis=1)).any():
        where = ", ".join(map(str, table.index[lacking][0]))
        raise ValueError(f"{where}: every model must be scored on the same sequences")
    nll, scored = (table[name].to_numpy(np.float64) for name in values)
    if (scored != scored[0]).any():
        raise ValueError("models differ in how many tokens of a sequence they score")
    rows = table.index.to_frame(index=False).drop(columns="rank")
    fp32 = rows["role"] == FP32
    key = rows.groupby(keys, sort=False).ngroup()
    if list(key[fp32]) != list(range(key.max() + 1)):
        raise ValueError(f"{', '.join(keys)}: each needs exactly one row with role {FP32}")
    return PairedScores(rows, nll, scored[0], np.flatnonzero(fp32)[key])


def resampled_means(scores: PairedScores, *, resamples: int, seed: int) -> np.ndarray:
    """Mean NLL of every row on resampled text, ``[rows, resamples]`` nats per token.

    A resample draws fewer stretches than there are (7 of 10), which makes a percentile
    interval as wide as Student's t of that many stretches has to be. Raises ``ValueError``
    for fewer than two sequences or resamples.
    """
    if (count := len(scores.scored)) < 2 or resamples < 2:
        given = f"{count} sequences, {resamples} resamples"
        raise UserError(f"{given}: a bootstrap takes 2 or more of each")
    stretches = min(STRETCHES, count)
    starts = np.arange(stretches) * count // stretches
    nll = np.add.reduceat(scores.nll_nats, starts, axis=1)
    scored = np.add.reduceat(scores.scored, starts)
    dof, end = stretches - 1, (1.0 + CONFIDENCE) / 2.0
    drawn = max(1, round(dof * (stats.norm.ppf(end) / stats.t.ppf(end, dof)) ** 2))
    rng = np.random.default_rng(seed)
    times = rng.multinomial(drawn, np.full(stretches, 1.0 / stretches), resamples).astype(float)
    # einsum, not a BLAS product: its sums do not depend on the number of threads.
    return np.einsum("rs,bs->rb", nll, times) / np.einsum("s,bs->b", scored, times)


def gap_pct(nll: np.ndarray, nll_fp32: np.ndarray) -> np.ndarray:
    """Equation 3: 100 (PPL_q - PPL_fp32) / PPL_fp32, from mean NLLs in nats per token."""
    return 100.0 * np.expm1(nll - nll_fp32)


def percentile_interval(draws: np.ndarray) -> np.ndarray:
    """95 % percentile interval of resampled values ``[..., resamples]``: low and high."""
    tail = (1.0 - CONFIDENCE) / 2.0
    return np.quantile(draws, [tail, 1.0 - tail], axis=-1)


def t_interval(mean: float, error: float, dof: float) -> tuple[float, float]:
    """Student's 95 % interval of a mean with this standard error."""
    half = float(stats.t.ppf((1.0 + CONFIDENCE) / 2.0, dof) * error)
    return mean - half, mean + half


def two_sided_p(draws: np.ndarray) -> float:
    """Twice the smaller share of resampled differences on one side of zero.

    It is the p that goes with the percentile interval. The value itself counts as one
    resample, so that it is never below 2 / (resamples + 1).
    """
    fewer = min(int((draws <= 0.0).sum()), int((draws >= 0.0).sum()))
    return min(1.0, 2.0 * (fewer + 1) / (len(draws) + 1))


def resampled_curves(
    sequences: pd.DataFrame, steps: Sequence[int], *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Mean NLL by role on resampled text, ``[resamples, steps]`` nats per token.

    ``sequences`` needs a ``step`` column and one quantizer per role. Raises
    ``ValueError`` where a role lacks one of ``steps``.
    """
    scores = paired_scores(sequences[sequences["step"].isin(steps)], ["step"])
    means = resampled_means(scores, resamples=resamples, seed=seed)
    for role, rows in scores.rows.groupby("role"):
        if list(rows["step"]) != list(steps):
            raise ValueError(f"role {role}: one row at each of the {len(steps)} steps is needed")
    return {role: means[rows.index].T for role, rows in scores.rows.groupby("role")}


def summarise(
    sequences: pd.DataFrame, keys: list[str], *, resamples: int, seed: int
) -> pd.DataFrame:
    """One row per key and quantizer: the measured columns of the audit and of a fork.

    ``sequences`` is as in ``paired_scores`` plus ``kl_nats`` and ``top1_changed``
    (sums over a sequence's scored tokens). Means weigh every scored token alike. Ends are
    those of 95 % intervals over the text; the logarithms of ``ppl_low`` and ``ppl_high`` are
    the interval of ``nll_nats_per_token``. Raises ``FloatingPointError`` naming the row
    where a perplexity is beyond what a float holds.
    """
    scores = paired_scores(sequences, keys)
    nll = scores.mean_nll()
    if (beyond := ~(nll < np.log(np.finfo(np.float64).max))).any():
        row = " ".join(map(str, scores.rows[beyond].iloc[0]))
        raise FloatingPointError(f"{row}: NLL {nll[beyond][0]:g} nats, no finite perplexity")
    nll_fp32 = nll[scores.reference]
    draws = resampled_means(scores, resamples=resamples, seed=seed)
    ppl = np.exp(percentile_interval(draws))
    gap = percentile_interval(gap_pct(draws, draws[scores.reference]))
    tokens = scores.scored.sum()
    sums = sequences.groupby([*keys, "quantizer", "role"])[["kl_nats", "top1_changed"]].sum()
    sums = sums.loc[pd.MultiIndex.from_frame(scores.rows)].to_numpy()
    return scores.rows.assign(
        nll_nats_per_token=nll,
        ppl=np.exp(nll),
        ppl_low=ppl[0],
        ppl_high=ppl[1],
        delta_nll_nats_per_token=nll - nll_fp32,
        gap_pct=gap_pct(nll, nll_fp32),
        gap_low_pct=gap[0],
        gap_high_pct=gap[1],
        kl_nats_per_token=sums[:, 0] / tokens,
        top1_changed_pct=100.0 * sums[:, 1] / tokens,
        n_sequences=len(scores.scored),
        n_tokens=int(tokens),
    )


FEWEST_PROBES = 12  # below, the choice of the block length has no autocorrelations to look at
SEGMENTS = 5


def stationary_bootstrap(
    differences: np.ndarray, *, resamples: int = 4_999
) -> tuple[float, float, float, int]:
    """95 % interval, two-sided p and block length of the mean of ``[probes, series]``.

    Politis and Romano's bootstrap. A resample takes the same stretches from all series, so that
    what they share at a step stays together. The mean length of a stretch is Politis and White's
    choice for the mean over series, rounded up; ask it of ``FEWEST_PROBES`` or more.
    """
    # Here and not above: two seconds of every job that summarises scores.
    from arch.bootstrap import StationaryBootstrap, optimal_block_length

    lengths = optimal_block_length(differences.mean(axis=1))
    length = max(1, int(np.ceil(lengths["stationary"].iloc[0])))
    bootstrap = StationaryBootstrap(length, differences, seed=np.random.default_rng(0))
    draws = bootstrap.apply(np.mean, resamples)[:, 0]
    return *percentile_interval(draws), two_sided_p(draws), length


def segment_means(differences: np.ndarray) -> np.ndarray:
    """Means of ``SEGMENTS`` equal stretches of ``differences`` ``[probes, series]``.

    Means of long stretches depend on each other little, which is all that a t-test asks for.
    """
    return np.array([part.mean() for part in np.array_split(differences.mean(axis=1), SEGMENTS)])
