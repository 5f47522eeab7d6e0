"""The training of a suite that is trained here."""

from dataclasses import dataclass
from itertools import pairwise

from flatminima.files import DIGESTS_FILE
from flatminima.planning.audit import AuditPlan
from flatminima.planning.data import DataPlan
from flatminima.suite import CHECKPOINT_FILES


@dataclass(frozen=True)
class PretrainingJob:
    """One training job of a suite that is trained here: from ``start`` to ``stop``."""

    suite: str
    start: int
    stop: int
    inputs: dict[str, str]
    files: list[str]
    checkpoints: dict[int, str]
    settings: dict
    threads: int


class PretrainingPlan(DataPlan, AuditPlan):
    """The training of a suite that is trained here."""

    @property
    def training(self) -> dict:
        """How the suite is trained, without how its training is cut into jobs."""
        unread = ("jobs_end_at", "save_every")
        return {k: v for k, v in self.section["training"].items() if k not in unread}

    @property
    def save_every(self) -> int:
        """Updates between two saved states of a training job."""
        return self.section["training"]["save_every"]

    @property
    def pretraining_jobs(self) -> list[PretrainingJob]:
        """The jobs that train the suite one after another; none for a hub suite."""
        if self.section["source"] != "pretrain":
            return []
        ends = [0, *self.section["training"]["jobs_end_at"]]
        return [self._pretraining_job(start, stop) for start, stop in pairwise(ends)]

    def _pretraining_job(self, start: int, stop: int) -> PretrainingJob:
        due = [s for s in self.steps if start < s <= stop or s == start == 0]
        names = (*CHECKPOINT_FILES, DIGESTS_FILE)
        inputs = {"train": f"{self.root}/data/train.safetensors"}
        if start:
            inputs["initial_state"] = f"{self.root}/training/step{start}.safetensors"
        return PretrainingJob(
            suite=self.name,
            start=start,
            stop=stop,
            inputs=inputs,
            files=[f"{self.folder(step)}/{file}" for step in due for file in names],
            checkpoints={step: self.folder(step) for step in due},
            settings={
                "architecture": dict(self.section["architecture"]),
                "vocab_size": self.vocab_size,
                "training": self.training,
                "total_steps": self.last,
                "start": start,
                "stop": stop,
            },
            threads=self.threads,
        )
