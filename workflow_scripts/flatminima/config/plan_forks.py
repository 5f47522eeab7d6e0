"""Files and settings that rules need for forks: training that starts from the suite's run.

Each condition and seed gives a series of checkpoints. There are four kinds of *series*:

- ``forks``: the paper's schedules,
- ``cycles``: OLI, with every phase of its last cycles probed,
- ``variants``: rivals, other amplitudes and the pilot,
- ``cooled``: a cool-down from the last checkpoint of each fork.

A *condition* is one name in a series. Rivals that are averages of the run's own checkpoints need
no training.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flatminima.conditions import Condition
from flatminima.config.keys import Compute, Fork
from flatminima.config.plan import (
    checkpoint_files,
    checkpoint_states,
    facts,
    frozen_names,
    schedule,
    training,
)
from flatminima.config.suites import Suite
from flatminima.errors import ConfigError, find
from flatminima.files import CHECKPOINT_FILES
from flatminima.schedules import (
    AverageKind,
    Continued,
    Cooldown,
    OscillatoryLockIn,
    ScheduleKind,
    read_schedule,
)

_CONDITION_KEYS = {"start", "steps", "probe_every", "batch_size", "optimizer_state", "rewarm_steps"}
CALIBRATION_BATCHES = 16  # batches of a fork, over whose gradients is averaged


@dataclass(frozen=True)
class Branch:
    """One condition of a series, for all seeds.

    - ``kind``: the schedule.
    - ``key``: the config key to name if training diverges.
    - ``fork``: changes of the suite's section ``fork``.
    - ``labels``: columns that distinguish the condition in its table.

    Branches that compare equal train identically and share one trajectory.
    """

    suite: Suite = field(compare=False)
    series: str
    name: str = field(compare=False)
    kind: ScheduleKind
    key: str = field(compare=False)
    fork: Mapping = field(default_factory=dict)
    labels: Mapping = field(default_factory=dict, compare=False)

    def condition(self) -> Condition:
        """Everything that decides the weights, except the seed and the input files.

        A schedule may set keys of ``training`` and ``compute``, such as weight_decay. They are
        moved from the schedule's definition to these sections.
        """
        config = self.suite.config
        sections = {
            "training": training(self.suite, "seed", "batch_size"),
            "compute": (config.compute or Compute()).dump(),
        }
        for section, keys in ScheduleKind.modifiers.items():
            sections[section] |= self.kind.dump(include=set(keys))
        # Keys that were moved into the sections are emptied, so that each stands in one place.
        moved_keys = [key for keys in ScheduleKind.modifiers.values() for key in keys]
        return Condition(
            definition=self.kind.model_copy(update=dict.fromkeys(moved_keys)),
            fork=config.fork.dump(include=_CONDITION_KEYS) | dict(self.fork),
            total_steps=self.suite.last,
            **sections,
        )

    def settings(self) -> dict:
        """The condition as a mapping, for jobs that train, summarise or draw it."""
        return self.condition().dump()

    def inputs(self) -> dict[str, str | list[str]]:
        """Files of the checkpoint it starts from, and the training state if that is restored."""
        optimizer_state = self.condition().fork["optimizer_state"]
        return fork_point(self.suite, f"{self.series}/checkpoints/{self.name}", optimizer_state)

    def start_states(self) -> dict[str, list[int]]:
        """State of each file of the checkpoint it starts from; see ``checkpoint_states``.

        Empty for ``cooled``, which starts from the last checkpoint of a fork. A job makes that.
        """
        return {} if self.series == "cooled" else fork_point_states(self.suite)

    def steps(self) -> list[int]:
        """Steps whose weights are measured."""
        return self.condition().saved_steps

    def folders(self, seed: str) -> dict[int, str]:
        """Folders of the checkpoints, by step."""
        folder = f"{self.suite.root}/{self.series}/checkpoints/{self.name}-seed{seed}"
        return {step: f"{folder}/step{step}" for step in self.steps()}

    def weights(self, seed: str) -> list[str]:
        """Files of the weights, in step order."""
        return [f"{folder}/{CHECKPOINT_FILES[0]}" for folder in self.folders(seed).values()]

    def source(self, seed: str) -> str:
        """Folder of the checkpoint it starts from: the run's, or for ``cooled`` the fork's last."""
        if self.series != "cooled":
            return fork_point_folder(self.suite)
        return list(branch(self.suite, "forks", self.name).folders(seed).values())[-1]

    def length(self) -> int:
        """Tokens per training sequence."""
        return self.fork.get("length", self.suite.key("batches.train.length"))

    def trajectory(self, seed: str) -> dict[str, str]:
        """Files with the scores and losses.

        Variants that train identically are trained once, under the name of the first.
        """
        name = self.name
        if self.series == "variants":
            name = next(other.name for other in branches(self.suite, "variants") if other == self)
        folder = f"{self.suite.root}/{self.series}"
        return {
            "sequences": f"{folder}/{name}-seed{seed}.parquet",
            "losses": f"{folder}/losses/{name}-seed{seed}.csv",
        }


def _forks(suite: Suite, fork: Fork) -> Iterator[Branch]:
    for name, kind in fork.schedules.items():
        yield Branch(suite, "forks", name, kind, f"fork.schedules.{name}")


def _cycles(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """OLI with both orders of its phases, probed densely in its last cycles."""
    for name, kind in fork.oli.items():
        dense = fork.phase_resolved
        probes = {"probe_every": dense.probe_every, "probe_last": dense.cycles * kind.period}
        for first_phase in ("bump", "cool"):
            reordered = kind.model_copy(update={"first": first_phase})
            key = f"fork.schedules.{name}"
            yield Branch(suite, "cycles", f"{name}-{first_phase}first", reordered, key, probes)


def _cooled(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """The common cool-down from the last checkpoint of each fork, probed at its end."""
    steps = fork.cooldown_steps
    if steps is None:
        return
    changes = {
        "start": fork.stop,
        "steps": steps,
        "probe_at": [steps],
        "optimizer_state": "fresh",
    }
    for name in fork.schedules:
        yield Branch(suite, "cooled", name, Cooldown(), "training.lr_max", changes)


def _rivals(suite: Suite, fork: Fork) -> Iterator[Branch]:
    for name, kind in (fork.rivals or {}).items():
        if isinstance(kind, ScheduleKind):
            probes = {"probe_at": kind.settled(fork.steps)}
            yield Branch(suite, "variants", name, kind, f"fork.rivals.{name}", probes)


def _amplitudes(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """Branches of OLI with each amplitude, at the first OLI schedule's period and at SGDR's.

    Bumps take the same fraction of a period as in the first OLI schedule. Cycles begin with the
    bump, so that they end in a cool phase.
    """
    if not fork.oli:
        return
    first_oli = next(iter(fork.oli.values()))
    periods = [first_oli.period]
    periods += [kind.period for kind in fork.schedules.values() if kind.kind == "sgdr"]
    for amplitude in fork.amplitudes or ():
        # Each period once, in order: OLI and SGDR often share theirs.
        for period in dict.fromkeys(periods):
            bump_steps = max(1, round(period * first_oli.bump_steps / first_oli.period))
            kind = OscillatoryLockIn(
                bump_steps=bump_steps,
                cool_steps=max(1, period - bump_steps),
                amplitude=amplitude,
                first="bump",
            )
            probes = {"probe_at": kind.settled(fork.steps)}
            labels = {"amplitude": amplitude, "period": period}
            name = f"oli_x{amplitude:g}_p{period}"
            yield Branch(suite, "variants", name, kind, "fork.amplitudes", probes, labels)


def _pilot(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """The paper's pilot, and four or six arms that vary its settings (appendix B).

    The pilot changed the sequence length, the tokens per update and the optimizer's state at the
    same time. The arms separate these changes.
    """
    pilot = fork.pilot
    if pilot is None:
        return
    states = ["fresh", "rewarmed"]
    if fork.start in suite.config.training_states:
        states.append("restored")

    short = pilot.length
    full = suite.key("batches.train.length")
    # Short sequences with as many tokens per update as a full batch has.
    # As many tokens in one update as the suite's own forks have.
    equal_tokens = fork.batch_size * full // short
    arms = [(short, fork.batch_size, "fresh")]
    arms += [(short, equal_tokens, state) for state in states]
    arms += [(full, fork.batch_size, state) for state in states]

    for length, batch_size, state in arms:
        labels = {"length": length, "batch_size": batch_size, "optimizer_state": state}
        changes = {
            "steps": pilot.steps,
            "probe_every": pilot.probe_every,
            **labels,
            "rewarm_steps": pilot.rewarm_steps,
        }
        name = f"pilot_{length}x{batch_size}_{state}"
        yield Branch(suite, "variants", name, Continued(), "training.lr_max", changes, labels)


# The conditions of each series. The order of variants matters: of those that train identically
# only the first is trained, so an amplitude is trained rather than a rival.
_SERIES = {
    "forks": [_forks],
    "cycles": [_cycles],
    "cooled": [_cooled],
    "variants": [_amplitudes, _rivals, _pilot],
}
# The conditions of each gathered table of variants.
_GATHERED = {"pilot": _pilot, "amplitudes": _amplitudes, "rivals": _rivals}


def branches(suite: Suite, series: str) -> list[Branch]:
    """All conditions of a series."""
    fork = suite.key("fork")
    return [branch for conditions in _SERIES[series] for branch in conditions(suite, fork)]


def branch(suite: Suite, series: str, name: str) -> Branch:
    """A condition of a series by its name. Raises ``ConfigError``."""
    branches_by_name = {branch.name: branch for branch in branches(suite, series)}
    return find(name, branches_by_name, f"suite {suite.name}: {series}")


def runs(suite: Suite, series: str) -> list[str]:
    """Names of all conditions of a series with all seeds, such as ``cosine-seed0``."""
    seeds = suite.key("fork.seeds")
    return [f"{branch.name}-seed{seed}" for branch in branches(suite, series) for seed in seeds]


def fork_facts(suite: Suite) -> dict:
    """Facts of the suite for figure 3, with each condition of the forks as it is trained."""
    conditions = {branch.name: branch.settings() for branch in branches(suite, "forks")}
    return {**facts(suite), "conditions": conditions}


def primary(suite: Suite) -> dict:
    """The comparison that is fixed in advance; empty if the suite has none."""
    comparison = suite.key("fork").primary
    return comparison.dump() if comparison else {}


def trajectories(suite: Suite, gathered: str) -> list[str]:
    """Tables of all conditions and seeds that one gathered table contains.

    ``gathered`` is a series, or pilot, amplitudes or rivals. Averages are not trained and have no
    table here.
    """
    if gathered in _SERIES:
        return [f"{suite.root}/{gathered}/{run}.csv" for run in runs(suite, gathered)]
    suite.key(f"fork.{gathered}")
    fork = suite.config.fork
    seeds = fork.rival_seeds or fork.seeds
    names = [branch.name for branch in _GATHERED[gathered](suite, fork)]
    return [f"{suite.root}/variants/{name}-seed{seed}.csv" for name in names for seed in seeds]


def fork_point(
    suite: Suite, makes: str, optimizer_state: str = "fresh"
) -> dict[str, str | list[str]]:
    """Files of the checkpoint from which forks start, and the training state if it is restored.

    ``makes`` is the output of the calling rule, below the suite's folder (``checkpoint_files``).
    """
    start = suite.key("fork.start")
    inputs = {"checkpoint": checkpoint_files(suite, [start], makes)}
    if optimizer_state == "restored":
        inputs["state"] = f"{suite.root}/training/step{start}.safetensors"
    return inputs


def fork_point_states(suite: Suite) -> dict[str, list[int]]:
    """State of each file of the checkpoint from which forks start; see ``checkpoint_states``."""
    return checkpoint_states(suite, [suite.key("fork.start")])


def fork_point_folder(suite: Suite) -> str:
    """Folder of the checkpoint from which forks start."""
    return suite.folder(suite.key("fork.start"))


# Rivals that are averages of the run's checkpoints.


def averages(suite: Suite) -> dict[str, AverageKind]:
    """Rivals that are averages of the run's checkpoints, by name."""
    rivals = suite.key("fork").rivals or {}
    return {name: kind for name, kind in rivals.items() if isinstance(kind, AverageKind)}


def average(suite: Suite, name: str) -> AverageKind:
    """An average by its name. Raises ``ConfigError``."""
    return find(name, averages(suite), f"suite {suite.name}: average")


def average_tables(suite: Suite) -> list[str]:
    """Tables with the probe of each average."""
    return [f"{suite.root}/averages/{name}.csv" for name in averages(suite)]


def average_files(suite: Suite, name: str) -> list[str]:
    """Files of the checkpoints that are averaged."""
    return checkpoint_files(suite, average_steps(suite, name), f"averages/{name}.csv")


def average_states(suite: Suite, name: str) -> dict[str, list[int]]:
    """State of each file of the checkpoints that are averaged; see ``checkpoint_states``."""
    return checkpoint_states(suite, average_steps(suite, name))


def average_folders(suite: Suite, name: str) -> list[str]:
    """Folders of the checkpoints that are averaged, in step order."""
    return [suite.folder(step) for step in average_steps(suite, name)]


def average_steps(suite: Suite, name: str) -> list[int]:
    """Steps of the checkpoints that are averaged, in order.

    Raises ``ConfigError`` if they do not suffice. Where steps are discovered, this is the first
    place that knows them.
    """
    kind = average(suite, name)
    fork = suite.config.fork
    # One mistake is enough for one line.
    mistake = next(kind.mistakes(suite.steps, fork.start, fork.stop), None)
    if mistake:
        _, reason = mistake
        raise ConfigError(f"suite {suite.name}: fork.rivals.{name}: {reason}")
    return kind.steps(suite.steps, fork.start, fork.stop)


# The calibrated amplitude, and files for the ledger.


def calibration_inputs(suite: Suite) -> dict[str, str | list[str]]:
    """Files of the checkpoint from which forks start, and its training state if it exists."""
    has_state = suite.key("fork.start") in suite.config.training_states
    optimizer_state = "restored" if has_state else "fresh"
    return fork_point(suite, "calibration.json", optimizer_state)


def is_calibrated(suite: Suite) -> bool:
    """Whether the suite has an OLI schedule and a quantizer that can calibrate its amplitude.

    The calibration needs the step between the levels of the quantizer. Only affine quantizers have
    evenly spaced levels.
    """
    return bool(suite.config.fork.oli) and suite.quantizer("low_bit").kind == "affine"


def calibration_settings(suite: Suite) -> dict:
    """Settings from which the amplitude of the first OLI schedule is calibrated."""
    fork = suite.key("fork")
    if not is_calibrated(suite):
        low_bit = suite.quantizer("low_bit").description
        raise ConfigError(
            f"suite {suite.name}: calibration.json needs a schedule of kind oli in fork.schedules "
            f"and a probe.low_bit of kind affine; probe.low_bit is {low_bit}"
        )
    run_schedule = read_schedule(schedule(suite), suite.last)
    return {
        "quantizer": suite.quantizer("low_bit").dump(),
        "start": fork.start,
        "batch_size": fork.batch_size,
        "batches": CALIBRATION_BATCHES,
        # Bumps are multiples of the run's own learning rate. (A rewarmed fork starts at rate 0.)
        "rate": run_schedule(fork.start),
        "bump": next(iter(fork.oli.values())).bump_steps,
        "training": suite.config.training.dump(include={"beta1", "beta2", "eps"}),
    }


def _available(suite: Suite, names: Iterable[str]) -> list[str]:
    """Paths of the files ``names``. For a published suite, only of those that are stored."""
    if suite.source == "published":
        stored = frozen_names(suite)
        names = [name for name in names if name in stored]
    return [f"{suite.root}/{name}" for name in names]


def fork_measurements(suite: Suite) -> dict[str, str]:
    """Files on conditions beyond the paper that the ledger reads, by name: ``pilot`` and others."""
    fork = suite.config.fork
    if fork is None:
        return {}
    names = [f"{key}.csv" for key in _GATHERED if getattr(fork, key)]
    if is_calibrated(suite):
        names.append("calibration.json")
    return {Path(path).stem: path for path in _available(suite, names)}


def cooled_table(suite: Suite) -> list[str]:
    """The path of cooled.csv, or an empty list if the suite has no cool-down."""
    fork = suite.config.fork
    if fork is None or fork.cooldown_steps is None:
        return []
    return _available(suite, ["cooled.csv"])
