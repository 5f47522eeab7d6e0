"""Checks of what a suite needs for the place its checkpoints come from; one line per mistake."""

import re
from collections.abc import Iterator, Mapping

from flatminima.revisions.discovery import check_pattern
from flatminima.suite import revision_steps

MOST_REVISIONS = 100_000
SOURCE_OF = {"repo": "hub", "revision": "hub", "pattern": "local", "measurements": "published"}
TOKENIZERS = {"pretrain": [["vocab_size"]], "hub": [["repo"]], "local": [[], ["repo"], ["path"]]}
# What each source cannot do without, beside what every suite has.
PARTS = {"pretrain": ("architecture", "training"), "hub": (), "local": (), "published": ()}


def source_mistakes(name: str, suite: Mapping) -> Iterator[str]:
    """Keys that the suite's source needs or does not have."""
    source, prefix = suite["source"], f"config key suites.{name}"
    for key in ("repo", "pattern", "measurements"):
        if (source == SOURCE_OF[key]) != (key in suite):
            yield (
                f"{prefix}.{key} goes with source {SOURCE_OF[key]}, and only with it; "
                f"source is {source}"
            )
    for part in PARTS[source]:
        if part not in suite:
            yield f"{prefix} lacks {part}, needed with source {source}"
    yield from _tokenizer_mistakes(prefix, suite)
    if "fork" in suite or source == "pretrain":
        for part, there in (
            ("training", "training" in suite),
            ("batches.train", "train" in suite["batches"]),
        ):
            if not there:
                yield f"{prefix} lacks {part}, needed for {_purpose(suite)}"
    if "pattern" in suite:
        try:
            check_pattern(suite["pattern"])
        except ValueError as error:
            yield f"{prefix}.pattern: {error}"
    for key in ("family", "vocab_size", "intermediate_size", "dtype"):
        if source == "pretrain" and key in suite.get("architecture", {}):
            yield f"{prefix}.architecture.{key} goes with source hub or local"
    if "revision" in suite:
        yield from _revision_mistakes(f"{prefix}.revision", source, suite["revision"])


def _purpose(suite: Mapping) -> str:
    return "its forks, which continue it" if "fork" in suite else f"source {suite['source']}"


def _tokenizer_mistakes(prefix: str, suite: Mapping) -> Iterator[str]:
    source = suite["source"]
    if source == "published":  # whose tokenizer was another suite's
        return
    valid = TOKENIZERS[source]
    optional = () if source == "pretrain" else ("end_of_text", "revision")
    keys = [key for key in suite["tokenizer"] if key not in optional]
    if keys not in valid:
        choices = " or ".join(", ".join(one) or "no key" for one in valid)
        shown = ", ".join(suite["tokenizer"]) or "no key"
        yield f"{prefix}.tokenizer: has {shown}; valid with source {source}: {choices}"


def _revision_mistakes(key: str, source: str, pattern: str) -> Iterator[str]:
    if source != "hub":
        yield f"{key} goes with source hub only"
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        yield f"{key}: {pattern!r} is no regular expression ({error})"
        return
    if "step" not in groups:
        yield f"{key}: {pattern!r} has no group (?P<step>...) for the step"


def grid_mistakes(name: str, suite: Mapping) -> Iterator[str]:
    """Grids without revisions, or of a kind that the source does not have."""
    grid, source, key = suite["grid"], suite["source"], f"config key suites.{name}.grid"
    if grid == "discover":
        if source == "pretrain":
            yield f"{key}: discover goes with source hub or local"
        return
    if "steps" in grid:
        last = grid.get("last", max(grid["steps"]))
        if source == "pretrain":
            yield f"{key}: steps goes with source hub or local"
        if last < max(grid["steps"]):
            yield f"{key}.last: {last} is before step {max(grid['steps'])} of {key}.steps"
        return
    revisions = grid["last"] // grid["spacing"]
    if revisions > MOST_REVISIONS:
        yield f"{key}: {revisions} revisions; at most {MOST_REVISIONS}"
        return
    try:
        revision_steps(**grid)
    except ValueError as error:
        yield f"{key}: {error}"
