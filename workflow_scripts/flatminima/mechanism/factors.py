"""What separates the probes: main effects, interactions, and one sensitivity times step².

The response is a logarithm, because factors multiply a loss (each bit fewer makes the step
twice as wide) and their logarithms add. Two responses stand beside each other:

``added_loss``  the loss that a cell adds, nats per token. A cell counts where this is above
                zero in every resample of the sequences; a number of bits counts where all
                its cells do, so that the design stays balanced.
``kl``          the KL divergence from the full-precision model, nats per token, which is
                positive even where the added loss is lost in noise (at 8 bits).

Intervals are 95 % percentile intervals over the validation sequences
(``intervals.resampled_means``).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from statsmodels.stats.anova import anova_lm

from flatminima.intervals import paired_scores, percentile_interval, resampled_means
from flatminima.paper import PAPER_LAYERS

FACTORS = {"bits": "bits", "symmetric": "symmetry", "granularity": "granularity"}  # in print
FORMULA = "log_loss ~ (C(bits) + C(symmetric) + C(granularity)) ** 2"
COLUMNS = ["step", "response", "analysis", "term", "measure", "value", "low", "high", "n"]
RESPONSES = {"added_loss": "nll_nats", "kl": "kl_nats"}


def variance_shares(table: pd.DataFrame, log_loss: np.ndarray) -> dict[str, float]:
    """Share of the variance of ``log_loss`` that each term carries (type II sums of squares).

    ``table`` has the columns bits, symmetric and granularity, a row per value. What neither
    a factor nor a pair explains is the interaction of all three.
    """
    fitted = smf.ols(FORMULA, table.assign(log_loss=log_loss)).fit()
    squares = anova_lm(fitted, typ=2)["sum_sq"]
    pairs = [f"{a} x {b}" for a, b in combinations(FACTORS.values(), 2)]
    terms = [*FACTORS.values(), *pairs, "all three"]
    return dict(zip(terms, (squares / squares.sum()).tolist(), strict=True))


def two_level_effects(
    losses: np.ndarray, levels: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Main effects and interactions of a full two-level design of ``[cells, draws]`` log losses.

    ``levels`` maps a factor to -1 or +1 for each cell. An effect is the mean at +1 less the
    mean at -1; an interaction the same of the product of its factors' levels.
    """
    signs = {name: np.asarray(level, dtype=float) for name, level in levels.items()}
    signs |= {f"{a} x {b}": signs[a] * signs[b] for a, b in combinations(levels, 2)}
    return {name: (sign @ losses) / (len(losses) / 2) for name, sign in signs.items()}


def one_sensitivity(loss: np.ndarray, noise: np.ndarray) -> dict[str, float]:
    """Fit of added loss = sensitivity * noise with slope 1 in logarithms, and the free slope.

    ``r2`` is that of the slope-1 line, ``factor`` the typical factor by which it misses
    (exp of the residuals' standard deviation).
    """
    x, y = np.log(noise), np.log(loss)
    rest = (y - x) - (y - x).mean()
    return {
        "sensitivity": float(np.exp((y - x).mean())),
        "r2": float(1.0 - (rest**2).sum() / ((y - y.mean()) ** 2).sum()),
        "factor": float(np.exp(rest.std(ddof=1))),
        "slope": float(np.polyfit(x, y, 1)[0]),
    }


def _with_intervals(
    statistic: Callable[[np.ndarray], dict[str, float]], table: pd.DataFrame, draws: np.ndarray
) -> Iterator[tuple[str, float, float, float, int]]:
    """Each number that ``statistic`` makes of the cells' responses, with its interval."""
    repeats = pd.DataFrame([statistic(draw) for draw in draws[table.index].T])
    for name, value in statistic(table["value"].to_numpy()).items():
        yield name, value, *percentile_interval(repeats[name].to_numpy()), len(table)


def _shares(table: pd.DataFrame, draws: np.ndarray) -> Iterator[tuple]:
    """Shares over those numbers of bits that have every symmetry and granularity."""
    counts = table.groupby("bits")["value"].transform("size")
    table = table[counts == len(table[["symmetric", "granularity"]].drop_duplicates())]
    if table["bits"].nunique() > 1:
        shares = _with_intervals(lambda y: variance_shares(table, np.log(y)), table, draws)
        yield from ((term, "share", *numbers) for term, *numbers in shares)


def _effects(
    table: pd.DataFrame, draws: np.ndarray, low: Mapping, high: Mapping
) -> Iterator[tuple]:
    """Factors of the response between the suite's two probes, over the cells between them."""
    differ = [key for key in FACTORS if low[key] != high[key]]
    between = {key: [low[key], high[key]] for key in FACTORS}
    cube = table[table[list(FACTORS)].isin(between).all(axis=1)]
    if len(cube) != 2 ** len(differ):
        return
    signs = {FACTORS[key]: np.where(cube[key] == low[key], 1, -1) for key in differ}
    logs = np.log(np.column_stack([cube["value"], draws[cube.index]]))
    for term, effect in two_level_effects(logs, signs).items():
        ends = percentile_interval(effect[1:])
        yield term, "factor", *np.exp([effect[0], *ends]), len(cube)


def analyse(
    cells: pd.DataFrame, sequences: pd.DataFrame, *, low: Mapping, high: Mapping, resamples: int
) -> pd.DataFrame:
    """The table of effects: columns ``COLUMNS``, for every step of the factorial.

    ``cells`` is factorial.csv, ``sequences`` its per-sequence scores; ``low`` and ``high``
    say where the suite's two probes lie in the design (bits, symmetric, granularity).
    Analyses: ``variance`` (shares of the variance of the log response), ``paper`` (factors
    between the two probes) and ``prediction`` (one sensitivity times step², on the paper's
    layers and on all layer sets).
    """
    described = cells[["step", "quantizer", "format", "layers", *FACTORS, "step_variance"]]
    found = []
    for response, column in RESPONSES.items():
        scores = paired_scores(sequences.assign(nll_nats=sequences[column]), ["step"])
        mean, means = scores.mean_nll(), resampled_means(scores, resamples=resamples, seed=0)
        draws = means - means[scores.reference]
        rows = scores.rows.assign(value=mean - mean[scores.reference])
        rows = rows.merge(described, on=["step", "quantizer"], how="left", validate="one_to_one")
        # Full precision has no format, and code books no evenly spaced levels.
        usable = rows[(rows["format"] == "int") & (rows["value"] > 0) & (draws > 0).all(axis=1)]
        for step, at in usable.groupby("step"):
            paper = at[at["layers"] == PAPER_LAYERS]
            effects = _effects(paper, draws, low, high)
            for analysis, part in (("variance", _shares(paper, draws)), ("paper", effects)):
                found += [(step, response, analysis, *row) for row in part]
            for term, cells in (("paper's layers", paper), ("all layer sets", at)):
                if len(cells) > 2:  # a line goes through any two
                    fit = partial(one_sensitivity, noise=cells["step_variance"].to_numpy())
                    part = _with_intervals(fit, cells, draws)
                    found += [(step, response, "prediction", term, *row) for row in part]
    return pd.DataFrame(found, columns=COLUMNS)
