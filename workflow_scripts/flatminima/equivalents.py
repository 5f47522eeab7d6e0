"""What in a suite corresponds to the paper's steps and to its fork schedules.

Tables 1 and 2 and the ledger of claims use these functions. A number in a table and the same
number in a claim therefore come from the same checkpoint and the same forks.
"""

from collections.abc import Iterable, Mapping

from flatminima.paper import PAPER_LAST_STEP


def grid_steps(spacing: int, last: int) -> range:
    """Evenly spaced steps of a suite after step 0."""
    return range(spacing, last + 1, spacing)


def equivalent_step(paper_step: float, steps: Iterable[int], last: int) -> int:
    """The suite's step that is nearest to a step of the paper, as a share of the run.

    ``steps`` are the suite's steps to choose from, ``last`` is the last step of its run. If two
    steps are equally near, it is the earlier one.
    """
    exact = paper_step * last / PAPER_LAST_STEP
    return min(steps, key=lambda step: (abs(step - exact), step))


def schedule_of_kind(schedules: Mapping[str, Mapping], kind: str) -> str | None:
    """Name of the fork schedule that corresponds to one of the paper's kinds, or ``None``.

    ``schedules`` are their definitions by name. A schedule that is named after its kind comes
    first: others of the kind may differ from the paper's in more than the name.
    """
    names = [name for name, definition in schedules.items() if definition["kind"] == kind]
    if kind in names:
        return kind
    return names[0] if names else None
