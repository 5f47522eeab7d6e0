"""Do the weights of each revision (a published checkpoint of a run) belong to its step?

This is examined before anything is concluded from them. Hubs have served the final weights
under early names, single outdated shards, and two steps in each other's place. Equal weights
and equal tensors are found by their hashes. Everything else is found by distances: a training
run is a path through weight space, so a revision belongs between its neighbours.

Each threshold lies between what a healthy path gives (a walk with independent steps, or a
straight line) and what the fault gives. If two neighbours are in each other's place, putting them
right shrinks the four distances around them to 0.78 (independent steps) or 0.6
(straight line) of what they were. Exchanging two neighbours in their right places makes the
distances grow to 1.27 or more. Weights of another run are about sqrt(2) times their norm away,
several times as far as neighbouring revisions are from each other.

Few revisions from all over a run are also far apart, above all at its start. Of random choices
of ``mini``'s 154 healthy steps, a block at an end is named in 6 % of choices of 8, in 2 % of
10, and in fewer than 1 in 500 from ``SURE`` revisions on. Of evenly spaced revisions no block
is named. Below ``SURE`` revisions a block at an end is therefore only a warning. A block
between two parts that are close to each other is never named by chance, and counts as sure
whatever the number (tests/test_integrity.py measures all of this).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from flatminima.absent_steps import MISSING, PRESENT
from flatminima.errors import UserError

# Columns of a table of revisions that contain integers, and gaps.
COUNT_COLUMNS = ["bytes", "n_tensors", "n_weights"]
WHOLE_MODEL = "all"  # the row of a fingerprint that describes all tensors together

# The first update of Pythia has a learning rate of zero, so these two are the same model.
ALWAYS_EQUAL = {0, 1}
FEWEST = 5  # revisions; a path through fewer shows nothing
SURE = 16  # revisions; a finding along a path through fewer may be chance
_SMALLEST_TENSOR = 16  # weights; a scalar may take the same value twice
# Of a tensor's norm. In half precision weights near 1 move in steps of 0.001 or, in bfloat16,
# of 0.008. Early in training they go back and forth between two such values.
_ROUNDING = 0.01
_NEAR_THE_END = 0.5  # of the distance to the nearer neighbour
_SWAP_SHRINKS_TO = 0.92  # of the distances around two revisions
_MOST_SWAPS = 20
_JUMP = 3.0  # times the median of the distances around it
_WINDOW = 5  # distances on either side
_BRIDGE = 0.9  # of the dissimilarity across the jumps; two parts of one run are closer than this


class IntegrityError(UserError):
    """Revisions that do not match their names, in one line."""


@dataclass(frozen=True)
class Finding:
    """One finding: its kind (a key of ``integrity``), the steps it is about, and the reason.

    A finding that is not ``sure`` may be chance and never stops a run.
    """

    kind: str
    steps: tuple[int, ...]
    reason: str
    sure: bool = True

    def line(self, grid: Sequence[int]) -> str:
        """``swapped_steps: steps 8, 16 (reason)``; neighbours on the grid are ``40 to 120``."""
        position = sorted(grid).index
        # Along consecutive grid steps, grid position minus rank is constant.
        runs = [
            [str(step) for _, step in run]
            for _, run in groupby(
                enumerate(sorted(self.steps)), key=lambda ranked: position(ranked[1]) - ranked[0]
            )
        ]
        steps = ", ".join(
            f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs
        )
        noun = "steps" if len(self.steps) > 1 else "step"
        return f"{self.kind}: {noun} {steps} ({self.reason})"


def decide(
    findings: Sequence[Finding], severity: Mapping[str, str], *, grid: Sequence[int], key: str
) -> list[str]:
    """Lines of the findings to warn of; raises ``IntegrityError`` if a finding stops the run.

    ``severity`` maps kinds to stop, warn or ignore. ``key`` is the configuration key of
    ``severity``.
    """
    stops = [finding for finding in findings if severity[finding.kind] == "stop" and finding.sure]
    if stops:
        kinds = dict.fromkeys(finding.kind for finding in stops)
        keys = ", ".join(f"{key}.{kind}" for kind in kinds)
        lines = "; ".join(finding.line(grid) for finding in stops)
        raise IntegrityError(
            f"revisions do not match their names: {lines}. To continue in spite of it, set "
            f"config key {keys} to warn or ignore"
        )
    return [finding.line(grid) for finding in findings if severity[finding.kind] != "ignore"]


def examine(revisions: pd.DataFrame, fingerprints: pd.DataFrame) -> list[Finding]:
    """Everything that is wrong with a suite's revisions.

    ``revisions`` has the columns step, status, reason and weights_sha256, ``fingerprints``
    those of ``revisions.fingerprint_checkpoint``. Raises ``UserError`` if no revision is present.
    """
    is_present = revisions["status"] == PRESENT
    hashes = revisions[is_present].set_index("step")["weights_sha256"].sort_index()
    if hashes.empty:
        raise UserError("no revision of the suite is available")

    findings = [
        Finding("missing", (int(row.step),), str(row.reason))
        for row in revisions[revisions["status"] == MISSING].itertuples()
    ]
    # A revision with a finding takes no part in the searches after it.
    is_model = fingerprints["tensor"] == WHOLE_MODEL
    for search in (_other_shapes, _equal_weights, _stale_tensors):
        tensors = fingerprints[~is_model & fingerprints["step"].isin(hashes.index)]
        new_findings = list(search(hashes, tensors))
        findings += new_findings
        hashes = hashes.drop([step for finding in new_findings for step in finding.steps])

    # Steps 0 and 1 may be the same model. On the path that is one revision.
    if 0 in hashes and 1 in hashes and hashes[0] == hashes[1]:
        hashes = hashes.drop(1)
    chain = hashes.index.tolist()
    squares = fingerprints[is_model].set_index("step").loc[chain, "sum_of_squares"]
    norms = np.sqrt(squares).to_numpy()
    findings += out_of_place(chain, distances(fingerprints, chain), norms)
    return findings


def distances(fingerprints: pd.DataFrame, steps: Sequence[int]) -> np.ndarray:
    """Estimated L2 distance of all weights between each two of ``steps``, ``[steps, steps]``.

    Exactly zero for equal weights.
    """
    model_rows = fingerprints[fingerprints["tensor"] == WHOLE_MODEL].set_index("step")
    sketches = np.stack(
        [np.asarray(model_rows["sketch"][step], dtype=np.float64) for step in steps]
    )
    return np.stack([np.sqrt(np.square(sketches - sketch).sum(axis=1)) for sketch in sketches])


# ---- by hashes -------------------------------------------------------------------------------
# Each search gets the hashes of all weights by step, and the fingerprints of their tensors.


def _other_shapes(hashes: pd.Series, tensors: pd.DataFrame) -> Iterator[Finding]:
    """Revisions whose tensors have other names or shapes than those of most revisions."""
    ordered = tensors.sort_values(["step", "tensor"])
    names_and_shapes = ordered["tensor"] + " " + ordered["shape"]
    layout = names_and_shapes.groupby(ordered["step"]).agg("; ".join)
    # The commonest layout; value_counts sorts by frequency.
    usual_layout = layout.value_counts().index[0]
    odd_steps = tuple(layout.index[layout != usual_layout].tolist())
    if odd_steps:
        yield Finding(
            "foreign_series", odd_steps, "tensors of other names or shapes than the others'"
        )


def _equal_weights(hashes: pd.Series, tensors: pd.DataFrame) -> Iterator[Finding]:
    """Revisions that have all weights in common."""
    last = int(hashes.index[-1])
    for _, equal in hashes.groupby(hashes, sort=False):
        *earlier, latest = equal.index.tolist()
        # The last revision is the one that hubs serve by mistake under other names.
        if earlier and latest == last:
            yield Finding("final_weights_early", tuple(earlier), f"the weights of step {last}")
        elif earlier and latest not in ALWAYS_EQUAL:
            yield Finding("duplicate", (*earlier, latest), "the same weights")


def _stale_tensors(hashes: pd.Series, tensors: pd.DataFrame) -> Iterator[Finding]:
    """Pairs of revisions that share a tensor which the revisions between them do not have."""
    last = int(hashes.index[-1])
    shared_tensors = Counter()  # by pair of steps
    large_tensors = tensors[tensors["n_weights"] >= _SMALLEST_TENSOR]
    for _, rows in large_tensors.groupby("tensor"):
        by_step = rows.set_index("step").sort_index()
        for _, equal in by_step.groupby("sha256"):
            # A tensor may not have moved yet, or may be frozen. Only one that moves away and comes
            # back exactly is stale.
            for first, second in pairwise(equal.index.tolist()):
                if _moves_between(by_step, first, second):
                    shared_tensors[first, second] += 1

    tensor_count = tensors["tensor"].nunique()
    for (first, second), count in sorted(shared_tensors.items()):
        share = f"{count} of {tensor_count} tensors"
        if second == last:
            yield Finding("stale_shard", (first,), f"{share} are those of step {second}")
        else:
            reason = f"share {share}, which steps between them do not have"
            yield Finding("stale_shard", (first, second), reason)


def _moves_between(by_step: pd.DataFrame, first: int, second: int) -> bool:
    """Whether a tensor is elsewhere between two steps, by more than rounding."""
    start = np.asarray(by_step["sketch"][first])
    norm = np.sqrt(by_step["sum_of_squares"][first])
    # Label slices of pandas include both ends.
    between = by_step["sketch"].loc[first + 1 : second - 1]
    moved = [np.linalg.norm(np.asarray(sketch) - start) for sketch in between]
    return bool(max(moved, default=0.0) > _ROUNDING * norm)


# ---- by the path -----------------------------------------------------------------------------


def out_of_place(chain: Sequence[int], apart: np.ndarray, norms: np.ndarray) -> Iterator[Finding]:
    """Findings along the path through the steps ``chain``.

    ``apart`` are L2 distances ``[chain, chain]``, ``norms`` L2 norms ``[chain]``.
    """
    if len(chain) < FEWEST:
        return
    steps = np.array(chain)
    order = np.arange(len(chain))  # which revision is at each place of the path

    # Exchanged revisions are put right first, so that they are not jumps below.
    for _ in range(_MOST_SWAPS):
        pair = _best_swap(steps, apart[np.ix_(order, order)])
        if not pair:
            break
        yield Finding(
            "swapped_steps", tuple(steps[pair].tolist()), "each lies between the other's neighbours"
        )
        # A list as an index: both entries are exchanged at once.
        order[pair] = order[pair[::-1]]

    apart = apart[np.ix_(order, order)]
    norms = norms[order]
    end = len(order) - 1
    for block in _misplaced_blocks(steps, apart, norms):
        kind = "foreign_series"
        reason = "far from the steps around"
        ends_elsewhere = end not in block.places
        if ends_elsewhere and apart[block.places, end].max() < _NEAR_THE_END * block.jump:
            kind = "final_weights_early"
            reason = f"much nearer to step {chain[order[end]]} than to those around"
        sure = block.is_inside_run or len(chain) >= SURE
        if not sure:
            reason += f"; {len(chain)} revisions are too few to be sure"
        yield Finding(kind, tuple(sorted(steps[order[block.places]].tolist())), reason, sure)


def _jumps(steps: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Places of distances that are much larger than the distances around them.

    ``steps`` is ``[revisions]``, ``edges`` are the distances between neighbours. A jump must be
    large in itself and per training step, so that uneven spacing is not a jump. The first
    distance is left out if step 0 is followed by a longer pause than is usual after it.
    """

    def median_around(numbers: np.ndarray) -> np.ndarray:
        around = pd.Series(numbers).rolling(2 * _WINDOW + 1, center=True, min_periods=1)
        return around.median().to_numpy()

    pauses = np.diff(steps)
    pace = edges / pauses
    jumps = (edges > _JUMP * median_around(edges)) & (pace > _JUMP * median_around(pace))
    # Step 0 is random weights, far from all others. Only after a usual pause is that distance a
    # jump.
    jumps[0] &= pauses[0] < median_around(pauses)[0]
    return np.flatnonzero(jumps)


def _best_swap(steps: np.ndarray, apart: np.ndarray) -> list[int]:
    """Places of the two revisions whose exchange shortens the path most; empty if none does.

    An exchange is judged by the distances around each of the two revisions, as a fraction of
    the distances before. The larger fraction counts: both must be nearer to their
    neighbours. After the exchange there must be no jump beside either.
    """
    # around[place, revision]: distances to both neighbours, if the revision were at this place.
    # Rows of zeros at both ends: the first and the last place have one neighbour.
    padded = np.pad(apart, ((1, 1), (0, 0)))
    around = padded[:-2] + padded[2:]
    now = np.diagonal(around)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal weights have distance 0
        fraction = around / now[:, np.newaxis]
        larger_fraction = np.maximum(fraction, fraction.T)

        # Two neighbours have a distance in common, which an exchange does not change. It is
        # counted twice in ``now`` and not at all in ``around``.
        left = np.arange(len(apart) - 1)
        right = left + 1
        shared = np.diagonal(apart, offset=1)
        exchanged = around[left, right] + around[right, left] + shared
        larger_fraction[left, right] = exchanged / (now[:-1] + now[1:] - shared)

    candidates = np.argwhere(np.triu(larger_fraction <= _SWAP_SHRINKS_TO, k=1)).tolist()
    for pair in sorted(candidates, key=lambda pair: larger_fraction[*pair]):
        order = np.arange(len(apart))
        order[pair] = pair[::-1]
        jumps = _jumps(steps, apart[order[:-1], order[1:]])
        # The edge with number n joins the places n and n + 1.
        adjacent_edges = {edge for place in pair for edge in (place - 1, place)}
        if adjacent_edges.isdisjoint(jumps.tolist()):
            return pair
    return []


class _Block(NamedTuple):
    """Neighbouring places of the path that are far from the run."""

    places: range
    jump: float  # the shorter of the distances to the run at both of its sides
    is_inside_run: bool  # whether the run continues beyond the block


def _misplaced_blocks(steps: np.ndarray, apart: np.ndarray, norms: np.ndarray) -> Iterator[_Block]:
    """Blocks of the path that do not belong to the run.

    ``steps`` and ``norms`` are ``[revisions]``, ``apart`` ``[revisions, revisions]``.
    """
    # Dissimilarity is the squared distance as a fraction of the sum of both squared norms. It
    # is 1 for weights that have nothing in common.
    dissimilarity = np.square(apart) / np.add.outer(np.square(norms), np.square(norms))

    # Jumps cut the path into pieces. The longest piece belongs to the run for certain. From
    # there we walk to both ends of the path; pieces to the left are read backwards, so that
    # each walk leaves a piece by its last place and enters the next by its first.
    cuts = _jumps(steps, np.diagonal(apart, offset=1)) + 1
    pieces = [range(start, stop) for start, stop in pairwise([0, *cuts, len(apart)])]
    longest = max(range(len(pieces)), key=lambda number: len(pieces[number]))
    to_the_right = pieces[longest:]
    to_the_left = [piece[::-1] for piece in pieces[longest::-1]]

    for walk in (to_the_right, to_the_left):
        run = walk[0]  # the last piece that belongs to the run
        skipped = []  # pieces after it, each with the jump by which the walk enters it
        for previous, piece in pairwise(walk):
            skipped.append((piece, (previous[-1], piece[0])))
            *between, (_, jump_to_piece) = skipped
            # A walk that comes back to the run lands near the place where it left: nearer than
            # the sides of any jump on the way are to each other. Then the pieces between are a
            # block, and this piece continues the run.
            least_dissimilar_jump = min(dissimilarity[jump] for _, jump in skipped)
            if between and dissimilarity[run[-1], piece[0]] < _BRIDGE * least_dissimilar_jump:
                for block, jump in between:
                    yield _Block(block, min(apart[jump], apart[jump_to_piece]), True)
                run = piece
                skipped = []
        # Pieces after which the run never came back.
        for block, jump in skipped:
            yield _Block(block, apart[jump], False)


# ---- suite.csv -------------------------------------------------------------------------------


def suite_table(
    revisions: pd.DataFrame, fingerprints: pd.DataFrame, findings: Sequence[Finding], suite: str
) -> pd.DataFrame:
    """The columns of ``suite.csv``: every revision, how far it moved, and its findings.

    ``duplicate_of`` is the first earlier step with the same weights. Pythia's steps 0 and 1 have
    the same weights, since the first update has a learning rate of zero. ``distance_to_previous``
    is the estimated L2 distance of all weights to the previous present revision, divided by the
    norm of that revision. Sketches estimate the distance with a standard error of 1 %. Equal
    weights have a distance of exactly 0.
    """
    counts = dict.fromkeys(COUNT_COLUMNS, "Int64")
    table = revisions.sort_values("step", ignore_index=True).astype(counts)
    table.insert(0, "suite", suite)
    present_steps = table.loc[table["status"] == PRESENT, "step"].tolist()

    # How far each present revision moved from the one before it, relative to that one's norm.
    model_rows = fingerprints[fingerprints["tensor"] == WHOLE_MODEL].set_index("step")
    norms = np.sqrt(model_rows.loc[present_steps, "sum_of_squares"].to_numpy())
    to_previous = np.diagonal(distances(fingerprints, present_steps), offset=1)
    previous_norms = np.where(norms[:-1] > 0.0, norms[:-1], np.nan)  # all zero: no scale
    relative_distance = pd.Series(to_previous / previous_norms, index=present_steps[1:])

    first_step = table.groupby("weights_sha256")["step"].transform("min")
    kinds_by_step = {
        step: [finding.kind for finding in findings if step in finding.steps]
        for step in table["step"]
    }
    # Four digits: a sketch does not give more.
    rounded_distance = relative_distance.map(lambda distance: float(f"{distance:.4g}"))
    return table.assign(
        duplicate_of=first_step.where(first_step < table["step"]).astype("Int64"),
        distance_to_previous=table["step"].map(rounded_distance),
        # A step may have several findings of one kind; the kind is listed once.
        findings=[" ".join(dict.fromkeys(kinds_by_step[step])) for step in table["step"]],
    )
