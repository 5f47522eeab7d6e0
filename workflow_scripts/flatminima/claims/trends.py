"""Slopes and ranges along an audit: the small statistics several claims share."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS

from flatminima.claims.model import Measurements, NotMeasured


def slope(curve: pd.Series) -> tuple[float, float, float]:
    """Least-squares slope of a curve per 1,000 steps, with a 95 % interval.

    Neighbouring checkpoints are not independent, so the interval is Newey and West's
    (HAC) with the usual lag of 4 (n/100)^(2/9). ``NotMeasured`` below five points.
    """
    if len(curve) < 5:
        raise NotMeasured(f"five revisions for a slope, found {len(curve)}")
    steps = curve.index.to_numpy() / 1000
    lags = int(4 * (len(curve) / 100) ** (2 / 9))
    design = np.column_stack([np.ones(len(curve)), steps])
    fit = OLS(curve.to_numpy(), design).fit(
        cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": True}
    )
    low, high = fit.conf_int()[1]
    return float(fit.params[1]), float(low), float(high)


def spread_around_line(curve: pd.Series) -> float:
    """Standard deviation of a curve around its own straight line, in the curve's unit."""
    line = stats.linregress(curve.index, curve)
    return float(np.std(curve - line.intercept - line.slope * curve.index, ddof=2))


def between(curve: pd.Series, first: float, last: float) -> pd.Series:
    """Part of a curve between two steps, both included; ``NotMeasured`` where it is empty."""
    part = curve[(curve.index >= first) & (curve.index <= last)]
    if part.empty:
        raise NotMeasured(f"revisions between steps {first:,} and {last:,}")
    return part


def boundary(phases: Mapping) -> tuple[int, str]:
    """Start of Phase 3: the onset where one was found, the best FP32 step otherwise."""
    if phases["onset"]["step"] is not None:
        return phases["onset"]["step"], "onset"
    return phases["convergence"]["step"], "best FP32 step (no onset found)"


def plateau(m: Measurements) -> tuple[int, int]:
    """First and last step of Phase 2: the detected ones, or the paper's scaled to the suite."""
    if m.phases is None:
        return m.step(7000), m.step(80000)
    return m.phases["rapid_learning_end"]["step"], boundary(m.phases)[0]
