"""Continuous broken straight lines, fitted by least squares.

The breaks are searched over all points, so the fit is exact.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BrokenLine:
    """A continuous piecewise straight line.

    ``breaks``: indices of the points where the slope changes. ``slopes``: one per
    piece, per unit of x. ``residuals``: ``[points]``.
    """

    breaks: tuple[int, ...]
    slopes: np.ndarray
    residuals: np.ndarray


def _best_breaks(
    x: np.ndarray, y: np.ndarray, count: int, shortest: int, rising: bool
) -> tuple[int, ...] | None:
    """Find the one or two breaks with the smallest squared residuals; ``None`` if none is possible.

    Each break adds a hinge max(0, x - x_break) to a straight line. Line and
    intercept are projected out first (Frisch-Waugh-Lovell), which leaves a system of
    one or two unknowns for each candidate.
    """
    candidates = np.arange(shortest, len(x) - shortest)
    line = np.column_stack([np.ones_like(x), x])
    columns = np.column_stack([y, np.maximum(x[:, None] - x[candidates], 0.0)])
    columns -= line @ np.linalg.lstsq(line, columns, rcond=None)[0]
    target, hinges = columns[:, 0], columns[:, 1:]
    gram, moment = hinges.T @ hinges, hinges.T @ target
    if count == 1:
        pairs = (np.arange(len(candidates)),)
        explained = moment**2 / np.diag(gram)
        if rising:
            explained = np.where(moment > 0.0, explained, -np.inf)
    else:
        pairs = i, j = np.triu_indices(len(candidates), k=shortest)
        determinant = gram[i, i] * gram[j, j] - gram[i, j] ** 2
        explained = (
            gram[j, j] * moment[i] ** 2
            - 2.0 * gram[i, j] * moment[i] * moment[j]
            + gram[i, i] * moment[j] ** 2
        ) / determinant
    if not np.isfinite(explained).any():
        return None
    best = int(np.argmax(explained))
    return tuple(int(candidates[index[best]]) for index in pairs)


def fit_broken_line(
    x: np.ndarray, y: np.ndarray, breaks: int, *, shortest: int = 2, rising: bool = False
) -> BrokenLine | None:
    """Least-squares continuous line with ``breaks`` (0, 1 or 2) breaks at members of ``x``.

    ``x`` and ``y`` are ``[points]``, ``x`` increasing. Every piece spans at least
    ``shortest`` intervals between points. ``rising`` admits a single break only
    where the slope increases. ``None`` where no break is possible.
    """
    # Scaled to [0, 1]: steps of 1e5 beside a column of ones would be badly conditioned.
    unit = (x - x[0]) / (x[-1] - x[0]) if len(x) > 1 else np.zeros(1)
    found = _best_breaks(unit, y, breaks, shortest, rising) if breaks else ()
    if found is None:
        return None
    hinges = [np.maximum(unit - unit[at], 0.0) for at in found]
    design = np.column_stack([np.ones_like(unit), unit, *hinges])
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    slopes = np.cumsum(coefficients[1:]) / (x[-1] - x[0] if len(x) > 1 else 1.0)
    return BrokenLine(found, slopes, y - design @ coefficients)
