"""What rules ask of what leaves a suite's run: a series of checkpoints a condition and seed.

A *series* is ``forks`` (the paper's schedules), ``cycles`` (OLI, every phase probed through
its last cycles), ``variants`` (rivals, other amplitudes, the pilot) or ``cooled`` (the branch
of each fork after its end); a *condition* is one name in it. Rivals that are averages of the
run's own checkpoints are not trained.
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

_OF_FORK = {"start", "steps", "probe_every", "batch_size", "optimizer_state", "rewarm_steps"}
CALIBRATION_BATCHES = 16  # of the fork's own, over which gradients are averaged


@dataclass(frozen=True)
class Branch:
    """One condition of a series, with whichever seed.

    ``kind`` is its schedule, ``key`` what decides in the configuration how fast it learns,
    ``fork`` what it changes in that section, ``labels`` the columns that tell it from the
    others of its table. Those that are equal are one trajectory.
    """

    suite: Suite = field(compare=False)
    series: str
    name: str = field(compare=False)
    kind: ScheduleKind
    key: str = field(compare=False)
    fork: Mapping = field(default_factory=dict)
    labels: Mapping = field(default_factory=dict, compare=False)

    def condition(self) -> Condition:
        """What its weights depend on besides its seed and its inputs.

        What the schedule's entry changes in ``training`` and ``compute`` stands there and no
        longer in the entry.
        """
        config = self.suite.config
        sections = {
            "training": training(self.suite, "seed", "batch_size"),
            "compute": (config.compute or Compute()).dump(),
        }
        for section, keys in ScheduleKind.modifiers.items():
            sections[section] |= self.kind.dump(include=set(keys))
        modifiers = [key for keys in ScheduleKind.modifiers.values() for key in keys]
        return Condition(
            definition=self.kind.model_copy(update=dict.fromkeys(modifiers)),
            fork=config.fork.dump(include=_OF_FORK) | dict(self.fork),
            total_steps=self.suite.last,
            **sections,
        )

    def settings(self) -> dict:
        """The condition as a mapping, for the jobs that train, summarise and draw it."""
        return self.condition().dump()

    def inputs(self) -> dict[str, str | list[str]]:
        """Files of the checkpoint that it leaves from, and the run's state if it is restored."""
        optimizer_state = self.condition().fork["optimizer_state"]
        return fork_point(self.suite, f"{self.series}/checkpoints/{self.name}", optimizer_state)

    def start_states(self) -> dict[str, list[int]]:
        """State of each file of a local suite's checkpoint that it leaves from.

        Nothing for ``cooled``: it leaves from a fork's last checkpoint, which a job has made.
        """
        return {} if self.series == "cooled" else fork_point_states(self.suite)

    def steps(self) -> list[int]:
        """Steps whose weights are measured."""
        return self.condition().saved_steps

    def folders(self, seed: str) -> dict[int, str]:
        """Checkpoints by their step."""
        folder = f"{self.suite.root}/{self.series}/checkpoints/{self.name}-seed{seed}"
        return {step: f"{folder}/step{step}" for step in self.steps()}

    def weights(self, seed: str) -> list[str]:
        """Weights in step order."""
        return [f"{folder}/{CHECKPOINT_FILES[0]}" for folder in self.folders(seed).values()]

    def source(self, seed: str) -> str:
        """The checkpoint that it leaves from: the run's, or for ``cooled`` the fork's last."""
        if self.series != "cooled":
            return fork_point_folder(self.suite)
        return list(branch(self.suite, "forks", self.name).folders(seed).values())[-1]

    def length(self) -> int:
        """Tokens per training sequence."""
        return self.fork.get("length", self.suite.key("batches.train.length"))

    def trajectory(self, seed: str) -> dict[str, str]:
        """Scores and losses; variants that train alike are trained once, under the first name."""
        alike = [other.name for other in branches(self.suite, self.series) if other == self]
        name = alike[0] if self.series == "variants" else self.name
        folder = f"{self.suite.root}/{self.series}"
        return {
            "sequences": f"{folder}/{name}-seed{seed}.parquet",
            "losses": f"{folder}/losses/{name}-seed{seed}.csv",
        }


def _forks(suite: Suite, fork: Fork) -> Iterator[Branch]:
    for name, kind in fork.schedules.items():
        yield Branch(suite, "forks", name, kind, f"fork.schedules.{name}")


def _cycles(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """OLI with either order of its phases, probed densely through its last cycles."""
    for name, kind in fork.oli.items():
        dense = fork.phase_resolved
        probes = {"probe_every": dense.probe_every, "probe_last": dense.cycles * kind.period}
        for first in ("bump", "cool"):
            changed = kind.model_copy(update={"first": first})
            key = f"fork.schedules.{name}"
            yield Branch(suite, "cycles", f"{name}-{first}first", changed, key, probes)


def _cooled(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """The common cool-down from the last checkpoint of each fork, measured at its end."""
    if steps := fork.cooldown_steps:
        change = {"start": fork.stop, "steps": steps, "probe_at": [steps],
                  "optimizer_state": "fresh"}  # fmt: skip
        for name in fork.schedules:
            yield Branch(suite, "cooled", name, Cooldown(), "training.lr_max", change)


def _rivals(suite: Suite, fork: Fork) -> Iterator[Branch]:
    for name, kind in (fork.rivals or {}).items():
        if isinstance(kind, ScheduleKind):
            probes = {"probe_at": kind.settled(fork.steps)}
            yield Branch(suite, "variants", name, kind, f"fork.rivals.{name}", probes)


def _amplitudes(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """OLI at each amplitude, at its own cadence and at that of each SGDR; it ends at rest.

    The fraction of a cycle that is a bump is that of the first OLI schedule.
    """
    if not fork.oli:
        return
    own = next(iter(fork.oli.values()))
    periods = [own.period, *(k.period for k in fork.schedules.values() if k.kind == "sgdr")]
    for value in fork.amplitudes or ():
        for period in dict.fromkeys(periods):
            bump = max(1, round(period * own.bump_steps / own.period))
            kind = OscillatoryLockIn(
                bump_steps=bump, cool_steps=max(1, period - bump), amplitude=value, first="bump"
            )
            probes = {"probe_at": kind.settled(fork.steps)}
            labels = {"amplitude": value, "period": period}
            name = f"oli_x{value:g}_p{period}"
            yield Branch(suite, "variants", name, kind, "fork.amplitudes", probes, labels)


def _pilot(suite: Suite, fork: Fork) -> Iterator[Branch]:
    """The paper's pilot and the four or six arms that take it apart (appendix B)."""
    if not (pilot := fork.pilot):
        return
    states = ["fresh", "rewarmed"]
    states += ["restored"] if fork.start in suite.config.training_states else []
    # Sequences per update: the fork's own, and as many short ones as have the same tokens.
    short, whole, own = pilot.length, suite.key("batches.train.length"), fork.batch_size
    arms = [(short, own, "fresh")]
    arms += [
        (length, batch, state)
        for length, batch in ((short, own * whole // short), (whole, own))
        for state in states
    ]
    for length, batch, state in arms:
        labels = {"length": length, "batch_size": batch, "optimizer_state": state}
        change = {"steps": pilot.steps, "probe_every": pilot.probe_every, **labels,
                  "rewarm_steps": pilot.rewarm_steps}  # fmt: skip
        name = f"pilot_{length}x{batch}_{state}"
        yield Branch(suite, "variants", name, Continued(), "training.lr_max", change, labels)


# What each series has, and each gathered table of it. Of variants that train alike the
# amplitudes are the ones that are trained.
_SERIES = {
    "forks": [_forks],
    "cycles": [_cycles],
    "cooled": [_cooled],
    "variants": [_amplitudes, _rivals, _pilot],
}
_GATHERED = {"pilot": _pilot, "amplitudes": _amplitudes, "rivals": _rivals}


def branches(suite: Suite, series: str) -> list[Branch]:
    """All conditions of a series."""
    fork = suite.key("fork")
    return [found for conditions in _SERIES[series] for found in conditions(suite, fork)]


def branch(suite: Suite, series: str, name: str) -> Branch:
    """A condition by its name; one line where there is none of it."""
    known = {found.name: found for found in branches(suite, series)}
    return find(name, known, f"suite {suite.name}: {series}")


def runs(suite: Suite, series: str) -> list[str]:
    """Names of all conditions of a series with all seeds: ``cosine-seed0``."""
    seeds = suite.key("fork.seeds")
    return [f"{found.name}-seed{seed}" for found in branches(suite, series) for seed in seeds]


def fork_facts(suite: Suite) -> dict:
    """What figure 3 needs to know of the suite: each condition of the forks as it is trained."""
    conditions = {found.name: found.settings() for found in branches(suite, "forks")}
    return {**facts(suite), "conditions": conditions}


def primary(suite: Suite) -> dict:
    """The comparison that is named beforehand; empty where the suite names none."""
    named = suite.key("fork").primary
    return named.dump() if named else {}


def trajectories(suite: Suite, gathered: str) -> list[str]:
    """Tables of all conditions of one gathered table that are trained.

    ``gathered`` is a series, pilot, amplitudes or rivals.
    """
    if gathered in _SERIES:
        return [f"{suite.root}/{gathered}/{run}.csv" for run in runs(suite, gathered)]
    suite.key(f"fork.{gathered}")
    fork = suite.config.fork
    seeds = fork.rival_seeds or fork.seeds
    names = [found.name for found in _GATHERED[gathered](suite, fork)]
    return [f"{suite.root}/variants/{name}-seed{seed}.csv" for name in names for seed in seeds]


def fork_point(
    suite: Suite, makes: str, optimizer_state: str = "fresh"
) -> dict[str, str | list[str]]:
    """Files of the checkpoint that forks leave from, and the run's state where it is restored.

    ``makes`` is what the rule makes, below the suite's folder (see ``checkpoint_files``).
    """
    start = suite.key("fork.start")
    inputs: dict[str, str | list[str]]
    inputs = {"checkpoint": checkpoint_files(suite, [start], makes)}
    if optimizer_state == "restored":
        inputs["state"] = f"{suite.root}/training/step{start}.safetensors"
    return inputs


def fork_point_states(suite: Suite) -> dict[str, list[int]]:
    """State of each file of a local suite's checkpoint that forks leave from."""
    return checkpoint_states(suite, [suite.key("fork.start")])


def fork_point_folder(suite: Suite) -> str:
    """Folder of the checkpoint that forks leave from."""
    return suite.folder(suite.key("fork.start"))


# Rivals that are averages of the run's checkpoints.


def averages(suite: Suite) -> dict[str, AverageKind]:
    """They, by name."""
    rivals = suite.key("fork").rivals or {}
    return {name: kind for name, kind in rivals.items() if isinstance(kind, AverageKind)}


def average(suite: Suite, name: str) -> AverageKind:
    """One of them; one line where there is none of that name."""
    return find(name, averages(suite), f"suite {suite.name}: average")


def average_tables(suite: Suite) -> list[str]:
    """Tables of all averages."""
    return [f"{suite.root}/averages/{name}.csv" for name in averages(suite)]


def average_files(suite: Suite, name: str) -> list[str]:
    """Files of the checkpoints that an average is made from."""
    return checkpoint_files(suite, average_steps(suite, name), f"averages/{name}.csv")


def average_states(suite: Suite, name: str) -> dict[str, list[int]]:
    """State of each of them in a local suite."""
    return checkpoint_states(suite, average_steps(suite, name))


def average_folders(suite: Suite, name: str) -> list[str]:
    """Folders of the checkpoints that an average is made from, in order."""
    return [suite.folder(step) for step in average_steps(suite, name)]


def average_steps(suite: Suite, name: str) -> list[int]:
    """Revisions that it is made from, in order."""
    kind = average(suite, name)
    fork = suite.config.fork
    span = (suite.steps, fork.start, fork.stop)
    for _, mistake in kind.mistakes(*span):  # not known before where steps are found
        raise ConfigError(f"suite {suite.name}: fork.rivals.{name}: {mistake}")
    return kind.steps(*span)


# The calibrated amplitude, and what the ledger reads.


def calibration_inputs(suite: Suite) -> dict[str, str | list[str]]:
    """Files of the fork point's checkpoint, and the run's moments there if they exist."""
    has_state = suite.key("fork.start") in suite.config.training_states
    return fork_point(suite, "calibration.json", "restored" if has_state else "fresh")


def is_calibrated(suite: Suite) -> bool:
    """Whether there is an amplitude to calibrate, and a step between levels to calibrate it by.

    A code book has levels at uneven distances.
    """
    return bool(suite.config.fork.oli) and suite.quantizer("low_bit").kind == "affine"


def calibration_settings(suite: Suite) -> dict:
    """What the amplitude of the first OLI schedule is derived from."""
    fork = suite.key("fork")
    if not is_calibrated(suite):
        low_bit = suite.quantizer("low_bit").description
        raise ConfigError(
            f"suite {suite.name}: calibration.json needs a schedule of kind oli in fork.schedules "
            f"and a probe.low_bit of kind affine; probe.low_bit is {low_bit}"
        )
    run = read_schedule(schedule(suite), suite.last)
    return {
        "quantizer": suite.quantizer("low_bit").dump(),
        "start": fork.start,
        "batch_size": fork.batch_size,
        "batches": CALIBRATION_BATCHES,
        # The run's own rate, which bumps are multiples of. That of a rewarmed fork is 0 here.
        "rate": run(fork.start),
        "bump": next(iter(fork.oli.values())).bump_steps,
        "training": suite.config.training.dump(include={"beta1", "beta2", "eps"}),
    }


def _made(suite: Suite, names: Iterable[str]) -> list[str]:
    """Those of the tables that a suite makes; of a published suite only what is frozen."""
    made = frozen_names(suite) if suite.source == "published" else names
    return [f"{suite.root}/{name}" for name in names if name in made]


def fork_measurements(suite: Suite) -> dict[str, str]:
    """What the ledger reads of conditions beyond the paper, by its name there."""
    if not (fork := suite.config.fork):
        return {}
    names = [f"{key}.csv" for key in _GATHERED if getattr(fork, key)]
    if is_calibrated(suite):
        names.append("calibration.json")
    return {Path(path).stem: path for path in _made(suite, names)}


def cooled_table(suite: Suite) -> list[str]:
    """cooled.csv where the suite has it."""
    fork = suite.config.fork
    return _made(suite, ["cooled.csv"]) if fork and fork.cooldown_steps else []
