"""What the package ruptures finds on the series in which ``phases.RULE`` seeks its breaks.

Its dynamic programme with the cost ``linear`` fits straight lines that need not meet.
The cost ``clinear`` is no better check: it draws lines that meet through the noisy values
at the breaks, not through their least-squares fit.
"""

from importlib.metadata import version

import numpy as np
import ruptures
from ruptures.exceptions import BadSegmentationParameters

# Two points lie on a line exactly: pieces that short would cost nothing.
_SHORTEST = 3


def separate_lines(
    x: np.ndarray, y: np.ndarray, breaks: int, *, shortest: int = _SHORTEST
) -> list[float] | None:
    """Breaks of the least-squares straight lines, each given as the first x of the new line.

    ``x`` and ``y`` are ``[points]``, ``x`` increasing; every line takes at least
    ``shortest`` points, three or more. ``None`` where so many lines do not fit in.
    """
    if not breaks:
        return []
    # Scaled to [0, 1]: steps of 1e5 beside a column of ones would be badly conditioned.
    unit = (x - x[0]) / (x[-1] - x[0]) if len(x) > 1 else np.zeros(len(x))
    signal = np.column_stack([y, unit, np.ones_like(unit)])
    search = ruptures.Dynp(model="linear", min_size=max(shortest, _SHORTEST), jump=1)
    try:
        # The last of what ruptures returns is the number of points.
        found = search.fit(signal).predict(breaks)[:-1]
    except BadSegmentationParameters:
        return None
    return [x[at].item() for at in found]


def library_check(
    learning: tuple[np.ndarray, np.ndarray],
    growth: tuple[np.ndarray, np.ndarray],
    *,
    breaks: int,
    shortest: int,
) -> dict:
    """The entry ``library_check`` of ``phases.json``.

    ``learning`` is FP32 NLL up to convergence and ``growth`` ln(delta NLL) after rapid
    learning, each as steps and values; ``breaks`` is the number that the rule's own best
    fit of ``growth`` has. Breaks are steps at which a new line begins; ``None`` where the
    series is too short.
    """
    first = separate_lines(*learning, 1)
    return {
        "package": "ruptures",
        "version": version("ruptures"),
        "cost": "linear: straight lines that need not meet (Dynp)",
        "breaks_onset": separate_lines(*growth, breaks, shortest=shortest),
        "break_rapid_learning": first and first[0],
    }
