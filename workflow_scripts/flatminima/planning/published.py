"""What of a suite is frozen, and what a suite has that is nothing but frozen measurements."""

from functools import cached_property
from pathlib import Path

from flatminima.errors import ConfigError, DamagedFile
from flatminima.planning.mechanism import FINDING_TABLES, MechanismPlan
from flatminima.published import DIGESTS_FILE, missing_file, read_digests

# What the figures and the notebook about the mechanism read beside the tables of findings.
_BESIDE = {"factorial": ["factorial"], "replication": ["replication_runs"]}


class PublishedPlan(MechanismPlan):
    """What of a suite is frozen, and what a suite has that is nothing but frozen measurements."""

    @property
    def is_published(self) -> bool:
        """Whether the suite has no checkpoints, only what was measured of them."""
        return self.section["source"] == "published"

    @property
    def mechanism_files(self) -> dict[str, list[str]]:
        """Tables of each measure of the mechanism that is asked for, below the suite's folder."""
        return {
            measure: [f"mechanism/{n}.csv" for n in (*tables, *_BESIDE.get(measure, ()))]
            for measure, tables in FINDING_TABLES.items()
            if measure in self.mechanism
        }

    @property
    def frozen_folder(self) -> str:
        """Folder of the frozen measurements."""
        return self.section["measurements"]

    @cached_property
    def frozen_names(self) -> list[str]:
        """What is frozen, by its name below the suite's folder; one line if the list is lost."""
        try:
            return list(read_digests(Path(self.frozen_folder)))
        except DamagedFile as error:
            raise ConfigError(f"suite {self.name}: {error}") from error

    @property
    def frozen_files(self) -> list[str]:
        """The frozen files and the list of their digests; one line if one of them is lost."""
        if line := missing_file(Path(self.frozen_folder), self.frozen_names):
            raise ConfigError(f"suite {self.name}: {line}")
        return [f"{self.frozen_folder}/{name}" for name in (DIGESTS_FILE, *self.frozen_names)]

    def checkpoint_files(self, steps: str) -> list[str]:
        """Weights and configuration of a range; one line where nothing frozen was made of it.

        Snakemake asks for the inputs of every rule that could make a frozen file.
        """
        made = {f"probes/{steps}.csv", "deployed.csv"}
        if self.is_published and made.isdisjoint(self.frozen_names):
            raise ConfigError(
                f"suite {self.name} has no checkpoints, only what is frozen in "
                f"{self.frozen_folder}; what it lacks is measured under "
                f"results/{Path(self.frozen_folder).name}/"
            )
        return super().checkpoint_files(steps)

    @property
    def restored_files(self) -> list[str]:
        """The same files where the rules look for them."""
        return [f"{self.root}/{name}" for name in self.frozen_names]

    @property
    def fork_measurements(self) -> dict[str, str]:
        """What the ledger reads of conditions beyond the paper, of a published suite if frozen."""
        found = super().fork_measurements
        if not self.is_published:
            return found
        return {key: path for key, path in found.items() if path in self.restored_files}
