"""The grid of revisions of a suite, and how ranges of it are named.

A *suite* is one training run of which many checkpoints exist. Its grid follows
Pythia's: step 0, the first powers of two, then evenly spaced steps to the end
(section 4.1; 1 + 10 + 143 = 154 revisions for Pythia).
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

# A checkpoint in Hugging Face format, as this project writes and reads it.
CHECKPOINT_FILES = ("model.safetensors", "config.json")

# No leading zeros: one name for one revision.
_RANGE = re.compile(r"step(0|[1-9][0-9]*)(?:-step(0|[1-9][0-9]*))?")


def revision_steps(*, powers_of_two: int, spacing: int, last: int) -> list[int]:
    """Steps of a suite in order: 0, 2^0 … 2^(n-1), then every ``spacing`` to ``last``.

    Raises ``ValueError`` where ``last`` is no multiple of ``spacing`` or the
    powers run past the end.
    """
    if last % spacing:
        raise ValueError(f"last {last}: must be a multiple of spacing {spacing}")
    if powers_of_two > last.bit_length():
        raise ValueError(f"powers_of_two {powers_of_two}: 2^{powers_of_two - 1} is past {last}")
    powers = [2**i for i in range(powers_of_two)]
    return sorted({0, *powers, *range(spacing, last + 1, spacing)})


def even_steps(*, spacing: int, last: int) -> list[int]:
    """The evenly spaced part of the grid, on which slopes and changepoints are taken."""
    return list(range(spacing, last + 1, spacing))


def nearest(step: int, steps: Sequence[int], count: int = 2) -> list[int]:
    """The ``count`` members of the sorted ``steps`` around ``step``, for error messages."""
    at = bisect_left(steps, step)
    return list(steps[max(0, at - 1) : max(0, at - 1) + count]) or list(steps[-count:])


def parse_range(name: str, steps: Sequence[int]) -> list[int]:
    """Steps meant by ``step70000`` or ``step60000-step75000`` on the grid ``steps``.

    Both ends of a range are on the grid and included. Raises ``ValueError`` with
    one line that says what would be valid.
    """
    match = _RANGE.fullmatch(name)
    if not match:
        example = f"step{steps[0]} or step{steps[0]}-step{steps[-1]}"
        raise ValueError(f"{name!r} is no step or range; write {example}")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    for step in (first, last):
        if step not in steps:
            around = " and ".join(str(s) for s in nearest(step, steps))
            raise ValueError(f"step {step} is not a revision of this suite; nearest: {around}")
    if last < first:
        raise ValueError(f"'{name}' runs backwards; write step{last}-step{first}")
    return [step for step in steps if first <= step <= last]


def range_name(steps: Sequence[int]) -> str:
    """Inverse of ``parse_range`` for consecutive revisions."""
    if len(steps) == 1:
        return f"step{steps[0]}"
    return f"step{steps[0]}-step{steps[-1]}"


def chunk_names(steps: Sequence[int], size: int) -> list[str]:
    """Names of the ranges of at most ``size`` revisions that one job each works on."""
    return [range_name(steps[i : i + size]) for i in range(0, len(steps), size)]
