"""Parts of a suite that are measured first, because few of its revisions decide much.

- ``headline``: the paper's two revisions, steps 70,000 and 143,000. For another model also the
  first evenly spaced one.
- ``table1``: the ten revisions of the paper's Table 1.
- ``measured``: whatever has been measured so far.

A part has no measurements of its own. Its files are made from the probes of the complete suite,
so nothing is fetched or measured twice.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from flatminima.config.loading import ROOT
from flatminima.config.plan import facts, ledger_facts, probe
from flatminima.config.suites import Suite
from flatminima.equivalents import equivalent_step, grid_steps
from flatminima.errors import ConfigError
from flatminima.paper import PAPER_FORK_STEP, PAPER_LAST_STEP

HEADLINE = "headline"
TABLE_1 = "table1"
MEASURED = "measured"
PAPER_TABLE_1 = ROOT / "resources/paper/table1.csv"
# Files that a measured range of revisions has, below the suite's folder.
_MADE_BY_A_PROBE = ("probes/{steps}.parquet", "probes/{steps}.json")


def part_steps(suite: Suite, part: str) -> list[int]:
    """Steps of the revisions of a part, in order."""
    if part == MEASURED:
        return [step for name in _measured_ranges(suite) for step in suite.steps_in(name)]
    candidates = [step for step in suite.steps if step > 0]
    if suite.is_even:
        candidates = list(grid_steps(suite.spacing, suite.last))
    paper_steps = [PAPER_FORK_STEP, PAPER_LAST_STEP] if part == HEADLINE else _table_1_steps()
    if suite.config.is_paper_model:
        lacking = [step for step in paper_steps if step not in suite.steps]
        if lacking:
            raise ConfigError(
                f"suite {suite.name}: {part} needs step {lacking[0]}, which is not among its "
                "revisions"
            )
        return paper_steps
    steps = {equivalent_step(step, candidates, suite.last) for step in paper_steps}
    if part == HEADLINE:
        steps.add(candidates[0])
    return sorted(steps)


def _table_1_steps() -> list[int]:
    with open(PAPER_TABLE_1, encoding="utf-8", newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def _measured_ranges(suite: Suite) -> list[str]:
    """Ranges whose probes exist. Raises ``ConfigError`` if there are none."""
    measured = [name for name in suite.ranges if _is_measured(suite, name)]
    if not measured:
        raise ConfigError(
            f"suite {suite.name}: no revision has been measured in {suite.root}; "
            f"make headline SUITE={suite.name} measures the first ones"
        )
    return measured


def _is_measured(suite: Suite, name: str) -> bool:
    files = (file.format(steps=name) for file in _MADE_BY_A_PROBE)
    return all(Path(suite.root, file).is_file() for file in files)


def part_ranges(suite: Suite, part: str) -> list[str]:
    """Names of the suite's ranges of revisions that contain a part."""
    return _ranges_of(suite, part_steps(suite, part))


def _ranges_of(suite: Suite, steps: Iterable[int]) -> list[str]:
    wanted = set(steps)
    return [name for name in suite.ranges if not wanted.isdisjoint(suite.steps_in(name))]


def part_targets(suite: Suite, part: str) -> list[str]:
    """What ``make headline`` and ``make table1`` build."""
    targets = [f"{suite.root}/{part}.{ending}" for ending in ("csv", "md", "html")]
    if part == TABLE_1:
        targets += [f"{suite.root}/{part}/table1.{ending}" for ending in ("csv", "md", "tex")]
        targets += [f"{suite.root}/{part}/fig1_audit.{ending}" for ending in ("pdf", "svg", "png")]
    return targets


def unmeasured_steps(suite: Suite, part: str) -> list[int]:
    """Steps that are measured for a part: those of its ranges without probes."""
    return [
        step
        for name in part_ranges(suite, part)
        if not _is_measured(suite, name)
        for step in suite.steps_in(name)
    ]


def suite_table(suite: Suite, part: str) -> str:
    """The table of a part's revisions. Stored measurements have only that of all revisions."""
    if suite.source == "published":
        return f"{suite.root}/suite.csv"
    return f"{suite.root}/{part}/suite.csv"


def part_facts(suite: Suite, part: str) -> dict:
    """What ``state_headline`` prints about a suite and the part of it that was measured.

    ``ledger`` has the facts that the ledger needs, for the paper's model only: the paper's
    numbers say nothing about another model.
    """
    printed = facts(suite)["quantizers"]
    return {
        "name": suite.name,
        "label": suite.config.label,
        "is_paper_model": suite.config.is_paper_model,
        "part": part,
        "steps": part_steps(suite, part),
        "revisions": len(suite.steps),
        "quantizers": {role: printed[name] for name, role in probe(suite)["roles"].items()},
        "ledger": ledger_facts(suite) if suite.config.is_paper_model else None,
    }
