"""Where the files of a suite are, and which ranges of revisions jobs work on."""

from dataclasses import dataclass
from pathlib import Path

from flatminima.errors import ConfigError
from flatminima.planning.grid import GridPlan
from flatminima.suite import CHECKPOINT_FILES, chunk_names, parse_range


@dataclass(frozen=True)
class SuiteBase(GridPlan):
    """Where the files of a suite are, and which ranges of revisions jobs work on."""

    @property
    def root(self) -> str:
        """Folder of everything the suite has."""
        return f"results/{self.name}"

    @property
    def threads(self) -> int:
        """CPU threads of a training or probing job."""
        return self.section["threads"]

    @property
    def gpus(self) -> int:
        """GPUs that a training or probing job asks for: one, unless the device can be none.

        With ``auto`` a cluster is to give one; a machine without any runs such jobs one by one.
        """
        return int(self.section["device"] in ("cuda", "auto"))

    def steps_in(self, name: str) -> list[int]:
        """Steps of ``step70000`` or ``step60000-step75000``; one line if it is off the grid."""
        try:
            return parse_range(name, self.steps)
        except ValueError as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    def _each_range(self, pattern: str) -> list[str]:
        """``pattern`` for each range of revisions that one job works on."""
        names = chunk_names(self.steps, self.section["probe"]["steps_per_job"])
        return [f"{self.root}/{pattern.format(steps=name)}" for name in names]

    def folder(self, step: int | str) -> str:
        """Checkpoint of one step, in Hugging Face format: a local suite's where it lies."""
        if self.is_local:
            return self.checkpoint(step).folder
        return f"{self.root}/checkpoints/step{step}"

    @property
    def model_config(self) -> Path:
        """What the last checkpoint of a local suite says of its model."""
        return Path(self.folder(self.steps[-1]), "config.json")

    def folders(self, steps: str) -> dict[int, str]:
        """Checkpoints of a range, by step."""
        return {step: self.folder(step) for step in self.steps_in(steps)}

    def checkpoint_files(self, steps: str) -> list[str]:
        """Weights and configuration of each checkpoint of a range."""
        return [
            f"{path}/{name}"
            for step, path in self.folders(steps).items()
            for name in (self.checkpoint(step).files if self.is_local else CHECKPOINT_FILES)
        ]

    def weights(self, steps: str) -> list[str]:
        """Weights of each checkpoint of a range, or the index of their shards, in step order."""
        return [
            f"{path}/{self.checkpoint(step).weights if self.is_local else CHECKPOINT_FILES[0]}"
            for step, path in self.folders(steps).items()
        ]

    def shards(self, steps: str) -> list[str]:
        """Files of a range that an index in ``weights`` names."""
        indices = self.weights(steps)
        return [
            path
            for path in self.checkpoint_files(steps)
            if path.endswith(".safetensors") and path not in indices
        ]

    def repo(self, step: str) -> str:
        """Hub model that the revision of ``step`` is in; one line if the step is off the grid."""
        self.steps_in(f"step{step}")
        return self.section["repo"]

    def revision(self, step: int | str) -> str:
        """Hub branch that holds ``step``; one line if the step is off the grid."""
        self.steps_in(f"step{step}")
        return self.branch(int(step))

    def revisions(self, steps: str) -> dict[int, str]:
        """Hub branches of a range, by step."""
        return {step: self.revision(step) for step in self.steps_in(steps)}

    @property
    def hub_repo(self) -> str:
        """Hub model that all revisions are in."""
        return self.section["repo"]
