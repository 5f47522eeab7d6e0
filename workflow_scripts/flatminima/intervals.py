"""Intervals of what was measured, from resampled text and from resampled parts of a run.

Text is resampled in ``STRETCHES`` stretches of neighbouring sequences. Sequences are cut from
one stream, so neighbours resemble each other: on `mini` they correlate at 0.55 in their loss
and at 0.2 in the loss that rounding adds. Resampling single sequences would give nominal 95 %
intervals with a coverage of 70 % (loss) and 88 % (gap); a test measures both ways. All models
at all steps share one draw of text, so that differences between them are paired.

Series along a run have two intervals: the stationary bootstrap, and a t-test on the means of a
few long segments. For three series of 30 points with a lag-1 autocorrelation of 0.5, the
first covers the true mean in about 78 of 100 cases and the second in about 92. A t-test on all
90 points covers it in about 72. A test measures this too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from flatminima.errors import UserError
from flatminima.quantizer_specs import FP32

CONFIDENCE = 0.95
# Each stretch is long enough for several documents; ten are enough for Student's t.
STRETCHES = 10
FEWEST_PROBES = 12  # fewer have too few autocorrelations to choose a block length from
SEGMENTS = 5


# ---- resampled text --------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedScores:
    """Scores of all models on one set of sequences, ready to be resampled."""

    rows: pd.DataFrame  # a row per model: keys, quantizer, role; in each key full precision first
    nll_nats: np.ndarray  # [rows, sequences], sums over the scored tokens
    scored: np.ndarray  # [sequences], number of scored tokens
    reference: np.ndarray  # [rows], the row of the full-precision model with the same key

    def mean_nll(self) -> np.ndarray:
        """Token-weighted mean NLL of each row, nats per token."""
        return self.nll_nats.sum(axis=1) / self.scored.sum()


def paired_scores(sequences: pd.DataFrame, keys: list[str]) -> PairedScores:
    """Arrange a long per-sequence table by model.

    ``sequences`` has the columns of ``keys`` (such as ``["step"]``), ``quantizer``, ``role``,
    ``sequence``, ``nll_nats`` and ``scored``. Quantizers keep the order of their first
    appearance. Raises ``ValueError`` for scores that cannot be paired.
    """
    # The pivot sorts its rows. A rank keeps the order of quantizers, with full precision first.
    rank = pd.Series(pd.factorize(sequences["quantizer"])[0], sequences.index)
    rank = rank.where(sequences["role"] != FP32, -1)
    table = sequences.assign(rank=rank).pivot(
        index=[*keys, "rank", "quantizer", "role"],
        columns="sequence",
        values=["nll_nats", "scored"],
    )
    incomplete = table.isna().any(axis=1)
    if incomplete.any():
        model = ", ".join(map(str, table.index[incomplete][0]))
        raise ValueError(f"{model}: every model must be scored on the same sequences")

    nll = table["nll_nats"].to_numpy(np.float64)
    scored = table["scored"].to_numpy(np.float64)
    if (scored != scored[0]).any():
        raise ValueError("models differ in how many tokens of a sequence they score")

    rows = table.index.to_frame(index=False).drop(columns="rank")
    is_fp32 = rows["role"] == FP32
    key_number = rows.groupby(keys, sort=False).ngroup()
    if list(key_number[is_fp32]) != list(range(key_number.max() + 1)):
        raise ValueError(f"{', '.join(keys)}: each needs exactly one row with role {FP32}")
    # Full precision comes once per key and in the order of the keys, as just checked. So the
    # n-th of its rows is the reference of all rows with the n-th key.
    reference = np.flatnonzero(is_fp32)[key_number]
    return PairedScores(rows, nll, scored[0], reference)


def resampled_means(scores: PairedScores, *, resamples: int, seed: int) -> np.ndarray:
    """Mean NLL of every row on resampled text, ``[rows, resamples]`` nats per token.

    A resample draws 7 of 10 stretches. A percentile interval from 10 would be too narrow. From
    7 it is as wide as Student's t with 9 degrees of freedom. Raises ``UserError`` for fewer
    than two sequences or resamples.
    """
    count = len(scores.scored)
    if count < 2 or resamples < 2:
        raise UserError(
            f"{count} sequences, {resamples} resamples: a bootstrap takes 2 or more of each"
        )
    stretches = min(STRETCHES, count)
    starts = np.arange(stretches) * count // stretches
    nll = np.add.reduceat(scores.nll_nats, starts, axis=1)
    scored = np.add.reduceat(scores.scored, starts)

    # The width of a bootstrap interval falls with the root of the number that is drawn.
    dof = stretches - 1
    upper = (1.0 + CONFIDENCE) / 2.0
    narrowing = stats.norm.ppf(upper) / stats.t.ppf(upper, dof)
    stretches_per_draw = max(1, round(dof * narrowing**2))

    rng = np.random.default_rng(seed)
    equal_chances = np.full(stretches, 1.0 / stretches)
    times = rng.multinomial(stretches_per_draw, equal_chances, resamples).astype(float)
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
    """Student's 95 % interval of a mean with the standard error ``error``."""
    half_width = float(stats.t.ppf((1.0 + CONFIDENCE) / 2.0, dof) * error)
    return mean - half_width, mean + half_width


def two_sided_p(draws: np.ndarray) -> float:
    """Twice the smaller share of resampled differences on one side of zero.

    This p belongs to the percentile interval. The measured value counts as one resample, so p
    is never below 2 / (resamples + 1).
    """
    not_above_zero = int((draws <= 0.0).sum())
    not_below_zero = int((draws >= 0.0).sum())
    return min(1.0, 2.0 * (min(not_above_zero, not_below_zero) + 1) / (len(draws) + 1))


def resampled_curves(
    sequences: pd.DataFrame, steps: Sequence[int], *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Mean NLL by role on resampled text, ``[resamples, steps]`` nats per token.

    ``sequences`` needs a ``step`` column and one quantizer per role. Raises ``ValueError`` if
    a role lacks one of ``steps``.
    """
    scores = paired_scores(sequences[sequences["step"].isin(steps)], ["step"])
    means = resampled_means(scores, resamples=resamples, seed=seed)
    curves = {}
    for role, rows in scores.rows.groupby("role"):
        if list(rows["step"]) != list(steps):
            raise ValueError(f"role {role}: one row at each of the {len(steps)} steps is needed")
        # The index of ``scores.rows`` counts the rows of ``means``.
        curves[role] = means[rows.index].T
    return curves


def summarise(
    sequences: pd.DataFrame, keys: list[str], *, resamples: int, seed: int
) -> pd.DataFrame:
    """One row per key and quantizer: the measured columns of the audit and of a fork.

    ``sequences`` is as in ``paired_scores`` plus ``kl_nats`` and ``top1_changed`` (sums over a
    sequence's scored tokens). Means give every scored token the same weight. Ends are those of
    95 % intervals over the text. The logarithms of ``ppl_low`` and ``ppl_high`` are the interval
    of ``nll_nats_per_token``. Raises ``FloatingPointError`` with the row if a perplexity is too
    large for a float.
    """
    scores = paired_scores(sequences, keys)
    nll = scores.mean_nll()
    too_large = ~(nll < np.log(np.finfo(np.float64).max))  # NaN counts as too large
    if too_large.any():
        row = " ".join(map(str, scores.rows[too_large].iloc[0]))
        raise FloatingPointError(f"{row}: NLL {nll[too_large][0]:g} nats, no finite perplexity")

    nll_fp32 = nll[scores.reference]
    draws = resampled_means(scores, resamples=resamples, seed=seed)
    ppl_low, ppl_high = np.exp(percentile_interval(draws))
    gap_low, gap_high = percentile_interval(gap_pct(draws, draws[scores.reference]))

    tokens = scores.scored.sum()
    sums = sequences.groupby([*keys, "quantizer", "role"])[["kl_nats", "top1_changed"]].sum()
    sums = sums.loc[pd.MultiIndex.from_frame(scores.rows)].to_numpy()
    return scores.rows.assign(
        nll_nats_per_token=nll,
        ppl=np.exp(nll),
        ppl_low=ppl_low,
        ppl_high=ppl_high,
        delta_nll_nats_per_token=nll - nll_fp32,
        gap_pct=gap_pct(nll, nll_fp32),
        gap_low_pct=gap_low,
        gap_high_pct=gap_high,
        kl_nats_per_token=sums[:, 0] / tokens,
        top1_changed_pct=100.0 * sums[:, 1] / tokens,
        n_sequences=len(scores.scored),
        n_tokens=int(tokens),
    )


# ---- resampled parts of a run ----------------------------------------------------------------


def stationary_bootstrap(
    differences: np.ndarray, *, resamples: int = 4_999
) -> tuple[float, float, float, int]:
    """95 % interval, two-sided p and block length of the mean of ``[probes, series]``.

    Politis and Romano's bootstrap. A resample takes the same stretches of all series, so values
    of one step stay together. The mean length of a stretch is Politis and White's choice for
    the mean over series, rounded up. It needs ``FEWEST_PROBES`` or more probes.
    """
    # Imported here, because it costs two seconds and most jobs that use this module do not need it.
    from arch.bootstrap import StationaryBootstrap, optimal_block_length

    lengths = optimal_block_length(differences.mean(axis=1))
    length = max(1, int(np.ceil(lengths["stationary"].iloc[0])))
    bootstrap = StationaryBootstrap(length, differences, seed=np.random.default_rng(0))
    draws = bootstrap.apply(np.mean, resamples)[:, 0]
    low, high = percentile_interval(draws)
    return low, high, two_sided_p(draws), length


def segment_means(differences: np.ndarray) -> np.ndarray:
    """Means of ``SEGMENTS`` equal stretches of ``differences`` ``[probes, series]``.

    Means of long stretches are nearly independent, as a t-test requires.
    """
    segments = np.array_split(differences.mean(axis=1), SEGMENTS)
    return np.array([segment.mean() for segment in segments])
