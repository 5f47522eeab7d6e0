"""Probes, kurtosis and revisions over the whole run, and its learning rate."""

from flatminima.integrity import DEFAULT_SEVERITY
from flatminima.planning.base import SuiteBase

SCHEDULE_KEYS = ("schedule", "lr_max", "lr_min", "warmup_steps")


class AuditPlan(SuiteBase):
    """Probes, kurtosis and revisions over the whole run, and its learning rate."""

    @property
    def probe_tables(self) -> list[str]:
        """Probes of all revisions."""
        return self._each_range("probes/{steps}.csv")

    @property
    def probe_sequences(self) -> list[str]:
        """Per-sequence scores of all revisions."""
        return self._each_range("probes/{steps}.parquet")

    @property
    def kurtosis_tables(self) -> list[str]:
        """Kurtosis of all revisions."""
        return self._each_range("kurtosis/{steps}.csv")

    @property
    def revision_tables(self) -> list[str]:
        """Descriptions of all revisions."""
        return self._each_range("revisions/{steps}.csv")

    @property
    def fingerprint_tables(self) -> list[str]:
        """Fingerprints of all revisions."""
        return self._each_range("revisions/{steps}.parquet")

    @property
    def integrity(self) -> dict:
        """What is done about each kind of finding."""
        return {**DEFAULT_SEVERITY, **self.section.get("integrity", {})}

    @property
    def kurtosis_layers(self) -> str:
        """Layers whose kurtosis is measured."""
        return self.section["kurtosis"]["layers"]

    @property
    def probe(self) -> dict:
        """Definitions and roles of the quantizers, and how a probe is run."""
        probe = self.section["probe"]
        roles = {probe["low_bit"]: "low_bit", probe["high_bit"]: "high_bit"}
        return {
            "quantizers": {name: dict(self.quantizers[name]) for name in roles},
            "roles": roles,
            "batch_size": probe["batch_size"],
            "resamples": probe["resamples"],
            "device": self.section["device"],
        }

    @property
    def probe_resamples(self) -> int:
        """Bootstrap resamples of gap intervals."""
        return self.section["probe"]["resamples"]

    @property
    def phase_resamples(self) -> int:
        """Bootstrap resamples of the steps of convergence and onset."""
        return self.section["phases"]["resamples"]

    @property
    def schedule(self) -> dict | None:
        """What decides the learning rate of the suite's own run; nothing where it is not known."""
        training = self.section.get("training")
        return training and {k: training[k] for k in SCHEDULE_KEYS}

    @property
    def tokens_per_step(self) -> int | None:
        """Training tokens per update of the suite's own run; nothing where it is not known."""
        trained = "training" in self.section and "train" in self.section["batches"]
        if "tokens_per_step" in self.section or not trained:
            return self.section.get("tokens_per_step")
        return self.section["training"]["batch_size"] * self.section["batches"]["train"]["length"]
