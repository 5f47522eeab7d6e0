"""Are the revisions what their names say? Looked at before anything is concluded from them.

Hubs have served the final weights under early names, single stale shards, and steps in
each other's place. Equal weights and equal tensors are found by their hashes, and the rest
by distances: a training run is a path, so a revision belongs between its neighbours.
``findings.FINDINGS`` says what is looked for; thresholds are the constants beside each search.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from flatminima.errors import UserError
from flatminima.revisions.findings import MISSING, PRESENT, Found
from flatminima.revisions.fingerprints import WHOLE, distances
from flatminima.revisions.weight_paths import misplaced_blocks, swapped_pairs

# The first update of Pythia has a learning rate of zero, so these two are the same model.
ALWAYS_EQUAL = {0, 1}
_SMALLEST_TENSOR = 16  # weights; a scalar may take the same value twice
# Of a tensor's norm. In half precision weights near 1 move in steps of 0.001 or, in bfloat16,
# of 0.008: early in training they go to and fro between two of them.
_ROUNDING = 0.01
_NEAR_THE_END = 0.5  # of the distance to the nearer neighbour


def examine(revisions: pd.DataFrame, fingerprints: pd.DataFrame) -> list[Found]:
    """Everything that is wrong with a suite's revisions; ``UserError`` if there are none.

    ``revisions`` has the columns step, status, reason and weights_sha256, ``fingerprints``
    those of ``fingerprints.fingerprint_checkpoint``.
    """
    here = revisions[revisions["status"] == PRESENT].sort_values("step")
    if here.empty:
        raise UserError("no revision of the suite could be had")
    found = [
        Found("missing", (int(row.step),), str(row.reason))
        for row in revisions[revisions["status"] == MISSING].itertuples()
    ]
    steps = [int(step) for step in here["step"]]
    tensors = fingerprints[fingerprints["tensor"] != WHOLE]
    for search in (_other_shapes, _equal_weights, _stale_tensors):
        more = list(search(here, tensors[tensors["step"].isin(steps)]))
        found += more
        explained = {step for one in more for step in one.steps}
        here = here[~here["step"].isin(explained)]
        steps = [step for step in steps if step not in explained]
    whole = fingerprints[fingerprints["tensor"] == WHOLE].set_index("step")
    chain = [step for step in steps if not (step == 1 and _same(here, 0, 1))]
    norms = np.sqrt(whole.loc[chain, "sum_of_squares"].to_numpy(float))
    return found + list(_out_of_place(chain, distances(fingerprints, chain), norms))


def _same(here: pd.DataFrame, one: int, other: int) -> bool:
    chosen = here[here["step"].isin((one, other))]
    return len(chosen) == 2 and chosen["weights_sha256"].nunique() == 1


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


def _out_of_place(chain: Sequence[int], apart: np.ndarray, norms: np.ndarray) -> Iterator[Found]:
    """What the path through ``chain`` shows: L2 distances ``[chain, chain]`` and norms."""
    steps = np.array(chain)
    order, pairs = swapped_pairs(steps, apart)
    for one, other in pairs:
        reason = "each lies between the other's neighbours"
        yield Found("swapped_steps", (chain[one], chain[other]), reason)
    end = len(order) - 1
    for block, jump in misplaced_blocks(order, steps, apart, norms):
        wrong = tuple(sorted(chain[order[at]] for at in block))
        to_end = max(apart[order[at], order[end]] for at in block)
        if end not in block and to_end < _NEAR_THE_END * jump:
            reason = f"much nearer to step {chain[order[end]]} than to the steps around"
            yield Found("final_weights_early", wrong, reason)
        else:
            yield Found("foreign_series", wrong, "far from the steps around")
