"""What of a suite is frozen, and what a suite has that is nothing but frozen measurements."""

from functools import cached_property
from pathlib import Path

from flatminima.errors import ConfigError, DamagedFile
from flatminima.frozen import DIGESTS_FILE, missing_files, read_digests
from flatminima.planning.mechanism import FINDING_TABLES, MechanismPlan

# What the figures and the notebook about the mechanism read beside the tables of findings.
_BESIDE = {"factorial": ["factorial"], "replication": ["replication_runs"]}
_MANIFESTS = ("data/text.json", "data/train.json", "data/validation.json")
_AS_THEY_ARE = ("cycles.csv", "deployed.csv")  # tables that nothing else is made from


class PublishedPlan(MechanismPlan):
    """What of a suite is frozen, and what a suite has that is nothing but frozen measurements."""

    @property
    def is_published(self) -> bool:
        """Whether the suite has no checkpoints, only what was measured of them."""
        return self.section["source"] == "published"

    # A suite with checkpoints: which of its files are frozen by `make publish`.

    @property
    def measured(self) -> list[str]:
        """Files, below the suite's folder, that everything of the target ``all`` is made from."""
        records = [Path(path).with_suffix(".json").as_posix() for path in self.probe_tables]
        paths = [*self.probe_tables, *self.probe_sequences, *records, *self.kurtosis_tables]
        if self.has_forks:
            records = [Path(path).with_suffix(".json").as_posix() for path in self.forks]
            paths += [*self.forks, *self.fork_sequences, *records]
        return ["suite.csv", *self._below(paths)]

    @property
    def measured_beside(self) -> list[str]:
        """Further files that are frozen where they exist: tables that take no part in ``all``."""
        tables = [name for measure in FINDING_TABLES for name in self._mechanism_tables(measure)]
        return [*_MANIFESTS, *_AS_THEY_ARE, *self._below(self.fork_measurements.values()), *tables]

    def _mechanism_tables(self, measure: str) -> list[str]:
        if measure not in self.mechanism:
            return []
        names = [*FINDING_TABLES[measure], *_BESIDE.get(measure, [])]
        return [f"mechanism/{name}.csv" for name in names]

    def _below(self, paths: list[str]) -> list[str]:
        return [path.removeprefix(f"{self.root}/") for path in paths]

    def unmeasured_keys(self, there: set[str]) -> list[tuple[str, str]]:
        """Section and key of everything beyond the paper that is not among the files ``there``."""
        found = [
            ("mechanism", measure)
            for measure in FINDING_TABLES
            if measure in self.mechanism and not set(self._mechanism_tables(measure)) <= there
        ]
        tables = {k: v for k, v in self.fork_measurements.items() if k != "calibration"}
        gone = [("fork", k) for k, path in tables.items() if self._below([path])[0] not in there]
        return found + gone

    # A suite of frozen measurements.

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
        if line := missing_files(Path(self.frozen_folder), self.frozen_names):
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
