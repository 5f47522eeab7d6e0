"""Faults of hubs put into a training run, one by one: each is found, named and nothing else is."""

from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatminima.config.keys import EvenGrid, Integrity
from flatminima.integrity import (
    SURE,
    WHOLE_MODEL,
    Finding,
    IntegrityError,
    decide,
    examine,
    out_of_place,
    suite_table,
)

GRID = EvenGrid(powers_of_two=10, spacing=1000, last=40_000).revisions
TENSORS = 8
SIZE = 64


def walk(grid=GRID, *, seed: int = 0, straight: float = 0.3, half: bool = False) -> dict:
    """Weights by step, ``[TENSORS, SIZE]``: a warm-up, then steps that shrink to a tenth.

    Each update is partly noise and partly one direction (``straight``); in ``half``
    precision the first steps move few weights, or none.
    """
    random = np.random.default_rng(seed)
    weights = random.normal(0, 0.02, (TENSORS, SIZE))
    drift = random.normal(0, 1, (TENSORS, SIZE))
    path = {}
    before = 0
    for step in grid:
        rate = 1e-4 * min(1.0, step / 1430) * (0.1 + 0.9 * (1 - step / grid[-1]))
        done = step - before
        noise = random.normal(0, 1, (TENSORS, SIZE))
        update = rate * (np.sqrt(done * 100) * noise + straight * done * drift)
        weights = weights + (0.0 if step <= 1 else update)
        path[step] = weights.astype(np.float16) if half else weights.astype(np.float32)
        before = step
    return path


def tables(path: dict, missing: tuple = (), shapes: dict | None = None):
    """The tables of revisions and fingerprints; the sketch is the weights themselves."""
    revisions = []
    prints = []
    for step, weights in path.items():
        hashes = [str(hash(tensor.tobytes())) for tensor in weights]
        revisions.append((step, "present", "", "-".join(hashes)))
        shape = (shapes or {}).get(step, f"{SIZE}")
        squares = np.square(weights, dtype=np.float64).sum(axis=1)
        prints += [
            (step, f"t{i}", shape, SIZE, h, squares[i], weights[i].astype(float).tolist())
            for i, h in enumerate(hashes)
        ]
        flat_weights = weights.astype(float).ravel()
        prints.append(
            (step, WHOLE_MODEL, "", weights.size, "", squares.sum(), flat_weights.tolist())
        )
    revisions += [(step, "missing", "no such revision", None) for step in missing]
    columns = ["step", "tensor", "shape", "n_weights", "sha256", "sum_of_squares", "sketch"]
    columns_of_revisions = ["step", "status", "reason", "weights_sha256"]
    return pd.DataFrame(revisions, columns=columns_of_revisions), pd.DataFrame(
        prints, columns=columns
    )


def steps_by_kind(path: dict, **more) -> dict[str, list[tuple]]:
    """Steps by the kind of what is found."""
    kinds = defaultdict(list)
    for finding in examine(*tables(path, **more)):
        kinds[finding.kind].append(finding.steps)
    return kinds


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    straight=st.sampled_from([0.0, 0.05, 0.3, 2.0]),
    half=st.booleans(),
    powers=st.sampled_from([0, 10]),
    lost=st.sets(st.sampled_from(GRID[1:]), max_size=8),
)
def test_a_run_as_it_should_be_has_no_finding_but_its_holes(seed, straight, half, powers, lost):
    grid = EvenGrid(powers_of_two=powers, spacing=1000, last=40_000).revisions
    path = walk(grid, seed=seed, straight=straight, half=half)
    # In half precision the first updates change nothing: those steps are the same model.
    path = {s: w for s, w in path.items() if s in (0, 1) or s > 16 or not half}
    assert steps_by_kind(path) == {}
    path_without_lost = {step: weights for step, weights in path.items() if step not in lost}
    assert set(steps_by_kind(path_without_lost, missing=tuple(lost))) == (
        {"missing"} if lost else set()
    )


def test_steps_0_and_1_may_be_the_same_and_no_others():
    path = walk()
    assert np.array_equal(path[0], path[1]) and steps_by_kind(path) == {}
    assert steps_by_kind(path | {5000: path[3000]}) == {"duplicate": [(3000, 5000)]}
    assert steps_by_kind(path | {2: path[0]}) == {"duplicate": [(0, 1, 2)]}


def test_final_weights_under_early_steps():
    path = walk()
    random = np.random.default_rng(1)
    for early in ((64, 5000, 6000, 7000, 39_000), tuple(GRID[:-1])):  # all: an ignored branch
        faults = {step: path[40_000] for step in early}
        assert steps_by_kind(path | faults) == {"final_weights_early": [early]}
    for early in ((1000,), (8000,), (5000, 6000, 7000)):  # of the end, but not the final ones
        near = {s: path[40_000] + random.normal(0, 1e-4, (TENSORS, SIZE)) for s in early}
        faults = {step: weights.astype(np.float32) for step, weights in near.items()}
        assert steps_by_kind(path | faults) == {"final_weights_early": [early]}


def test_a_shard_of_another_step():
    path = walk()
    for tensors, step, other, steps in (
        (slice(1), 5000, 40_000, (5000,)),
        (slice(7), 5000, 40_000, (5000,)),
        (3, 9000, 5000, (5000, 9000)),
    ):
        mixed = path[step].copy()
        mixed[tensors] = path[other][tensors]
        assert steps_by_kind(path | {step: mixed}) == {"stale_shard": [steps]}


def test_a_tensor_that_stands_still_or_is_rounded_to_and_fro_is_not_stale():
    """A scale of the norms near 1 in half precision is the same at 16 and 64, not at 32."""
    path = {step: weights.copy() for step, weights in walk().items()}
    start = walk()[0][2]
    for step in GRID:
        path[step][0] = path[8][0] if step <= 64 else path[step][0]
        path[step][1] = path[30_000][1] if step >= 30_000 else path[step][1]
        path[step][2] = 1.0 if step <= 64 else 1.0 + path[step][2] - start
    path[32][2, 0] += 2.0**-10
    assert steps_by_kind(path) == {}


def test_two_steps_in_each_others_place():
    pairs = ((5000, 6000), (5000, 20_000), (64, 30_000), (512, 1000), (39_000, 40_000))
    for straight, (one, other) in product((0.0, 0.3), pairs):
        path = walk(straight=straight)
        swapped = path | {one: path[other], other: path[one]}
        assert steps_by_kind(swapped) == {"swapped_steps": [(one, other)]}


def test_weights_of_another_run():
    path = walk()
    other = walk(seed=1)
    for steps in (
        (4,),
        (5000,),
        (40_000,),
        tuple(range(5000, 12_001, 1000)),
        tuple(range(30_000, 40_001, 1000)),
        tuple(GRID[:5]),
    ):
        foreign = steps_by_kind(path | {step: other[step] for step in steps})["foreign_series"]
        assert foreign == [tuple(step for step in steps if step != 1)]
    kinds = steps_by_kind(path, shapes={3000: "8x8", 4000: "8x8"})
    assert kinds == {"foreign_series": [(3000, 4000)]}
    # Of few revisions nothing is said, and without any there is nothing to look at.
    assert steps_by_kind({step: path[step] for step in (0, 1, 1000)}) == {}
    assert steps_by_kind({1000: path[1000]}) == {}
    with pytest.raises(ValueError, match="no revision of the suite"):
        steps_by_kind({}, missing=(0, 1))


# Chance


@pytest.fixture(scope="module")
def mini():
    """Steps of mini's own run, L2 distances between its revisions, and their norms."""
    stored = np.load(Path(__file__).parent / "data/mini_path.npz")
    steps = stored["steps"]
    norms = stored["norms"].astype(float)
    apart = np.zeros((len(steps), len(steps)))
    apart[np.triu_indices(len(steps), 1)] = stored["apart"]
    return steps, apart + apart.T, norms


def named(mini, chosen: np.ndarray) -> list[Finding]:
    """What the path through some of mini's revisions shows."""
    steps, apart, norms = mini
    return list(out_of_place(steps[chosen].tolist(), apart[np.ix_(chosen, chosen)], norms[chosen]))


def test_how_often_a_healthy_run_is_named(mini):
    """The rates of the module's docstring: below SURE what is named is never sure."""
    for count, most in (
        (6, 0.075),
        (8, 0.08),
        (10, 0.04),
        (SURE, 0.002),
        (20, 0.002),
        (40, 0.002),
    ):
        random = np.random.default_rng(0)
        alarms = 0
        for _ in range(1000):
            chosen = np.sort(random.choice(len(mini[0]), count, replace=False))
            # Of steps 0 and 1, which are one model, only the first.
            findings = named(mini, np.delete(chosen, 1) if mini[0][chosen[1]] == 1 else chosen)
            alarms += bool(findings)
            assert count >= SURE or not any(finding.sure for finding in findings), (
                "none of them is sure"
            )
        assert alarms <= most * 1000
    even = np.flatnonzero(mini[0] % 40 == 0)
    for every in range(1, 29):
        assert not any(named(mini, even[start::every]) for start in range(every))


@pytest.mark.parametrize(("count", "least"), [(8, 0.5), (SURE, 0.75), (60, 0.9)])
def test_another_run_among_them_is_named_all_the_same(mini, count, least):
    """One of random revisions replaced by weights that have nothing in common with the rest."""
    steps, apart, norms = mini
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        chosen = np.sort(random.choice(np.arange(12, len(steps)), count, replace=False))
        at = random.integers(2, count - 2)
        distance = apart[np.ix_(chosen, chosen)].copy()
        norm = norms[chosen]
        away = np.sqrt(norm**2 + norm[at] ** 2)
        distance[at], distance[:, at], distance[at, at] = away, away, 0.0
        findings = list(out_of_place(steps[chosen].tolist(), distance, norm))
        hits += any(
            finding.steps == (int(steps[chosen[at]]),) and finding.sure for finding in findings
        )
    assert hits >= least * 200


# What is done about it


def test_severity_decides_and_the_line_names_finding_revisions_and_key():
    path = walk()
    faults = {step: path[40_000] for step in (64, 5000, 6000, 7000)} | {20_000: path[21_000]}
    observed = examine(*tables(path | faults, missing=(8,)))
    with pytest.raises(IntegrityError) as error:
        decide(observed, dict(Integrity()), grid=GRID, key="suites.tiny.integrity")
    line = str(error.value)
    assert "\n" not in line and "missing" not in line
    assert "final_weights_early: steps 64, 5000 to 7000 (the weights of step 40000)" in line
    assert "duplicate: steps 20000, 21000 (the same weights)" in line
    assert "suites.tiny.integrity.final_weights_early, suites.tiny.integrity.duplicate" in line
    for kind in Integrity.model_fields:
        findings = [Finding(kind, (8,), "why")]
        assert decide(findings, {kind: "ignore"}, grid=GRID, key="k") == []
        assert decide(findings, {kind: "warn"}, grid=GRID, key="k") == [f"{kind}: step 8 (why)"]
        with pytest.raises(IntegrityError, match=f"k.{kind} to warn or ignore"):
            decide(findings, {kind: "stop"}, grid=GRID, key="k")
        unsure = [Finding(kind, (8,), "why", sure=False)]
        assert decide(unsure, {kind: "stop"}, grid=GRID, key="k") == [f"{kind}: step 8 (why)"]
    assert [kind for kind, chosen in Integrity() if chosen != "stop"] == ["missing"]


def test_the_table_shows_what_was_found_and_how_far_each_revision_moved():
    path = walk()
    path[5000] = path[40_000]
    revisions, prints = tables(path, missing=(8,))
    revisions = revisions[(revisions["step"] != 8) | (revisions["status"] == "missing")]
    prints = prints[prints["step"] != 8]
    unread = dict.fromkeys(("bytes", "n_tensors", "n_weights"), 1)
    table = suite_table(revisions.assign(**unread), prints, examine(revisions, prints), "tiny")
    table = table.set_index("step")
    assert list(table.index) == GRID
    assert table.loc[[8, 5000], "findings"].to_list() == ["missing", "final_weights_early"]
    assert set(table["findings"]) == {"", "missing", "final_weights_early"}
    moved = table["distance_to_previous"]
    assert moved[[0, 8]].isna().all() and moved[1] == 0.0
    length = np.linalg.norm(path[4].astype(float))
    expected = np.linalg.norm(path[16].astype(float) - path[4].astype(float)) / length
    assert moved[16] == pytest.approx(expected, rel=1e-3), "to the previous one that is there"
    assert moved[5000] > 5 * moved[4000]
    assert table["duplicate_of"].dropna().to_dict() == {1: 0, 40_000: 5000}
