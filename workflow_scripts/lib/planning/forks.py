"""Training that leaves the run under another schedule."""

from workflow_scripts.lib.config import ConfigError, find_schedule
from workflow_scripts.lib.planning.pretraining import PretrainingPlan


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
        return [
            f"{self.root}/forks/{schedule}-seed{seed}.csv"
            for schedule in fork["schedules"]
            for seed in fork["seeds"]
        ]

    def fork_inputs(self, schedule: str) -> dict[str, str]:
        """The checkpoint that a fork leaves from, and the run's state where moments are restored.

        Raises ``ConfigError`` for an unknown schedule.
        """
        find_schedule(self.section, schedule)
        fork = self.section["fork"]
        folder = self.folder(fork["start"])
        inputs = {"weights": f"{folder}/model.safetensors", "config": f"{folder}/config.json"}
        if fork["optimizer_state"] == "restored":
            inputs["state"] = f"{self.root}/training/step{fork['start']}.safetensors"
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
        return [
            f"{self.root}/cycles/{schedule}-{order}first-seed{seed}.csv"
            for schedule, definition in fork["schedules"].items()
            if definition["kind"] == "oli"
            for order in ("bump", "cool")
            for seed in fork["seeds"]
        ]

    def cycle_settings(self, schedule: str, order: str) -> dict:
        """A fork of OLI with one order of its phases, probed densely through its last cycles.

        Raises ``ConfigError`` for a schedule without phases.
        """
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
        unread = ("seeds", "schedules", "phase_resolved")
        fork = {k: v for k, v in self.section["fork"].items() if k not in unread}
        training = {k: v for k, v in self.training.items() if k not in ("seed", "batch_size")}
        return {
            "definition": dict(find_schedule(self.section, schedule)),
            "fork": fork,
            "training": training,
            "total_steps": self.last,
        }
