"""What in a suite corresponds to the paper's steps and to its fork schedules.

Table 1, Table 2 and the ledger of claims read the same two functions, so that a number in a
table and the same number in a claim come from the same checkpoint and the same forks.
"""

from collections.abc import Iterable, Mapping

from flatminima.paper import PAPER_LAST_STEP


def grid_steps(spacing: int, last: int) -> range:
    """Evenly spaced steps of a suite after step 0."""
    return range(spacing, last + 1, spacing)


def equivalent_step(paper_step: float, steps: Iterable[int], last: int) -> int:
    """The one of a suite's ``steps`` that is nearest to the paper's by the share of the run.

    ``last`` is the last step of the suite's run. Of two steps that are equally near it is the
    earlier one.
    """
    exact = paper_step * last / PAPER_LAST_STEP
    return min(steps, key=lambda step: (abs(step - exact), step))


def schedule_of_kind(schedules: Mapping[str, Mapping], kind: str) -> str | None:
    """Name of the fork schedule that stands for one of the paper's kinds; ``None`` for no such.

    ``schedules`` are their definitions by name. A schedule that is named after its kind comes
    before others of the kind, which may differ from the paper's in more than the name.
    """
    names = [name for name, definition in schedules.items() if definition["kind"] == kind]
    return kind if kind in names else next(iter(names), None)
