"""A training run as a path through weight space: who stands in another's place, who is far off.

Thresholds lie between what a walk with independent steps and one in a straight line give
and what the fault gives. For two neighbours in each other's place the four distances
around them shrink to 0.78 (independent steps) or 0.6 (straight line) of what they were
once they are put right; for neighbours in their right place they grow to 1.27 or more.
Weights of another run are about sqrt(2) times their norm away, several times as far as
neighbouring revisions are from each other.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

FEWEST = 5  # revisions, below which a path shows nothing
_SWAP_SHRINKS_TO = 0.92  # of the distances around two revisions
_MOST_SWAPS = 20
_JUMP = 3.0  # times the median of the distances around it
_WINDOW = 5  # distances on either side
_BRIDGE = 0.9  # of how unlike both sides of the jumps are, at most, within one run


def _around(order: list[int], apart: np.ndarray, *places: int) -> float:
    """Sum of the distances between neighbours that involve ``places`` of a path."""
    edges = {edge for at in places for edge in (at - 1, at) if 0 <= edge < len(order) - 1}
    return sum(apart[order[edge], order[edge + 1]] for edge in edges)


def _shrinks_to(order: list[int], apart: np.ndarray, one: int, other: int) -> float:
    """What is left of the distances around two revisions that change places, as a share.

    Of the two the larger share counts, so that both must come to lie better.
    """
    changed = list(order)
    changed[one], changed[other] = order[other], order[one]
    groups = [(one, other)] if other == one + 1 else [(one,), (other,)]
    shares = []
    for places in groups:
        before = _around(order, apart, *places)
        shares.append(_around(changed, apart, *places) / before if before > 0.0 else np.inf)
    return max(shares)


def jumps(steps: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Places of distances that stand out among those around them.

    ``steps`` is ``[revisions]``, ``edges`` the distances between neighbours. A distance
    must stand out as it is and per training step, so that uneven spacing is no jump. Left
    out is the first one where step 0 is followed by a longer pause than is usual after it.
    """
    pace = edges / np.diff(steps)
    found = []
    for at in range(len(edges)):
        window = slice(max(0, at - _WINDOW), at + _WINDOW + 1)
        first = at == 0 and steps[1] - steps[0] >= np.median(np.diff(steps)[window])
        stands_out = all(values[at] > _JUMP * np.median(values[window]) for values in (edges, pace))
        if stands_out and not first:
            found.append(at)
    return np.array(found, dtype=int)


def _edges(order: list[int], apart: np.ndarray) -> np.ndarray:
    return np.array([apart[one, other] for one, other in pairwise(order)])


def _best_swap(order: list[int], steps: np.ndarray, apart: np.ndarray) -> tuple[int, int] | None:
    """Places of the two revisions whose exchange shortens the path most; neither may jump then."""
    shares = sorted(
        (share, one, other)
        for one, other in combinations(range(len(order)), 2)
        if (share := _shrinks_to(order, apart, one, other)) <= _SWAP_SHRINKS_TO
    )
    for _, one, other in shares:
        changed = list(order)
        changed[one], changed[other] = order[other], order[one]
        cuts = set(jumps(steps, _edges(changed, apart)))
        if not cuts & {one - 1, one, other - 1, other}:
            return one, other
    return None


def swapped_pairs(steps: np.ndarray, apart: np.ndarray) -> tuple[list[int], list[tuple[int, int]]]:
    """Order of the revisions with swaps undone, and the places of the pairs that were swapped.

    ``steps`` is ``[revisions]``, ``apart`` the distances ``[revisions, revisions]``, both in
    the order of the revisions' names.
    """
    order, pairs = list(range(len(apart))), []
    while len(order) >= FEWEST and len(pairs) < _MOST_SWAPS:
        pair = _best_swap(order, steps, apart)
        if pair is None:
            break
        one, other = pair
        order[one], order[other] = order[other], order[one]
        pairs.append(pair)
    return order, pairs


def misplaced_blocks(
    order: list[int], steps: np.ndarray, apart: np.ndarray, norms: np.ndarray
) -> Iterator[tuple[range, float]]:
    """Places in ``order`` that lie far from both sides, in blocks, with the shortest jump.

    ``order`` gives the revision at each place, ``steps`` the step of each place, ``norms``
    the L2 norm of each revision. Jumps cut the path into pieces. The largest piece is the
    run itself; a piece beyond others belongs to it where the two are less unlike than the
    sides of the jumps between them. Unlike are two revisions by their squared distance as
    a share of the sum of their squared norms: 1 for weights that have nothing in common.
    """
    if len(order) < FEWEST:
        return
    edges = _edges(order, apart)
    unlike = np.square(apart) / np.add.outer(np.square(norms), np.square(norms))
    cuts = jumps(steps, edges)
    bounds = [0, *(int(cut) + 1 for cut in cuts), len(order)]
    pieces = [range(a, b) for a, b in pairwise(bounds)]
    base = max(range(len(pieces)), key=lambda at: len(pieces[at]))
    for direction in (1, -1):
        inner, aside = pieces[base], []
        at = base + direction
        while 0 <= at < len(pieces):
            piece = pieces[at]
            near, far = (inner[-1], piece[0]) if direction == 1 else (inner[0], piece[-1])
            cut = cuts[at - 1 if direction == 1 else at]
            crossed = [*(jump for _, jump in aside), cut]
            strange = min(unlike[order[jump], order[jump + 1]] for jump in crossed)
            if aside and unlike[order[near], order[far]] < _BRIDGE * strange:
                yield from ((block, min(edges[jump], edges[cut])) for block, jump in aside)
                inner, aside = piece, []
            else:
                aside.append((piece, cut))
            at += direction
        yield from ((block, edges[jump]) for block, jump in aside)
