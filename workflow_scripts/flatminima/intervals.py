"""Intervals of what was measured: resampled text, resampled stretches of a run.

The unit of resampling is the validation sequence. A resample draws the sequences
once and applies the draw to full precision and every quantizer at every step, so
that differences between them are paired. Series along a run, whose neighbours are not
independent, have the stationary bootstrap and a t-test on the means of a few long
segments: for three series of 30 points with a lag-1 autocorrelation of 0.5 the 95 %
interval of the first holds the true mean in about 78 of 100 cases, that of the second in
about 92, and that of a t-test on all 90 points in about 72 (a test measures this).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from arch.bootstrap import StationaryBootstrap, optimal_block_length
from scipy import optimize, stats

from flatminima.quantizer_specs import FP32

CONFIDENCE = 0.95
_BATCH = 250
_IDENTITY = ["quantizer", "role"]


@dataclass(frozen=True)
class PairedScores:
    """Scores of all models on one set of sequences, ready to be resampled.

    ``rows``: one line per model (key columns, ``quantizer``, ``role``), full
    precision first within each key. ``nll_nats``: float64 ``[rows, sequences]``
    sums over the scored tokens. ``scored``: ``[sequences]`` scored tokens.
    ``reference``: for each row the row of its own full-precision model.
    """

    rows: pd.DataFrame
    nll_nats: np.ndarray
    scored: np.ndarray
    reference: np.ndarray

    def mean_nll(self) -> np.ndarray:
        """Token-weighted mean NLL of each row, nats per token."""
        return self.nll_nats.sum(axis=1) / self.scored.sum()


def _wide(sequences: pd.DataFrame, index: list[str], column: str) -> pd.DataFrame:
    table = sequences.pivot(index=index, columns="sequence", values=column)
    if table.isna().to_numpy().any():
        row, sequence = (axis[0] for axis in np.nonzero(table.isna().to_numpy()))
        where = ", ".join(
            f"{name} {value}" for name, value in zip(index, table.index[row], strict=True)
        )
        raise ValueError(
            f"{where}: {column} is missing for sequence {table.columns[sequence]}; every model "
            "must be scored on the same sequences"
        )
    return table


def paired_scores(sequences: pd.DataFrame, keys: list[str]) -> PairedScores:
    """Arrange a long per-sequence table by model.

    ``sequences`` has the columns of ``keys`` (such as ``["step"]``), ``quantizer``,
    ``role``, ``sequence``, ``nll_nats`` and ``scored``; its order does not matter
    except that quantizers keep the order of their first appearance. Raises
    ``ValueError`` where a model lacks a sequence or occurs twice, where a key has no
    full-precision row, or where models disagree on a sequence's scored tokens.
    """
    index = [*keys, *_IDENTITY]
    if sequences.duplicated([*index, "sequence"]).any():
        twice = sequences[sequences.duplicated([*index, "sequence"])].iloc[0]
        where = ", ".join(f"{name} {twice[name]}" for name in [*index, "sequence"])
        raise ValueError(f"{where}: scored twice; every sequence counts once for each model")
    nll = _wide(sequences, index, "nll_nats")
    scored = _wide(sequences, index, "scored").to_numpy()
    if (scored != scored[0]).any():
        sequence = nll.columns[np.nonzero((scored != scored[0]).any(axis=0))[0][0]]
        raise ValueError(f"sequence {sequence}: models differ in how many of its tokens they score")
    rows = nll.index.to_frame(index=False)
    order = {name: i for i, name in enumerate(sequences["quantizer"].unique())}
    rank = rows["quantizer"].map(order).where(rows["role"] != FP32, -1)
    rows = rows.assign(rank=rank, at=np.arange(len(rows))).sort_values([*keys, "rank"])
    taken = rows.pop("at").to_numpy()
    rows = rows.drop(columns="rank").reset_index(drop=True)
    return PairedScores(
        rows, nll.to_numpy(np.float64)[taken], scored[0].astype(np.float64), _reference(rows, keys)
    )


def _reference(rows: pd.DataFrame, keys: list[str]) -> np.ndarray:
    """Index of the one full-precision row that shares each row's key."""
    fp32 = rows.loc[rows["role"] == FP32, keys].assign(reference=lambda table: table.index)
    matched = rows[keys].merge(fp32, on=keys, how="left")
    if len(matched) > len(rows) or matched["reference"].isna().any():
        raise ValueError(f"{', '.join(keys)}: each needs exactly one row with role {FP32}")
    return matched["reference"].to_numpy(np.int64)


def resampled_means(
    scores: PairedScores, *, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean NLL of every row on resampled sequences, and the 95 % interval of its gap.

    Returns ``[rows, resamples]`` nats per token and ``[rows, 2]`` percent. The draws
    and the percentile interval are ``scipy.stats.bootstrap``'s; the statistic counts
    how often a sequence was drawn instead of copying its scores, which is the same
    sum and lets hundreds of models share a draw. Raises ``ValueError`` for fewer than
    two sequences or resamples.
    """
    count = len(scores.scored)
    if count < 2 or resamples < 2:
        raise ValueError(
            f"{count} sequences, {resamples} resamples: a bootstrap takes 2 or more of each"
        )
    means = []

    def gaps(drawn: np.ndarray, axis: int) -> np.ndarray:
        offset = count * np.arange(len(drawn))[:, None]
        times = np.bincount((drawn + offset).ravel(), minlength=drawn.size).reshape(drawn.shape)
        # einsum, not a BLAS product: its sums do not depend on the number of threads.
        sums = np.einsum("rs,bs->rb", scores.nll_nats, times.astype(np.float64))
        means.append(sums / (times @ scores.scored))
        return gap_pct(means[-1], means[-1][scores.reference])

    result = stats.bootstrap(
        (np.arange(count),), gaps, vectorized=True, axis=-1, n_resamples=resamples, batch=_BATCH,
        confidence_level=CONFIDENCE, method="percentile", rng=np.random.default_rng(seed),
    )  # fmt: skip
    return np.concatenate(means, axis=1), np.stack(result.confidence_interval, axis=-1)


def gap_pct(nll: np.ndarray, nll_fp32: np.ndarray) -> np.ndarray:
    """Equation 3: 100 (PPL_q - PPL_fp32) / PPL_fp32, from mean NLLs in nats per token."""
    return 100.0 * np.expm1(nll - nll_fp32)


def percentile_interval(draws: np.ndarray) -> tuple[float, float]:
    """95 % percentile interval of resampled values ``[resamples]``."""
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return float(low), float(high)


def two_sided_p(draws: np.ndarray) -> float:
    """Twice the smaller share of resampled differences on one side of zero.

    It is the p that goes with the percentile interval. The value itself counts as one
    resample, so that it is never below 2 / (resamples + 1).
    """
    fewer = min(int((draws <= 0.0).sum()), int((draws >= 0.0).sum()))
    return min(1.0, 2.0 * (fewer + 1) / (len(draws) + 1))


def gap_intervals(
    sequences: pd.DataFrame, keys: list[str], *, resamples: int, seed: int
) -> pd.DataFrame:
    """95 % paired percentile intervals of the gap: keys, quantizer, role, gap_low/high_pct."""
    scores = paired_scores(sequences, keys)
    _, interval = resampled_means(scores, resamples=resamples, seed=seed)
    return scores.rows.assign(gap_low_pct=interval[:, 0], gap_high_pct=interval[:, 1])


def resampled_curves(
    sequences: pd.DataFrame, steps: Sequence[int], *, resamples: int, seed: int
) -> Iterator[dict[str, np.ndarray]]:
    """For each resample the mean NLL at ``steps`` by role, ``[steps]`` nats per token.

    ``sequences`` needs a ``step`` column and one quantizer per role. Raises
    ``ValueError`` where a role lacks one of ``steps``.
    """
    chosen = sequences[sequences["step"].isin(steps)]
    scores = paired_scores(chosen, ["step"])
    means, _ = resampled_means(scores, resamples=resamples, seed=seed)
    at = {role: rows.index for role, rows in scores.rows.groupby("role", sort=False)}
    for role, index in at.items():
        if list(scores.rows.loc[index, "step"]) != list(steps):
            raise ValueError(f"role {role}: one row at each of the {len(steps)} steps is needed")
    for resample in means.T:
        yield {role: resample[index] for role, index in at.items()}


def summarise(
    sequences: pd.DataFrame, keys: list[str], *, resamples: int, seed: int
) -> pd.DataFrame:
    """One row per key and quantizer: the measured columns of the audit and of a fork.

    ``sequences`` is as in ``paired_scores`` plus ``kl_nats`` and ``top1_changed``
    (sums over a sequence's scored tokens). Means weigh every scored token alike. Raises
    ``FloatingPointError`` naming the row where a perplexity is beyond what a float holds.
    """
    scores = paired_scores(sequences, keys)
    nll = scores.mean_nll()
    if (beyond := ~(nll < np.log(np.finfo(np.float64).max))).any():
        row = " ".join(map(str, scores.rows[beyond].iloc[0]))
        raise FloatingPointError(f"{row}: NLL {nll[beyond][0]:g} nats, no finite perplexity")
    nll_fp32 = nll[scores.reference]
    _, interval = resampled_means(scores, resamples=resamples, seed=seed)
    tokens = scores.scored.sum()
    sums = sequences.groupby([*keys, *_IDENTITY])[["kl_nats", "top1_changed"]].sum()
    sums = sums.loc[pd.MultiIndex.from_frame(scores.rows)]
    return scores.rows.assign(
        nll_nats_per_token=nll,
        ppl=np.exp(nll),
        delta_nll_nats_per_token=nll - nll_fp32,
        gap_pct=gap_pct(nll, nll_fp32),
        gap_low_pct=interval[:, 0],
        gap_high_pct=interval[:, 1],
        kl_nats_per_token=sums["kl_nats"].to_numpy() / tokens,
        top1_changed_pct=100.0 * sums["top1_changed"].to_numpy() / tokens,
        n_sequences=len(scores.scored),
        n_tokens=int(tokens),
    )


FEWEST_PROBES = 12  # below, the choice of the block length has no autocorrelations to look at
SEGMENTS = 5
RESAMPLES = 4_999


@dataclass(frozen=True)
class BlockResult:
    """Mean difference over blocks of neighbouring probes: 95 % interval and two-sided p.

    ``length``: mean number of probes in a block.
    """

    low: float
    high: float
    p_value: float
    length: float


def stationary_bootstrap(
    differences: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> BlockResult:
    """Politis and Romano's bootstrap of the mean of ``differences`` ``[probes, series]``.

    A resample takes the same stretches from all series, so that what they share at a step
    stays together. The mean length of a stretch is Politis and White's choice for the
    mean over series, rounded up. Raises ``ValueError`` below ``FEWEST_PROBES`` probes.
    """
    if len(differences) < FEWEST_PROBES:
        raise ValueError(f"{len(differences)} probes: blocks need {FEWEST_PROBES} or more")
    lengths = optimal_block_length(differences.mean(axis=1))
    length = max(1, int(np.ceil(lengths["stationary"].iloc[0])))
    bootstrap = StationaryBootstrap(length, differences, seed=np.random.default_rng(seed))
    draws = bootstrap.apply(np.mean, resamples)[:, 0]
    return BlockResult(*percentile_interval(draws), two_sided_p(draws), length)


@dataclass(frozen=True)
class SegmentResult:
    """One-sample t-test of segment means against zero, with the 95 % interval of their mean."""

    t: float
    dof: float
    p_value: float
    mean: float
    low: float
    high: float


def segment_t_test(differences: np.ndarray) -> SegmentResult:
    """Student's t on the means of equal stretches of ``differences`` ``[probes, series]``.

    Means of long stretches depend on each other little, which is all that the test asks for.
    """
    parts = np.array_split(differences.mean(axis=1), SEGMENTS)
    means = np.array([part.mean() for part in parts])
    result = stats.ttest_1samp(means, 0.0)
    low, high = result.confidence_interval(CONFIDENCE)
    return SegmentResult(
        float(result.statistic), float(result.df), float(result.pvalue), float(means.mean()),
        float(low), float(high),
    )  # fmt: skip


RHO = np.linspace(-0.9, 0.98, 95)
FEWEST_POINTS = 6  # for a line whose residuals are AR(1)


@dataclass(frozen=True)
class Line:
    """A straight line through a series, its 95 % intervals, and what it predicts at ``at``.

    ``predicted_low`` to ``predicted_high`` is to hold a new observation at ``at``, not only
    the line there.
    """

    slope: float
    slope_low: float
    slope_high: float
    predicted: float
    predicted_low: float
    predicted_high: float


def fit_line(x: np.ndarray, y: np.ndarray, at: float) -> Line:
    """Line of ``y`` on ``x`` ``[n]`` where residuals are AR(1), and its prediction at ``at``.

    Generalised least squares with the autocorrelation integrated out: Student's t of each
    value of ``RHO``, weighed by its restricted likelihood and the prior (1 - rho^2)^(-1/2).
    Estimating it alone would leave intervals too narrow (with Newey and West's errors at 28
    points they cover 65 to 86 of 100); these cover 94 to 99 at 12, 28 and 42 points for
    autocorrelations up to 0.7, which a test holds. Below ``FEWEST_POINTS`` residuals count
    as independent. Raises ``ValueError`` below 3 points.
    """
    count = len(x)
    if count < 3:
        raise ValueError(f"{count} points: a line with an interval takes 3 or more")
    centre, scale = float(np.mean(x)), float(np.ptp(x)) / 2.0
    design = np.column_stack([np.ones(count), (np.asarray(x, float) - centre) / scale])
    target, there = np.asarray(y, float), np.array([1.0, (at - centre) / scale])
    rhos = RHO if count >= FEWEST_POINTS else np.zeros(1)
    slopes, errors, levels, spreads, log_weights = np.empty((5, len(rhos)))
    for number, rho in enumerate(rhos):
        first = np.sqrt(1.0 - rho**2)
        rows = np.vstack([first * design[:1], design[1:] - rho * design[:-1]])
        values = np.concatenate([first * target[:1], target[1:] - rho * target[:-1]])
        gram = rows.T @ rows
        fit = np.linalg.solve(gram, rows.T @ values)
        residuals = values - rows @ fit
        squares = max(float(residuals @ residuals), np.finfo(float).tiny)
        variance, inverse = squares / (count - 2), np.linalg.inv(gram)
        slopes[number], errors[number] = fit[1], np.sqrt(variance * inverse[1, 1])
        levels[number] = there @ fit
        spreads[number] = np.sqrt(variance * (there @ inverse @ there + 1.0 / (1.0 - rho**2)))
        # The determinant of the whitening is what the prior takes away.
        log_weights[number] = -0.5 * np.linalg.slogdet(gram)[1] - 0.5 * (count - 2) * np.log(
            squares
        )
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    slope_ends = _mixture_interval(slopes, errors, weights, count - 2)
    return Line(
        float(weights @ slopes) / scale, slope_ends[0] / scale, slope_ends[1] / scale,
        float(weights @ levels), *_mixture_interval(levels, spreads, weights, count - 2),
    )  # fmt: skip


def _mixture_interval(
    centres: np.ndarray, errors: np.ndarray, weights: np.ndarray, dof: int
) -> tuple[float, float]:
    """95 % interval of a mixture of Student's t."""
    tail, span = (1.0 - CONFIDENCE) / 2.0, 60.0 * errors.max()

    def below(value: float, share: float) -> float:
        return float(weights @ stats.t.cdf((value - centres) / errors, dof)) - share

    ends = (centres.min() - span, centres.max() + span)
    low, high = (optimize.brentq(below, *ends, args=(p,)) for p in (tail, 1.0 - tail))
    return float(low), float(high)
