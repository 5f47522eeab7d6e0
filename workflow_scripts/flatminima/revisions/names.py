r"""Names of hub branches that hold one training step each.

A *pattern* is a regular expression that matches the whole name of such a branch and
has a group called ``step``: ``step(?P<step>\d+)`` for Pythia.
"""

import re

STEP_GROUP = r"(?P<step>\d+)"
DEFAULT_PATTERN = f"step{STEP_GROUP}"  # Pythia and PolyPythias


def step_of(pattern: str, branch: str) -> int | None:
    """Step that a branch holds; ``None`` where its name is another kind, such as ``main``."""
    match = re.fullmatch(pattern, branch)
    return int(match["step"]) if match else None


def branch_of(pattern: str, step: int) -> str | None:
    """Name of the branch of ``step``; ``None`` where the name says more than the step.

    ``stage1-step1000-tokens3B`` is such a name: only the hub's list of branches knows it.
    """
    branch = pattern.replace(STEP_GROUP, str(step))
    return branch if step_of(pattern, branch) == step else None
