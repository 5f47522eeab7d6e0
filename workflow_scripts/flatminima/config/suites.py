"""A suite of the checked configuration: its revisions, how ranges of them are named, its files.

A *suite* is one training run of which many checkpoints exist. Its grid follows Pythia's: step 0,
the first powers of two, then evenly spaced steps to the end (section 4.1; 1 + 10 + 143 = 154
revisions for Pythia).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
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
    """Steps meant by ``step70000`` or ``step60000-step75000`` on the grid ``steps``.

    Both ends of a range are on the grid and included. Raises ``ValueError`` with
    one line that says what would be valid.
    """
    match = _RANGE.fullmatch(name)
    if not match:
        example = f"step{steps[0]} or step{steps[0]}-step{steps[-1]}"
        raise ValueError(f"{name!r} is no step or range; write {example}")
    first, last = int(match[1]), int(match[2] or match[1])
    for step in (first, last):
        if step not in steps:
            around = nearest(step, steps)
            raise ValueError(f"step {step} is not a revision of this suite; nearest: {around}")
    if last < first:
        raise ValueError(f"'{name}' runs backwards; write step{last}-step{first}")
    return [step for step in steps if first <= step <= last]


def range_name(steps: Sequence[int]) -> str:
    """Inverse of ``parse_range`` for consecutive revisions."""
    return f"step{steps[0]}" if len(steps) == 1 else f"step{steps[0]}-step{steps[-1]}"


def chunk_names(steps: Sequence[int], size: int) -> list[str]:
    """Names of the ranges of at most ``size`` revisions that one job each works on."""
    return [range_name(steps[i : i + size]) for i in range(0, len(steps), size)]


@dataclass(frozen=True, eq=False)
class Suite:
    """One suite of the validated configuration, and the revisions that it has.

    ``config`` is its section, of which jobs get parts as mappings (``Section.dump``);
    ``quantizers`` are those of the configuration by name; ``tables`` is the folder of frozen
    lists of hub branches.
    """

    name: str
    config: AnySuite
    quantizers: Mapping[str, AnyQuantizer]
    tables: str = (ROOT / "resources/revisions").as_posix()

    @property
    def root(self) -> str:
        """Folder of everything the suite has."""
        return f"results/{self.name}"

    @property
    def source(self) -> str:
        """Where checkpoints come from: pretrain, hub, local or published."""
        return self.config.source

    def key(self, path: str) -> Any:
        """A key of the suite, such as ``probe.resamples``; one line if the suite has none."""
        value = reduce(lambda part, name: getattr(part, name, None), path.split("."), self.config)
        if value is None:
            raise ConfigError(f"suite {self.name}: config key {path} is needed for this target")
        return value

    def quantizer(self, role: Role) -> AnyQuantizer:
        """The quantizer that the suite's probes have in a role."""
        return self.quantizers[getattr(self.config.probe, role)]

    @property
    def is_even(self) -> bool:
        """Whether the grid is Pythia's: powers of two, then evenly spaced to the end."""
        return hasattr(self.config.grid, "spacing")

    @property
    def spacing(self) -> int:
        """Steps between the evenly spaced revisions; 1, which all steps are multiples of, else."""
        return self.config.grid.spacing if self.is_even else 1

    @cached_property
    def steps(self) -> list[int]:
        """Revisions in order; one line where they are to be found and are not."""
        if self.source == "local":
            return list(self.local.checkpoints)
        grid = self.config.grid
        return list(self._listed_branches()) if grid == "discover" else grid.revisions

    @property
    def last(self) -> int:
        """Last step of the suite's run."""
        return getattr(self.config.grid, "last", None) or self.steps[-1]

    @property
    def ranges(self) -> list[str]:
        """Names of the ranges of revisions that one job each works on."""
        return chunk_names(self.steps, self.config.probe.steps_per_job)

    def steps_in(self, name: str) -> list[int]:
        """Steps of ``step70000`` or ``step60000-step75000``; one line if it is off the grid."""
        try:
            return parse_range(name, self.steps)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def checkpoint(self, step: int) -> LocalCheckpoint:
        """Files of a checkpoint: a local suite's where it lies, in Hugging Face format."""
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
        """Checkpoints of a local suite on its grid, and lines on folders that were skipped."""
        pattern, grid = self.config.pattern, self.config.grid
        try:
            found = find_checkpoints(pattern)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error
        wanted = list(found.checkpoints) if grid == "discover" else grid.revisions
        lacking = [step for step in wanted if step not in found.checkpoints]
        if lacking or not wanted:
            what = f"no checkpoint of step {lacking[0]}" if lacking else "no checkpoint"
            seen = f"; skipped {'; '.join(found.skipped[:3])}" if found.skipped else ""
            raise ConfigError(f"suite {self.name}: {what} fits pattern {pattern}{seen}")
        return LocalRun({step: found.checkpoints[step] for step in wanted}, found.skipped)

    @property
    def skipped(self) -> list[str]:
        """Folders that fit the pattern of a local suite and are no whole checkpoint, and why."""
        return self.local.skipped if self.source == "local" else []

    def branch(self, step: int | str) -> str:
        """Hub branch of a step: from the frozen table, else by the pattern."""
        (step,) = self.steps_in(f"step{step}")
        if self._frozen and step in self._frozen:
            return self._frozen[step]
        if branch := branch_of(self.branch_pattern, step):
            return branch
        recorded = self._listed_branches()
        if step not in recorded:
            raise ConfigError(
                f"config key suites.{self.name}.grid: its repository has no revision of step "
                f"{step}; nearest: {nearest(step, sorted(recorded))}"
            )
        return recorded[step]

    @property
    def branch_pattern(self) -> str:
        """Regular expression of a hub suite's branches."""
        return self.config.revision or DEFAULT_PATTERN

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


def find_suite(config: Config, name: str) -> Suite:
    """A suite of a validated configuration; one line if there is none of that name."""
    return Suite(name, find(name, config.suites, "suite"), config.quantizers)


def read_suite(name: str | None, files: Sequence[str | Path]) -> Suite:
    """A suite, or the one that the configuration names, for commands outside Snakemake."""
    config = read_config(files)
    return find_suite(config, name or config.suite)
