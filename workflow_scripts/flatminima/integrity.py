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

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import pandas as pd

from flatminima.absent_steps import MISSING, PRESENT
from flatminima.errors import UserError

# Columns of a table of revisions that hold whole numbers, also beside gaps.
COUNT_COLUMNS = ["bytes", "n_tensors", "n_weights"]
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
    """One finding: its kind (a key of ``integrity``), the steps it is about, and why.

    One that is not ``sure`` may be chance and never stops a run.
    """

    kind: str
    steps: tuple[int, ...]
    reason: str
    sure: bool = True

    def line(self, grid: Sequence[int]) -> str:
        """``swapped_steps: steps 8, 16 (…)``; neighbours on the suite's grid are ``40 to 120``."""
        place = sorted(grid).index
        runs = groupby(enumerate(sorted(self.steps)), key=lambda pair: place(pair[1]) - pair[0])
        named = [[str(step) for _, step in run] for _, run in runs]
        steps = ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(r) for r in named)
        return f"{self.kind}: step{'s' * (len(self.steps) > 1)} {steps} ({self.reason})"


def decide(
    found: Sequence[Found], severity: Mapping[str, str], *, grid: Sequence[int], key: str
) -> list[str]:
    """Lines of what is only warned of; ``IntegrityError`` where a finding is to stop the run.

    ``severity`` maps kinds to stop, warn or ignore; ``key`` is where the configuration has it.
    """
    stops = [one for one in found if severity[one.kind] == "stop" and one.sure]
    if stops:
        keys = ", ".join(f"{key}.{kind}" for kind in dict.fromkeys(one.kind for one in stops))
        said = "; ".join(one.line(grid) for one in stops)
        raise IntegrityError(
            f"revisions are not what their names say: {said}. To go on in spite of it, set "
            f"config key {keys} to warn or ignore"
        )
    return [one.line(grid) for one in found if severity[one.kind] != "ignore"]


def examine(revisions: pd.DataFrame, fingerprints: pd.DataFrame) -> list[Found]:
    """Everything that is wrong with a suite's revisions; ``UserError`` if there are none.

    ``revisions`` has the columns step, status, reason and weights_sha256, ``fingerprints``
    those of ``revisions.fingerprint_checkpoint``.
    """
    here = revisions[revisions["status"] == PRESENT].set_index("step")["weights_sha256"]
    if here.empty:
        raise UserError("no revision of the suite could be had")
    found = [
        Found("missing", (int(row.step),), str(row.reason))
        for row in revisions[revisions["status"] == MISSING].itertuples()
    ]
    here, whole = here.sort_index(), fingerprints["tensor"] == WHOLE
    for search in (_other_shapes, _equal_weights, _stale_tensors):
        more = list(search(here, fingerprints[~whole & fingerprints["step"].isin(here.index)]))
        found += more
        here = here.drop([step for one in more for step in one.steps])
    if here.get(1) == here.get(0, ""):
        here = here.drop(1)
    norms = np.sqrt(fingerprints[whole].set_index("step").loc[here.index, "sum_of_squares"])
    chain = here.index.tolist()
    return found + list(out_of_place(chain, distances(fingerprints, chain), norms.to_numpy()))


def distances(fingerprints: pd.DataFrame, steps: Sequence[int]) -> np.ndarray:
    """Estimated L2 distance of all weights between each two of ``steps``, ``[steps, steps]``.

    Exactly zero for equal weights.
    """
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")["sketch"]
    sketches = np.stack([np.asarray(whole[step], dtype=np.float64) for step in steps])
    return np.stack([np.sqrt(np.square(sketches - one).sum(axis=1)) for one in sketches])


# By hashes


def _other_shapes(here: pd.Series, tensors: pd.DataFrame) -> Iterator[Found]:
    """Revisions whose tensors have other names or shapes than those of most."""
    tensors = tensors.sort_values(["step", "tensor"])
    named = (tensors["tensor"] + " " + tensors["shape"]).groupby(tensors["step"]).agg("; ".join)
    if odd := tuple(named.index[named != named.value_counts().index[0]].tolist()):
        yield Found("foreign_series", odd, "tensors of other names or shapes than the others'")


def _equal_weights(here: pd.Series, tensors: pd.DataFrame) -> Iterator[Found]:
    last = int(here.index[-1])
    for _, group in here.groupby(here, sort=False):
        *early, latest = group.index.tolist()
        if early and latest == last:
            yield Found("final_weights_early", tuple(early), f"the weights of step {last}")
        elif early and latest not in ALWAYS_EQUAL:
            yield Found("duplicate", (*early, latest), "the same weights")


def _stale_tensors(here: pd.Series, tensors: pd.DataFrame) -> Iterator[Found]:
    """Pairs of revisions that share a tensor which those between them do not have."""
    last, shared = int(here.index[-1]), Counter()
    for _, rows in tensors[tensors["n_weights"] >= _SMALLEST_TENSOR].groupby("tensor"):
        rows = rows.set_index("step").sort_index()
        for _, same in rows.groupby("sha256"):
            for one, other in pairwise(same.index.tolist()):
                between = rows["sketch"].loc[one + 1 : other - 1]
                # Somewhere else in between, and not just rounded otherwise.
                start = np.asarray(rows["sketch"][one])
                away = [np.linalg.norm(np.asarray(sketch) - start) for sketch in between]
                norm = np.sqrt(rows["sum_of_squares"][one])
                shared[one, other] += max(away, default=0.0) > _ROUNDING * norm
    for (one, other), count in sorted((+shared).items()):
        what = f"{count} of {tensors['tensor'].nunique()} tensors"
        if other == last:
            yield Found("stale_shard", (one,), f"{what} are those of step {other}")
        else:
            reason = f"share {what}, which steps between them do not have"
            yield Found("stale_shard", (one, other), reason)


# By the path


def out_of_place(chain: Sequence[int], apart: np.ndarray, norms: np.ndarray) -> Iterator[Found]:
    """What the path through the steps ``chain`` shows.

    ``apart`` are L2 distances ``[chain, chain]``, ``norms`` L2 norms ``[chain]``.
    """
    if len(chain) < FEWEST:
        return
    steps, order, pairs = np.array(chain), np.arange(len(chain)), 0
    while pairs < _MOST_SWAPS and (pair := _best_swap(steps, apart[np.ix_(order, order)])):
        yield Found(
            "swapped_steps", tuple(steps[pair].tolist()), "each lies between the other's neighbours"
        )
        order[pair], pairs = order[pair[::-1]], pairs + 1
    apart, norms, end = apart[np.ix_(order, order)], norms[order], len(order) - 1
    for block, jump, within in _misplaced_blocks(steps, apart, norms):
        kind, reason = "foreign_series", "far from the steps around"
        if end not in block and apart[block, end].max() < _NEAR_THE_END * jump:
            last = chain[order[end]]
            kind, reason = "final_weights_early", f"much nearer to step {last} than to those around"
        sure = within or len(chain) >= SURE
        if not sure:
            reason += f"; {len(chain)} revisions are too few to be sure"
        yield Found(kind, tuple(sorted(steps[order[block]].tolist())), reason, sure)


def _jumps(steps: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Places of distances that stand out among those around them.

    ``steps`` is ``[revisions]``, ``edges`` the distances between neighbours. A distance
    must stand out as it is and per training step, so that uneven spacing is no jump. Left
    out is the first one where step 0 is followed by a longer pause than is usual after it.
    """

    def usual(values: np.ndarray) -> np.ndarray:
        around = pd.Series(values).rolling(2 * _WINDOW + 1, center=True, min_periods=1)
        return around.median().to_numpy()

    pauses = np.diff(steps)
    pace = edges / pauses
    jumps = (edges > _JUMP * usual(edges)) & (pace > _JUMP * usual(pace))
    jumps[0] &= pauses[0] < usual(pauses)[0]
    return np.flatnonzero(jumps)


def _best_swap(steps: np.ndarray, apart: np.ndarray) -> list[int]:
    """Places of the two revisions whose exchange shortens the path most; nothing where none does.

    What counts is what is left of the distances around each of the two, as a fraction, and of
    both the larger one: both must come to lie better, and neither may jump then.
    """
    padded = np.pad(apart, ((1, 1), (0, 0)))
    around = padded[:-2] + padded[2:]  # [place, revision]: were the revision at this place
    now, one = np.diagonal(around), np.arange(len(apart) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal weights
        left = around / now[:, np.newaxis]
        left = np.maximum(left, left.T)
        # Neighbours share a distance, which stays as it is.
        shared = np.diagonal(apart, offset=1)
        both = around[one, one + 1] + around[one + 1, one] + shared
        left[one, one + 1] = both / (now[:-1] + now[1:] - shared)
    candidates = np.argwhere(np.triu(left <= _SWAP_SHRINKS_TO, k=1)).tolist()
    for pair in sorted(candidates, key=lambda pair: left[*pair]):
        order = np.arange(len(apart))
        order[pair] = pair[::-1]
        cuts = _jumps(steps, apart[order[:-1], order[1:]])
        if not {*cuts} & {place + side for place in pair for side in (-1, 0)}:
            return pair
    return []


def _misplaced_blocks(
    steps: np.ndarray, apart: np.ndarray, norms: np.ndarray
) -> Iterator[tuple[range, float, bool]]:
    """Places that lie far from both sides, in blocks, with the shortest jump.

    The third is whether the run goes on beyond the block. Jumps cut the path into pieces. The
    largest piece is the run itself; a piece beyond others belongs to it where the two are less
    unlike than the sides of the jumps between them. Unlike are two revisions by their squared
    distance as a fraction of the sum of their squared norms: 1 for weights that have nothing
    in common.
    """
    unlike = np.square(apart) / np.add.outer(np.square(norms), np.square(norms))
    cuts = _jumps(steps, np.diagonal(apart, offset=1)) + 1
    pieces = [range(start, stop) for start, stop in pairwise([0, *cuts, len(apart)])]
    base = max(range(len(pieces)), key=lambda at: len(pieces[at]))
    for walk in (pieces[base:], [piece[::-1] for piece in pieces[base::-1]]):
        run, aside = walk[0], []
        for before, piece in pairwise(walk):
            aside.append((piece, (before[-1], piece[0])))
            *passed, (_, jump) = aside
            strange = min(unlike[crossed] for _, crossed in aside)
            if passed and unlike[run[-1], piece[0]] < _BRIDGE * strange:
                yield from ((block, min(apart[j], apart[jump]), True) for block, j in passed)
                run, aside = piece, []
        yield from ((block, apart[jump], False) for block, jump in aside)


# The whole suite


def suite_table(
    revisions: pd.DataFrame, fingerprints: pd.DataFrame, findings: Sequence[Found], suite: str
) -> pd.DataFrame:
    """The columns of ``suite.csv``: every revision, how far it moved, and what is odd about it.

    ``duplicate_of`` is the first earlier step with the same weights; Pythia's steps 0 and 1 are
    the same, since the first update has a learning rate of zero. ``distance_to_previous`` is the
    estimated L2 distance of all weights to the previous revision that is there, relative to its
    norm, with the standard error of a sketch (1 %); exactly 0 for equal weights.
    """
    counts = dict.fromkeys(COUNT_COLUMNS, "Int64")
    table = revisions.sort_values("step", ignore_index=True).astype(counts)
    table.insert(0, "suite", suite)
    present_steps = table.loc[table["status"] == PRESENT, "step"].tolist()

    # How far each present revision moved from the one before it, relative to that one's norm.
    model_rows = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")
    norms = np.sqrt(model_rows.loc[present_steps, "sum_of_squares"].to_numpy())
    to_previous = np.diagonal(distances(fingerprints, present_steps), offset=1)
    previous_norms = np.where(norms[:-1] > 0.0, norms[:-1], np.nan)  # all zero: no scale
    relative_distance = pd.Series(to_previous / previous_norms, index=present_steps[1:])

    first_step = table.groupby("weights_sha256")["step"].transform("min")
    kinds_by_step = {
        step: [finding.kind for finding in findings if step in finding.steps]
        for step in table["step"]
    }
    rounded_distance = relative_distance.map(lambda distance: float(f"{distance:.4g}"))
    return table.assign(
        duplicate_of=first_step.where(first_step < table["step"]).astype("Int64"),
        distance_to_previous=table["step"].map(rounded_distance),
        findings=[" ".join(dict.fromkeys(kinds_by_step[step])) for step in table["step"]],
    )
