"""What separates the probes: main effects, interactions, and one sensitivity times step².

The response is a logarithm. Factors multiply a loss (each bit less makes the step twice as
wide), so their logarithms add. There are two responses:

``added_loss``  the loss that a cell of the design adds, nats per token. A cell counts if this is
                above zero in every resample of the sequences. A number of bits counts if all
                its cells do, so that the design stays balanced.
``kl``          the KL divergence from the full-precision model, nats per token. It is positive
                even if the added loss cannot be told from zero (at 8 bits).

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
    """Share of the variance of ``log_loss`` ``[cells]`` of each term (type II sums of squares).

    ``table`` has the columns bits, symmetric and granularity, and a row per cell. The residual is
    the interaction of all three.
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

    ``levels`` maps a factor to -1 or +1 for each cell. An effect is the mean at +1 minus
    the mean at -1. An interaction uses the product of the levels of its factors.
    """
    signs = {name: np.asarray(level, dtype=float) for name, level in levels.items()}
    signs |= {f"{a} x {b}": signs[a] * signs[b] for a, b in combinations(levels, 2)}
    return {name: (sign @ losses) / (len(losses) / 2) for name, sign in signs.items()}


def one_sensitivity(loss: np.ndarray, noise: np.ndarray) -> dict[str, float]:
    """Fit of added loss = sensitivity * noise with slope 1 in logarithms, and the free slope.

    ``r2`` is that of the slope-1 line, ``factor`` the typical factor by which it misses
    (exp of the residuals' standard deviation).
    """
    x = np.log(noise)
    y = np.log(loss)
    residuals = (y - x) - (y - x).mean()
    return {
        "sensitivity": float(np.exp((y - x).mean())),
        "r2": float(1.0 - (residuals**2).sum() / ((y - y.mean()) ** 2).sum()),
        "factor": float(np.exp(residuals.std(ddof=1))),
        "slope": float(np.polyfit(x, y, 1)[0]),
    }


def _with_intervals(
    statistic: Callable[[np.ndarray], dict[str, float]], table: pd.DataFrame, draws: np.ndarray
) -> Iterator[tuple[str, float, float, float, int]]:
    """Name, number, interval and count for each number that ``statistic`` makes of the responses.

    ``draws`` are the responses on resampled text, by the index of ``table``.
    """
    # ``table`` is a selection of rows, and its index still counts the rows of ``draws``.
    repeats = pd.DataFrame([statistic(draw) for draw in draws[table.index].T])
    for name, value in statistic(table["value"].to_numpy()).items():
        yield name, value, *percentile_interval(repeats[name].to_numpy()), len(table)


def _shares(table: pd.DataFrame, draws: np.ndarray) -> Iterator[tuple]:
    """Shares over the numbers of bits that have every symmetry and granularity."""
    # Cells whose loss is not clearly above zero were removed before. Bits that lost a cell are left
    # out.
    cells_of_bits = table.groupby("bits")["value"].transform("size")
    variants = table[["symmetric", "granularity"]].drop_duplicates()
    balanced = table[cells_of_bits == len(variants)]
    if balanced["bits"].nunique() < 2:
        return
    shares = _with_intervals(lambda y: variance_shares(balanced, np.log(y)), balanced, draws)
    for term, *numbers in shares:
        yield term, "share", *numbers


def _effects(
    table: pd.DataFrame, draws: np.ndarray, low: Mapping, high: Mapping
) -> Iterator[tuple]:
    """Factors of the response between the suite's two probes.

    They need all cells of the two-level design that has the two probes at opposite corners.
    """
    changed_factors = [key for key in FACTORS if low[key] != high[key]]
    levels_of_probes = {key: [low[key], high[key]] for key in FACTORS}
    # All combinations of the two probes' levels: the corners of a cube if they differ in three
    # factors.
    cube = table[table[list(FACTORS)].isin(levels_of_probes).all(axis=1)]
    if len(cube) != 2 ** len(changed_factors):
        return
    signs = {FACTORS[key]: np.where(cube[key] == low[key], 1, -1) for key in changed_factors}
    # The first column is measured. ``cube`` keeps the row numbers of ``draws`` as its index.
    log_losses = np.log(np.column_stack([cube["value"], draws[cube.index]]))
    for term, effect in two_level_effects(log_losses, signs).items():
        low_end, high_end = percentile_interval(effect[1:])
        yield term, "factor", *np.exp([effect[0], low_end, high_end]), len(cube)


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
    design = cells[["step", "quantizer", "format", "layers", *FACTORS, "step_variance"]]
    rows = []
    for response, column in RESPONSES.items():
        # paired_scores resamples a column of this name.
        scores = paired_scores(sequences.assign(nll_nats=sequences[column]), ["step"])
        mean = scores.mean_nll()
        resampled = resampled_means(scores, resamples=resamples, seed=0)
        draws = resampled - resampled[scores.reference]
        responses = scores.rows.assign(value=mean - mean[scores.reference])
        responses = responses.merge(
            design, on=["step", "quantizer"], how="left", validate="one_to_one"
        )
        # Full precision has no format, and code books have no evenly spaced levels.
        has_even_levels = responses["format"] == "int"
        is_positive = (responses["value"] > 0) & (draws > 0).all(axis=1)
        for step, step_cells in responses[has_even_levels & is_positive].groupby("step"):
            for row in _analyses(step_cells, draws, low, high):
                rows.append((step, response, *row))
    return pd.DataFrame(rows, columns=COLUMNS)


def _analyses(
    step_cells: pd.DataFrame, draws: np.ndarray, low: Mapping, high: Mapping
) -> Iterator[tuple]:
    """All analyses of one response at one step: the columns from ``analysis`` on."""
    paper_cells = step_cells[step_cells["layers"] == PAPER_LAYERS]
    for row in _shares(paper_cells, draws):
        yield "variance", *row
    for row in _effects(paper_cells, draws, low, high):
        yield "paper", *row
    for term, cells in (("paper's layers", paper_cells), ("all layer sets", step_cells)):
        if len(cells) <= 2:  # a line goes through any two points
            continue
        fit = partial(one_sensitivity, noise=cells["step_variance"].to_numpy())
        for row in _with_intervals(fit, cells, draws):
            yield "prediction", term, *row
