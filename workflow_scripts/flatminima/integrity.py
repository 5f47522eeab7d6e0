"""Are the revisions what their names say? Looked at before anything is concluded from them.

Hubs have served the final weights under early names, single stale shards, and steps in
each other's place. Equal weights and equal tensors are found by their hashes, and the rest
by distances: a training run is a path through weight space, so a revision belongs between
its neighbours.

Thresholds of the path lie between what a walk with independent steps and one in a straight
line give and what the fault gives. For two neighbours in each other's place the four
distances around them shrink to 0.78 (independent steps) or 0.6 (straight line) of what they
were once they are put right; for neighbours in their right place they grow to 1.27 or more.
Weights of another run are about sqrt(2) times their norm away, several times as far as
neighbouring revisions are from each other.

Few revisions from all over a run lie far apart as well, above all at its start. Of random
choices of ``mini``'s 154 healthy steps the path names a block at an end in 6 % of choices of
8, in 2 % of 10, in fewer than 1 in 500 from ``SURE`` revisions on, and in none that are
evenly spaced; below ``SURE`` that is a warning and stops nothing. A block between two parts
that lie close to each other is named in none, and is sure whatever the number
(tests/test_integrity.py measures all this).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from flatminima.errors import UserError
from flatminima.missing import MISSING, PRESENT

FINDINGS = {
    "duplicate": "the same weights under two steps",
    "final_weights_early": "the weights of the end of training under an earlier step",
    "stale_shard": "some tensors of another step among those of its own",
    "swapped_steps": "two steps in each other's place",
    "foreign_series": "weights of another training run",
    "missing": "a revision that cannot be had",
}
SEVERITIES = ("stop", "warn", "ignore")
DEFAULT_SEVERITY = dict.fromkeys(FINDINGS, "stop") | {"missing": "warn"}
WHOLE = "all"  # the row of a fingerprint that is about a checkpoint as a whole

# The first update of Pythia has a learning rate of zero, so these two are the same model.
ALWAYS_EQUAL = {0, 1}
_SMALLEST_TENSOR = 16  # weights; a scalar may take the same value twice
# Of a tensor's norm. In half precision weights near 1 move in steps of 0.001 or, in bfloat16,
# of 0.008: early in training they go to and fro between two of them.
_ROUNDING = 0.01
_NEAR_THE_END = 0.5  # of the distance to the nearer neighbour
FEWEST = 5  # revisions, below which a path shows nothing
SURE = 16  # revisions, below which what a path shows may be chance
_SWAP_SHRINKS_TO = 0.92  # of the distances around two revisions
_MOST_SWAPS = 20
_JUMP = 3.0  # times the median of the distances around it
_WINDOW = 5  # distances on either side
_BRIDGE = 0.9  # of how unlike both sides of the jumps are, at most, within one run


class IntegrityError(UserError):
    """Revisions that are not what their names say, in one line."""


@dataclass(frozen=True)
class Found:
    """One finding: its kind (a key of ``FINDINGS``), the steps it is about, and why.

    One that is not ``sure`` may be chance and never stops a run.
    """

    kind: str
    steps: tuple[int, ...]
    reason: str
    sure: bool = True

    def line(self, grid: Sequence[int]) -> str:
        """For a message: ``swapped_steps: steps 8, 16 (…)``; ``grid`` is the suite's steps."""
        word = "step" if len(self.steps) == 1 else "steps"
        return f"{self.kind}: {word} {name_steps(self.steps, grid)} ({self.reason})"


def name_steps(steps: Sequence[int], grid: Sequence[int]) -> str:
    """``0, 8, 40 to 120``: runs of three or more neighbours on the grid by their ends."""
    place = {step: at for at, step in enumerate(sorted(grid))}
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and place[step] == place[runs[-1][-1]] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(words)


def decide(
    found: Sequence[Found], severity: Mapping[str, str], *, grid: Sequence[int], key: str
) -> list[str]:
    """Lines of what is only warned of; ``IntegrityError`` where a finding is to stop the run.

    ``severity`` maps kinds to ``SEVERITIES``, the default for those it lacks; ``key`` is
    where the configuration has it; ``grid`` is the suite's steps.
    """
    chosen = {**DEFAULT_SEVERITY, **severity}
    stops = [one for one in found if chosen[one.kind] == "stop" and one.sure]
    if stops:
        keys = ", ".join(f"{key}.{kind}" for kind in dict.fromkeys(one.kind for one in stops))
        said = "; ".join(one.line(grid) for one in stops)
        raise IntegrityError(
            f"revisions are not what their names say: {said}. To go on in spite of it, set "
            f"config key {keys} to warn or ignore"
        )
    return [one.line(grid) for one in found if chosen[one.kind] != "ignore"]


def examine(revisions: pd.DataFrame, fingerprints: pd.DataFrame) -> list[Found]:
    """Everything that is wrong with a suite's revisions; ``UserError`` if there are none.

    ``revisions`` has the columns step, status, reason and weights_sha256, ``fingerprints``
    those of ``revisions.fingerprint_checkpoint``.
    """
    here = revisions[revisions["status"] == PRESENT].sort_values("step")
    if here.empty:
        raise UserError("no revision of the suite could be had")
    found = [
        Found("missing", (int(row.step),), str(row.reason))
        for row in revisions[revisions["status"] == MISSING].itertuples()
    ]
    tensors = fingerprints[fingerprints["tensor"] != WHOLE]
    for search in (_other_shapes, _equal_weights, _stale_tensors):
        more = list(search(here, tensors[tensors["step"].isin(here["step"])]))
        found += more
        explained = {step for one in more for step in one.steps}
        here = here[~here["step"].isin(explained)]
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")
    digests = dict(zip(here["step"].tolist(), here["weights_sha256"], strict=True))
    same = 0 in digests and digests.get(1) == digests[0]
    chain = [step for step in digests if not (step == 1 and same)]
    norms = np.sqrt(whole.loc[chain, "sum_of_squares"].to_numpy(float))
    return found + list(out_of_place(chain, distances(fingerprints, chain), norms))


def distances(fingerprints: pd.DataFrame, steps: Sequence[int]) -> np.ndarray:
    """Estimated L2 distance of all weights between each two of ``steps``, ``[steps, steps]``.

    Exactly zero for equal weights.
    """
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")["sketch"]
    sketches = np.stack([np.asarray(whole[step], dtype=np.float64) for step in steps])
    return np.stack([np.sqrt(np.square(sketches - one).sum(axis=1)) for one in sketches])


# By hashes


def _other_shapes(here: pd.DataFrame, tensors: pd.DataFrame) -> Iterator[Found]:
    """Revisions whose tensors have other names or shapes than those of most."""
    tensors = tensors.sort_values(["step", "tensor"])
    named = (tensors["tensor"] + " " + tensors["shape"]).groupby(tensors["step"]).agg("; ".join)
    usual = named.value_counts().index[0]
    odd = tuple(int(step) for step in named.index[named != usual])
    if odd:
        yield Found("foreign_series", odd, "tensors of other names or shapes than the others'")


def _equal_weights(here: pd.DataFrame, tensors: pd.DataFrame) -> Iterator[Found]:
    last = int(here["step"].iloc[-1])
    for _, group in here.groupby("weights_sha256", sort=False):
        steps = {int(step) for step in group["step"]}
        if last in steps and len(steps) > 1:
            early = tuple(sorted(steps - {last}))
            yield Found("final_weights_early", early, f"the weights of step {last}")
        elif len(steps - ALWAYS_EQUAL) and len(steps) > 1:
            yield Found("duplicate", tuple(sorted(steps)), "the same weights")


def _stale_tensors(here: pd.DataFrame, tensors: pd.DataFrame) -> Iterator[Found]:
    """Pairs of revisions that share a tensor which those between them do not have."""
    place = {int(step): at for at, step in enumerate(here["step"])}
    last = int(here["step"].iloc[-1])
    large = tensors[(tensors["n_weights"] >= _SMALLEST_TENSOR) & tensors["step"].isin(place)]
    shared: dict[tuple[int, int], int] = {}
    for _, rows in large.sort_values("step").groupby("tensor"):
        for _, steps in rows.groupby("sha256")["step"]:
            for one, other in pairwise(map(int, steps)):
                apart = place[other] > place[one] + 1
                if apart and _moves_between(rows.set_index("step"), one, other):
                    shared[one, other] = shared.get((one, other), 0) + 1
    count = tensors["tensor"].nunique()
    for (one, other), same in sorted(shared.items()):
        what = f"{same} of {count} tensors"
        if other == last:
            yield Found("stale_shard", (one,), f"{what} are those of step {other}")
        else:
            reason = f"share {what}, which steps between them do not have"
            yield Found("stale_shard", (one, other), reason)


def _moves_between(rows: pd.DataFrame, one: int, other: int) -> bool:
    """Whether a tensor is somewhere else between two steps, and not just rounded otherwise."""
    start = np.asarray(rows.loc[one, "sketch"])
    between = rows[(rows.index > one) & (rows.index < other)]["sketch"]
    away = max(np.linalg.norm(np.asarray(sketch) - start) for sketch in between)
    return away > _ROUNDING * np.sqrt(rows.loc[one, "sum_of_squares"])


# By the path


def out_of_place(chain: Sequence[int], apart: np.ndarray, norms: np.ndarray) -> Iterator[Found]:
    """What the path through the steps ``chain`` shows.

    ``apart`` are L2 distances ``[chain, chain]``, ``norms`` L2 norms ``[chain]``.
    """
    steps = np.array(chain)
    order, pairs = swapped_pairs(steps, apart)
    for one, other in pairs:
        reason = "each lies between the other's neighbours"
        yield Found("swapped_steps", (chain[one], chain[other]), reason)
    end = len(order) - 1
    for block, jump, within in misplaced_blocks(order, steps, apart, norms):
        wrong = tuple(sorted(chain[order[at]] for at in block))
        to_end = max(apart[order[at], order[end]] for at in block)
        kind, reason = "foreign_series", "far from the steps around"
        if end not in block and to_end < _NEAR_THE_END * jump:
            last = chain[order[end]]
            kind, reason = "final_weights_early", f"much nearer to step {last} than to those around"
        sure = within or len(chain) >= SURE
        if not sure:
            reason += f"; {len(chain)} revisions are too few to be sure"
        yield Found(kind, wrong, reason, sure)


def _around(order: list[int], apart: np.ndarray, *places: int) -> float:
    """Sum of the distances between neighbours that involve ``places`` of a path."""
    edges = {edge for at in places for edge in (at - 1, at) if 0 <= edge < len(order) - 1}
    return sum(apart[order[edge], order[edge + 1]] for edge in edges)


def _exchanged(order: list[int], one: int, other: int) -> list[int]:
    changed = list(order)
    changed[one], changed[other] = order[other], order[one]
    return changed


def _shrinks_to(order: list[int], apart: np.ndarray, one: int, other: int) -> float:
    """What is left of the distances around two revisions that change places, as a fraction.

    Of the two the larger one counts, so that both must come to lie better.
    """
    changed = _exchanged(order, one, other)
    groups = [(one, other)] if other == one + 1 else [(one,), (other,)]
    left = []
    for places in groups:
        before = _around(order, apart, *places)
        left.append(_around(changed, apart, *places) / before if before > 0.0 else np.inf)
    return max(left)


def _edges(order: list[int], apart: np.ndarray) -> np.ndarray:
    return np.array([apart[one, other] for one, other in pairwise(order)])


def _jumps(steps: np.ndarray, edges: np.ndarray) -> np.ndarray:
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
        order = _exchanged(order, *pair)
        pairs.append(pair)
    return order, pairs


def _best_swap(order: list[int], steps: np.ndarray, apart: np.ndarray) -> tuple[int, int] | None:
    """Places of the two revisions whose exchange shortens the path most; neither may jump then."""
    candidates = sorted(
        (left, one, other)
        for one, other in combinations(range(len(order)), 2)
        if (left := _shrinks_to(order, apart, one, other)) <= _SWAP_SHRINKS_TO
    )
    for _, one, other in candidates:
        cuts = set(_jumps(steps, _edges(_exchanged(order, one, other), apart)))
        if not cuts & {one - 1, one, other - 1, other}:
            return one, other
    return None


def misplaced_blocks(
    order: list[int], steps: np.ndarray, apart: np.ndarray, norms: np.ndarray
) -> Iterator[tuple[range, float, bool]]:
    """Places in ``order`` that lie far from both sides, in blocks, with the shortest jump.

    The third is whether the run goes on beyond the block. ``order`` gives the revision at
    each place, ``steps`` the step of each place, ``norms`` the L2 norm of each revision.
    Jumps cut the path into pieces. The largest piece is the run itself; a piece beyond others
    belongs to it where the two are less unlike than the sides of the jumps between them.
    Unlike are two revisions by their squared distance as a fraction of the sum of their
    squared norms: 1 for weights that have nothing in common.
    """
    if len(order) < FEWEST:
        return
    edges = _edges(order, apart)
    unlike = np.square(apart) / np.add.outer(np.square(norms), np.square(norms))
    cuts = _jumps(steps, edges)
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
                yield from ((block, min(edges[jump], edges[cut]), True) for block, jump in aside)
                inner, aside = piece, []
            else:
                aside.append((piece, cut))
            at += direction
        yield from ((block, edges[jump], False) for block, jump in aside)
