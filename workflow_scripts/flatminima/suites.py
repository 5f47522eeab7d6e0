"""Suites: how one takes over another, where they are defined, and the steps they have.

A *suite* is one training run of which many checkpoints exist. One that ``extends`` another
takes over every key that it does not set itself; mappings are merged, anything else replaced.
``label`` and ``is_paper_model`` are a suite's own. A key set to nothing (``fork:``) is left
out, with whatever it would inherit.

Its grid follows Pythia's: step 0, the first powers of two, then evenly spaced steps to the
end (section 4.1; 1 + 10 + 143 = 154 revisions for Pythia).
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flatminima.errors import ConfigError, suggest
from flatminima.files import CHECKPOINT_FILES
from flatminima.revisions import (
    DEFAULT_PATTERN,
    LocalCheckpoint,
    LocalRun,
    branch_of,
    find_checkpoints,
    read_table,
)

# Replaced whole, since half of one and half of another would mean nothing.
WHOLE = ("grid", "text", "tokenizer", "schedules")
OWN = ("label", "is_paper_model", "extends")
# Not taken over from a suite whose checkpoints come from elsewhere.
OF_SOURCE = ("repo", "revision", "pattern", "grid", "integrity")
# What a suite need not say, by its source.
DEFAULTS = {
    "local": {
        "is_paper_model": False,
        "device": "auto",
        "threads": 1,
        "grid": "discover",
        "tokenizer": {},
        "probe": {
            "low_bit": "int4_g128",
            "high_bit": "int8_channel",
            "batch_size": 4,
            "steps_per_job": 22,
            "resamples": 1000,
        },
        "kurtosis": {"layers": "blocks"},
        "phases": {"resamples": 200},
    },
    "hub": {"is_paper_model": False},
    "pretrain": {"is_paper_model": False},
}


def merge(base: Mapping, change: Mapping, whole: Sequence[str] = ()) -> dict:
    """``base`` with what ``change`` says, mappings merged but for the keys ``whole``.

    Neither is altered.
    """
    merged = deepcopy(dict(base))
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        deeper = both and key not in whole
        merged[key] = merge(merged[key], value, whole) if deeper else deepcopy(value)
    return merged


# Files.


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that stands twice in one mapping, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
            line = node.start_mark.line + 1
            raise ConfigError(f"key {twice[0]!r} stands twice in the mapping at line {line}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict:
    """The mapping of a YAML file. Raises ``ConfigError``, one line that names the file."""
    try:
        read = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader) or {}
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: not a mapping of keys to values")
    return read


def as_in_a_file(value: object) -> object:
    """What a file would hold where ``--config`` gives a mapping, whose values arrive as text.

    Snakemake reads ``--config 'suites={mini: {threads: 2}}'`` without telling numbers from
    text. Text stays as it is where YAML does not take it for a number, true, false or nothing.
    """
    if isinstance(value, Mapping):
        return {key: as_in_a_file(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_in_a_file(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        read = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # a date that does not exist is no YAMLError
        return value
    return read if isinstance(read, bool | int | float | None) else value


def read_library(resources: Path) -> dict[str, dict]:
    """Suites that come with the workflow: ``suites/*.yaml`` and ``published/*/suite.yaml``."""
    library = {}
    for pattern in ("suites/*.yaml", "published/*/suite.yaml"):
        for path in sorted(resources.glob(pattern)):
            library |= read_yaml(path)
    return library


# Inheritance.


def _without_nothing(section: Mapping) -> dict:
    return {
        key: _without_nothing(value) if isinstance(value, Mapping) else value
        for key, value in section.items()
        if value is not None
    }


def resolve_suites(suites: object, library: Mapping[str, Mapping]) -> object:
    """Suites of the configuration, those of ``library`` after them, whole.

    A suite stands after the one that it extends, so that the first mistake is that of the
    suite it was made in. A suite of the library may be changed in the configuration under
    its own name. What is no mapping is handed on as it is, for the check to complain about.
    Raises ``ConfigError`` for ``extends`` that leads nowhere or in a circle.
    """
    if not isinstance(suites, Mapping):
        return suites
    known = {
        name: merge(library.get(name, {}), section, WHOLE)
        if isinstance(section, Mapping)
        else section
        for name, section in suites.items()
    }
    known |= {name: section for name, section in library.items() if name not in known}
    inherited: dict[str, Mapping] = {}

    def inherit(name: str, below: tuple[str, ...] = ()) -> None:
        if name in inherited:
            return
        section = known[name]
        own = {key: value for key, value in section.items() if key != "extends"}
        if (parent := section.get("extends")) is None:
            inherited[name] = own
            return
        key = f"config key suites.{name}.extends"
        if not isinstance(parent, str) or not isinstance(known.get(parent), Mapping):
            hint = suggest(str(parent), [other for other in known if isinstance(other, str)])
            raise ConfigError(f"{key}: {parent!r} is not known; {hint}")
        if parent in (*below, name):
            chain = " -> ".join((*below, name, parent))
            raise ConfigError(f"{key}: {parent!r} extends it in turn ({chain})")
        inherit(parent, (*below, name))
        taken = inherited[parent]
        elsewhere = own.get("source", taken.get("source")) != taken.get("source")
        dropped = (*OWN, *OF_SOURCE) if elsewhere else OWN
        inherited[name] = merge({k: v for k, v in taken.items() if k not in dropped}, own, WHOLE)

    for name, section in known.items():
        if isinstance(section, Mapping):
            inherit(name)
        else:
            inherited[name] = section
    return {name: _with_defaults(section) for name, section in inherited.items()}


def _with_defaults(section: object) -> object:
    if not isinstance(section, Mapping):
        return section
    source = section.get("source")
    defaults = DEFAULTS.get(source, {}) if isinstance(source, str) else {}
    return _without_nothing(merge(defaults, section, WHOLE))


# Steps, and how ranges of them are named. No leading zeros: one name for one revision.
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


def suite_steps(grid: Mapping) -> list[int]:
    """Steps of a section ``grid`` that is a formula or a list, in order."""
    return sorted(grid["steps"]) if "steps" in grid else revision_steps(**grid)


def nearest(step: int, steps: Sequence[int]) -> list[int]:
    """The one or two members of the sorted ``steps`` around ``step``, for error messages."""
    first = max(0, bisect_left(steps, step) - 1)
    return list(steps[first : first + 2])


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
            around = " and ".join(str(s) for s in nearest(step, steps))
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


# A suite of the checked configuration.


@dataclass(frozen=True, eq=False)
class Suite:
    """One suite of the checked configuration, and the revisions that it has.

    ``name`` and ``section`` are the suite's in the configuration; ``quantizers`` by name;
    ``tables`` is the folder of frozen lists of hub branches.
    """

    name: str
    section: Mapping
    quantizers: Mapping[str, Mapping]
    tables: str = "resources/revisions"

    @property
    def root(self) -> str:
        """Folder of everything the suite has."""
        return f"results/{self.name}"

    @property
    def source(self) -> str:
        """Where checkpoints come from: pretrain, hub, local or published."""
        return self.section["source"]

    def key(self, path: str) -> Any:
        """A key of the suite, such as ``probe.resamples``; one line if the suite has none."""
        value = self.section
        for part in path.split("."):
            if part not in value:
                raise ConfigError(f"suite {self.name}: config key {path} is needed for this target")
            value = value[part]
        return value

    @property
    def is_even(self) -> bool:
        """Whether the grid is Pythia's: powers of two, then evenly spaced to the end."""
        return "spacing" in self.section["grid"]

    @cached_property
    def steps(self) -> list[int]:
        """Revisions in order; one line where they are to be found and are not."""
        grid = self.section["grid"]
        if self.source == "local":
            return list(self.local.checkpoints)
        return list(self._listed_branches()) if grid == "discover" else suite_steps(grid)

    @property
    def last(self) -> int:
        """Last step of the suite's run."""
        grid = self.section["grid"]
        return self.steps[-1] if grid == "discover" else grid.get("last", self.steps[-1])

    @property
    def spacing(self) -> int:
        """Steps between the evenly spaced revisions; 1, which all steps are multiples of, else."""
        return self.section["grid"]["spacing"] if self.is_even else 1

    def steps_in(self, name: str) -> list[int]:
        """Steps of ``step70000`` or ``step60000-step75000``; one line if it is off the grid."""
        try:
            return parse_range(name, self.steps)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def folder(self, step: int) -> str:
        """Checkpoint of one step, in Hugging Face format: a local suite's where it lies."""
        if self.source == "local":
            return self.checkpoint(step).folder
        return f"{self.root}/checkpoints/step{step}"

    def checkpoint(self, step: int) -> LocalCheckpoint:
        """Files of a checkpoint; one line if a local suite does not have the step."""
        if self.source != "local":
            return LocalCheckpoint(self.folder(step), CHECKPOINT_FILES[0], CHECKPOINT_FILES)
        if step not in self.local.checkpoints:
            raise ConfigError(f"suite {self.name}: step {step} is not among its checkpoints")
        return self.local.checkpoints[step]

    @cached_property
    def local(self) -> LocalRun:
        """Checkpoints of a local suite on its grid, and lines on folders that were skipped."""
        pattern, grid = self.section["pattern"], self.section["grid"]
        try:
            found = find_checkpoints(pattern)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error
        wanted = list(found.checkpoints) if grid == "discover" else suite_steps(grid)
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
        if self._frozen is not None and step in self._frozen:
            return self._frozen[step]
        name = branch_of(self.section.get("revision", DEFAULT_PATTERN), step)
        return name if name is not None else self._listed_branches()[step]

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
