"""Training that leaves the run under another schedule."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from flatminima.errors import ConfigError, suggest
from flatminima.planning.pretraining import PretrainingPlan
from flatminima.schedules import ScheduleKind

_READ = ("start", "steps", "probe_every", "batch_size", "optimizer_state", "rewarm_steps")


class ForkPlan(PretrainingPlan):
    """Training that leaves the run under another schedule."""

    @property
    def has_forks(self) -> bool:
        """Whether the suite defines forks."""
        return "fork" in self.section

    @property
    def forks(self) -> list[str]:
        """Trajectories of all schedules and seeds of the configuration."""
        fork = self.section["fork"]
        pattern = f"{self.root}/forks/{{name}}-seed{{seed}}.csv"
        return seeded(pattern, fork["schedules"], fork["seeds"])

    @property
    def keeps_forks(self) -> bool:
        """Whether the weights of forks stay once they have been measured."""
        return keeps_forks(self.section)

    @property
    def device(self) -> str:
        """Where models run."""
        return self.section["device"]

    @property
    def fork_probe(self) -> dict:
        """How a fork is probed; what is done with the scores is not part of it."""
        return {key: value for key, value in self.probe.items() if key != "resamples"}

    @property
    def train_length(self) -> int:
        """Tokens per training sequence."""
        return self.section["batches"]["train"]["length"]

    def _inputs_of(self, optimizer_state: str) -> dict[str, str]:
        start = self.section["fork"]["start"]
        (weights,) = self.weights(f"step{start}")
        inputs = {"weights": weights, "config": f"{self.folder(start)}/config.json"}
        if optimizer_state == "restored":
            inputs["state"] = f"{self.root}/training/step{start}.safetensors"
        return inputs

    @property
    def fork_sequences(self) -> list[str]:
        """Per-sequence scores of all forks of the configuration."""
        return [path.removesuffix(".csv") + ".parquet" for path in self.forks]

    @property
    def deployed_folders(self) -> dict[int, str]:
        """Checkpoints that are probed as they would ship: where the forks begin, and the last."""
        steps = dict.fromkeys((self.section.get("fork", {}).get("start", self.last), self.last))
        return {step: self.folder(step) for step in steps}

    @property
    def deployed_files(self) -> list[str]:
        """Weights and configuration of these checkpoints."""
        return [f for step in self.deployed_folders for f in self.checkpoint_files(f"step{step}")]

    @property
    def cycles(self) -> list[str]:
        """Phase-resolved probes of every OLI schedule, both orders and all seeds."""
        fork = self.section["fork"]
        names = [
            f"{schedule}-{order}first"
            for schedule, definition in fork["schedules"].items()
            if definition["kind"] == "oli"
            for order in ("bump", "cool")
        ]
        return seeded(f"{self.root}/cycles/{{name}}-seed{{seed}}.csv", names, fork["seeds"])

    def cycle_settings(self, condition: str) -> dict:
        """A fork of OLI with one order of its phases, probed densely through its last cycles.

        ``condition`` is ``{schedule}-{order}first``. Raises ``ConfigError`` for another name and
        for a schedule without phases.
        """
        schedule, _, order = condition.removesuffix("first").rpartition("-")
        if order not in ("bump", "cool"):
            raise ConfigError(
                f"suite {self.name}: cycles {condition!r}; valid: a schedule of kind oli with "
                "-bumpfirst or -coolfirst"
            )
        settings = self.fork_settings(schedule)
        definition = settings["definition"]
        if definition["kind"] != "oli":
            raise ConfigError(f"fork.schedules: {schedule!r} has no phases; only kind oli has")
        period = definition["bump_steps"] + definition["cool_steps"]
        resolved = self.section["fork"]["phase_resolved"]
        fork = settings["fork"] | {
            "probe_every": resolved["probe_every"],
            "probe_last": resolved["cycles"] * period,
        }
        return settings | {"definition": definition | {"first": order}, "fork": fork}

    def fork_settings(self, schedule: str) -> dict:
        """What one fork's trajectory depends on besides its seed and its inputs."""
        return self._settings_of(find_schedule(self.section, schedule))

    def _settings_of(self, definition: Mapping, fork: Mapping = MappingProxyType({})) -> dict:
        """Settings of a condition, with what it changes in the sections of the suite."""
        section = self.section["fork"]
        own = {k: v for k, v in self.training.items() if k not in ("seed", "batch_size")}
        sections = {"training": own, "compute": dict(self.section.get("compute", {}))}
        for name, keys in ScheduleKind.modifiers.items():
            sections[name] |= {key: definition[key] for key in keys if key in definition}
        changed = {key for keys in ScheduleKind.modifiers.values() for key in keys}
        return {
            "definition": {k: v for k, v in definition.items() if k not in changed},
            "fork": {key: section[key] for key in _READ if key in section} | dict(fork),
            "total_steps": self.last,
            **sections,
        }


def seeded(pattern: str, names: Iterable[str], seeds: Iterable[int]) -> list[str]:
    """``pattern`` for each name and seed."""
    return [pattern.format(name=name, seed=seed) for name in names for seed in seeds]


def keeps_forks(section: Mapping) -> bool:
    """Whether a suite's forks keep their weights once they have been measured."""
    return section.get("fork", {}).get("keep_checkpoints", section["source"] == "pretrain")


def find_schedule(suite: Mapping, name: str) -> dict:
    """The fork schedule ``name`` of a suite; one line if there is none."""
    schedules = suite["fork"]["schedules"]
    if name not in schedules:
        hint = suggest(name, list(schedules))
        raise ConfigError(f"config key fork.schedules: {name!r} is not known; {hint}")
    return schedules[name]
