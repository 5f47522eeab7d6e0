"""What can be wrong with a suite's revisions, and what is done about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flatminima.errors import UserError

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
PRESENT, MISSING = "present", "missing"


class IntegrityError(UserError):
    """Revisions that are not what their names say, in one line."""


@dataclass(frozen=True)
class Found:
    """One finding: its kind (a key of ``FINDINGS``), the steps it is about, and why."""

    kind: str
    steps: tuple[int, ...]
    reason: str

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


def judge(
    found: Sequence[Found], severity: Mapping[str, str], *, grid: Sequence[int], key: str
) -> list[str]:
    """Lines of what is only warned of; ``IntegrityError`` where a finding is to stop the run.

    ``severity`` maps kinds to ``SEVERITIES``, the default for those it lacks; ``key`` is
    where the configuration has it; ``grid`` is the suite's steps.
    """
    chosen = {**DEFAULT_SEVERITY, **severity}
    stops = [one for one in found if chosen[one.kind] == "stop"]
    if stops:
        keys = ", ".join(f"{key}.{kind}" for kind in dict.fromkeys(one.kind for one in stops))
        said = "; ".join(one.line(grid) for one in stops)
        raise IntegrityError(
            f"revisions are not what their names say: {said}. To go on in spite of it, set "
            f"config key {keys} to warn or ignore"
        )
    return [one.line(grid) for one in found if chosen[one.kind] == "warn"]
