"""Which revisions a suite has: by formula, by list, or as they are found."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flatminima.errors import ConfigError
from flatminima.revisions import (
    DEFAULT_PATTERN,
    LocalCheckpoint,
    LocalRun,
    branch_of,
    find_checkpoints,
    read_table,
)
from flatminima.suites import suite_steps

DISCOVER = "discover"


@dataclass(frozen=True)
class GridPlan:
    """Which revisions a suite has: by formula, by list, or as they are found.

    ``name`` and ``section`` are the suite's in the configuration; ``quantizers`` by name;
    ``tables`` is the folder of frozen lists of hub branches.
    """

    name: str
    section: Mapping
    quantizers: Mapping[str, Mapping]
    tables: str = "resources/revisions"

    @property
    def is_local(self) -> bool:
        """Whether the checkpoints are somebody's own files."""
        return self.section["source"] == "local"

    @property
    def is_even(self) -> bool:
        """Whether the grid is Pythia's: powers of two, then evenly spaced to the end."""
        grid = self.section["grid"]
        return grid != DISCOVER and "spacing" in grid

    @cached_property
    def steps(self) -> list[int]:
        """Revisions in order; one line where they are to be found and are not."""
        grid = self.section["grid"]
        if self.is_local:
            return list(self.found.checkpoints)
        return list(self._listed_branches()) if grid == DISCOVER else suite_steps(grid)

    @property
    def last(self) -> int:
        """Last step of the suite's run."""
        grid = self.section["grid"]
        return self.steps[-1] if grid == DISCOVER else grid.get("last", self.steps[-1])

    @property
    def spacing(self) -> int:
        """Steps between the evenly spaced revisions; 1, which all steps are multiples of, else."""
        return self.section["grid"]["spacing"] if self.is_even else 1

    @cached_property
    def found(self) -> LocalRun:
        """Checkpoints of a local suite on its grid, and lines on folders that were skipped."""
        pattern, grid = self.section["pattern"], self.section["grid"]
        try:
            found = find_checkpoints(pattern)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error
        wanted = list(found.checkpoints) if grid == DISCOVER else suite_steps(grid)
        lacking = [step for step in wanted if step not in found.checkpoints]
        if lacking or not wanted:
            raise ConfigError(f"suite {self.name}: {_nothing(pattern, lacking, found.skipped)}")
        return LocalRun({step: found.checkpoints[step] for step in wanted}, found.skipped)

    @property
    def skipped(self) -> list[str]:
        """Folders that fit the pattern of a local suite and are no whole checkpoint, and why."""
        return self.found.skipped if self.is_local else []

    def checkpoint(self, step: int | str) -> LocalCheckpoint:
        """Files of a local checkpoint; one line if the step is not there."""
        if int(step) not in self.found.checkpoints:
            raise ConfigError(f"suite {self.name}: step {step} is not among its checkpoints")
        return self.found.checkpoints[int(step)]

    @cached_property
    def _frozen(self) -> dict[int, str] | None:
        try:
            return read_table(Path(self.tables, f"{self.name}.csv"))
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def _listed_branches(self) -> dict[int, str]:
        if self._frozen is None:
            raise ConfigError(
                f"suite {self.name}: which revisions its repository has is not recorded yet; "
                f"make freeze SUITE={self.name} lists them from the hub"
            )
        return self._frozen

    def branch(self, step: int) -> str:
        """Hub branch of a step on the grid: from the frozen table, else by the pattern."""
        if self._frozen is not None and step in self._frozen:
            return self._frozen[step]
        name = branch_of(self.section.get("revision", DEFAULT_PATTERN), step)
        return name if name is not None else self._listed_branches()[step]


def _nothing(pattern: str, lacking: list[int], skipped: list[str]) -> str:
    """Why a local suite cannot be planned, in one line."""
    what = f"no checkpoint of step {lacking[0]}" if lacking else "no checkpoint"
    seen = f"; skipped {'; '.join(skipped[:3])}" if skipped else ""
    return f"{what} fits pattern {pattern}{seen}"
