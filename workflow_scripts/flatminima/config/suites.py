"""A suite of the validated configuration: its revisions, ranges of revisions, and files.

A *suite* is one training run with its settings. A *revision* is a checkpoint of this run. The
grid of revisions follows Pythia: step 0, the first powers of two, then evenly spaced steps to the
end (section 4.1 of the paper; Pythia has 1 + 10 + 143 = 154 revisions).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flatminima.config.keys import AnySuite, Config, nearest
from flatminima.config.loading import ROOT, read_config
from flatminima.errors import ConfigError, find
from flatminima.files import CHECKPOINT_FILES
from flatminima.quantizer_specs import AnyQuantizer
from flatminima.revisions import (
    DEFAULT_PATTERN,
    LocalCheckpoint,
    LocalRun,
    branch_of,
    find_checkpoints,
    read_table,
)

Role = Literal["low_bit", "high_bit"]
# No leading zeros: one name for one revision.
_RANGE = re.compile(r"step(0|[1-9][0-9]*)(?:-step(0|[1-9][0-9]*))?")


def parse_range(name: str, steps: Sequence[int]) -> list[int]:
    """The steps in a range such as ``step70000`` or ``step60000-step75000``.

    ``steps`` is the grid. Both ends of the range must be on it and are included. Raises
    ``ValueError`` with one line that shows what is valid.
    """
    match = _RANGE.fullmatch(name)
    if not match:
        example = f"step{steps[0]} or step{steps[0]}-step{steps[-1]}"
        raise ValueError(f"{name!r} is not a step or a range; write {example}")
    first = int(match[1])
    last = int(match[2] or match[1])
    for step in (first, last):
        if step not in steps:
            around = nearest(step, steps)
            raise ValueError(f"step {step} is not a revision of this suite; nearest: {around}")
    if last < first:
        raise ValueError(f"'{name}' runs backwards; write step{last}-step{first}")
    return [step for step in steps if first <= step <= last]


def range_name(steps: Sequence[int]) -> str:
    """The name of a range of consecutive revisions; the inverse of ``parse_range``."""
    return f"step{steps[0]}" if len(steps) == 1 else f"step{steps[0]}-step{steps[-1]}"


def chunk_names(steps: Sequence[int], size: int) -> list[str]:
    """Names of ranges of at most ``size`` revisions. One job works on each range."""
    return [range_name(steps[i : i + size]) for i in range(0, len(steps), size)]


@dataclass(frozen=True, eq=False)
class Suite:
    """One suite of the validated configuration, and its revisions.

    ``config`` is the suite's section. Jobs get parts of it as mappings (``Section.dump``).
    ``quantizers`` are all quantizers of the configuration, by name. ``tables`` is the folder of
    stored lists of hub branches (see ``flatminima freeze``).
    """

    name: str
    config: AnySuite
    quantizers: Mapping[str, AnyQuantizer]
    tables: str = (ROOT / "resources/revisions").as_posix()

    @property
    def root(self) -> str:
        """Folder of all the suite's results."""
        return f"results/{self.name}"

    @property
    def source(self) -> str:
        """Source of the checkpoints: pretrain, hub, local or published."""
        return self.config.source

    def key(self, path: str) -> Any:
        """A key of the suite, such as ``probe.resamples``. ``ConfigError`` if it is not set."""
        setting = self.config
        for name in path.split("."):
            setting = getattr(setting, name, None)
        if setting is None:
            raise ConfigError(f"suite {self.name}: config key {path} is needed for this target")
        return setting

    def quantizer(self, role: Role) -> AnyQuantizer:
        """The quantizer that has this role in the suite's probes."""
        return self.quantizers[getattr(self.config.probe, role)]

    @property
    def is_even(self) -> bool:
        """Whether the grid is like Pythia's: powers of two, then evenly spaced to the end."""
        return hasattr(self.config.grid, "spacing")

    @property
    def spacing(self) -> int:
        """Steps between evenly spaced revisions. 1 for other grids."""
        return self.config.grid.spacing if self.is_even else 1

    @cached_property
    def steps(self) -> list[int]:
        """Steps of the revisions, in order. ``ConfigError`` if they cannot be discovered."""
        if self.source == "local":
            return list(self.local.checkpoints)
        if self.config.grid == "discover":
            return list(self._listed_branches())
        return self.config.grid.revisions

    @property
    def last(self) -> int:
        """Last step of the suite's run."""
        return getattr(self.config.grid, "last", None) or self.steps[-1]

    @property
    def ranges(self) -> list[str]:
        """Names of ranges of revisions. One job works on each range."""
        return chunk_names(self.steps, self.config.probe.steps_per_job)

    def steps_in(self, name: str) -> list[int]:
        """Steps of a range such as ``step60000-step75000``. Raises ``ConfigError``."""
        try:
            return parse_range(name, self.steps)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def checkpoint(self, step: int) -> LocalCheckpoint:
        """The folder and files of a checkpoint in Hugging Face format."""
        if self.source != "local":
            folder = f"{self.root}/checkpoints/step{step}"
            return LocalCheckpoint(folder, CHECKPOINT_FILES[0], CHECKPOINT_FILES)
        if step not in self.local.checkpoints:
            raise ConfigError(f"suite {self.name}: step {step} is not among its checkpoints")
        return self.local.checkpoints[step]

    def folder(self, step: int) -> str:
        """Folder of the checkpoint of one step."""
        return self.checkpoint(step).folder

    def folders(self, steps: str) -> dict[int, str]:
        """Folders of the checkpoints of a range, by step."""
        return {step: self.folder(step) for step in self.steps_in(steps)}

    @cached_property
    def local(self) -> LocalRun:
        """The revisions of a local suite, and one line per folder that was skipped."""
        pattern = self.config.pattern
        try:
            run = find_checkpoints(pattern)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

        is_discovered = self.config.grid == "discover"
        steps = list(run.checkpoints) if is_discovered else self.config.grid.revisions
        missing_steps = [step for step in steps if step not in run.checkpoints]
        if missing_steps or not steps:
            lacking = f"no checkpoint of step {missing_steps[0]}" if steps else "no checkpoint"
            skipped = f"; skipped {'; '.join(run.skipped[:3])}" if run.skipped else ""
            raise ConfigError(f"suite {self.name}: {lacking} fits pattern {pattern}{skipped}")
        return LocalRun({step: run.checkpoints[step] for step in steps}, run.skipped)

    @property
    def skipped(self) -> list[str]:
        """Folders of a local suite that fit the pattern but are not complete, with reasons."""
        return self.local.skipped if self.source == "local" else []

    def branch(self, step: int | str) -> str:
        """Hub branch of a step, from the stored table or else by the pattern."""
        (step,) = self.steps_in(f"step{step}")  # a wildcard of a rule is text
        if self._stored_branches and step in self._stored_branches:
            return self._stored_branches[step]
        branch = branch_of(self.branch_pattern, step)
        if branch:
            return branch
        branches = self._listed_branches()
        if step not in branches:
            raise ConfigError(
                f"config key suites.{self.name}.grid: its repository has no revision of step "
                f"{step}; nearest: {nearest(step, sorted(branches))}"
            )
        return branches[step]

    @property
    def branch_pattern(self) -> str:
        """Regular expression of a hub suite's branches."""
        return self.config.revision or DEFAULT_PATTERN

    @cached_property
    def _stored_branches(self) -> dict[int, str] | None:
        try:
            return read_table(Path(self.tables, f"{self.name}.csv"))
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def _listed_branches(self) -> dict[int, str]:
        if self._stored_branches is None:
            raise ConfigError(
                f"suite {self.name}: the revisions of its repository are not listed yet; run "
                f"make freeze SUITE={self.name} to list them from the hub"
            )
        return self._stored_branches


def find_suite(config: Config, name: str) -> Suite:
    """A suite of a validated configuration by its name. Raises ``ConfigError``."""
    return Suite(name, find(name, config.suites, "suite"), config.quantizers)


def read_suite(name: str | None, files: Sequence[str | Path]) -> Suite:
    """The suite ``name``, or the suite that the configuration names, for commands."""
    config = read_config(files)
    return find_suite(config, name or config.suite)
