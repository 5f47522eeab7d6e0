"""Revisions of a hub surveyed one after another: fetched, measured, deleted.

What is measured of a revision are the numbers that the rules for kept checkpoints write,
by the same functions.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from flatminima.files import write_rows
from flatminima.jobs import log, progress
from flatminima.kurtosis import kurtosis_of_checkpoint
from flatminima.model import WEIGHTS_FILE, load_model
from flatminima.revisions.describing import (
    describe_checkpoint,
    describe_missing,
    revision_table,
)
from flatminima.revisions.findings import MISSING
from flatminima.revisions.fingerprints import fingerprint_checkpoint
from flatminima.revisions.finished_parts import FinishedParts
from flatminima.revisions.prefetching import fetched_ahead
from flatminima.scoring import Prober, write_probes

SCORES, KURTOSIS, FINGERPRINT = "scores", "kurtosis", "fingerprint"
LOCK = "at_work.lock"  # held by the job that works on a range
Fetch = Callable[[int, Path], Mapping]


@dataclass(frozen=True)
class Survey:
    """What is measured of each revision, and where finished revisions are kept.

    ``layers`` are those of ``layers.linear_layers``; ``finished`` also holds the checkpoints
    that are at work, in its folder ``checkpoints``.
    """

    prober: Prober
    layers: str
    tokens_per_step: int
    finished: FinishedParts

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step is while it is at work."""
        return self.finished.folder / "checkpoints" / f"step{step}"

    def run(self, steps: Sequence[int], fetch: Fetch, most: int) -> dict[int, Mapping]:
        """Measure what is not yet finished; returns the origins of revisions that are missing.

        ``fetch`` puts the checkpoint of a step into a folder and returns its origin, whose
        ``status`` says whether there is one. At most ``most`` checkpoints exist at a time.
        """
        with FileLock(self.finished.folder / LOCK):
            left = [step for step in steps if not self.finished.has(f"step{step}")]
            self._tidy(left[:most])
            return self._survey(left, fetch, most)

    def _survey(self, left: Sequence[int], fetch: Fetch, most: int) -> dict[int, Mapping]:
        missing = {}
        pending = fetched_ahead(
            left, lambda step: fetch(step, self.folder(step)), self._delete, most
        )
        with closing(pending):
            for step, origin in progress(pending, "surveying", total=len(left)):
                if origin.get("status") == MISSING:
                    log(f"step {step} is missing: {origin['reason']}")
                    missing[step] = origin
                else:
                    self._measure(step, origin)
        return missing

    def _tidy(self, next_steps: Sequence[int]) -> None:
        """Delete the checkpoints that killed jobs left, but for those that are fetched next."""
        wanted = {self.folder(step).name for step in next_steps}
        for left in self.finished.folder.glob("checkpoints/*"):
            if left.name not in wanted:
                shutil.rmtree(left)
        for other in self.finished.folder.parent.iterdir():
            if other == self.finished.folder or not (other / "checkpoints").is_dir():
                continue
            with suppress(Timeout), FileLock(other / LOCK, timeout=0):  # none works on it
                shutil.rmtree(other / "checkpoints")

    def _delete(self, step: int) -> None:
        shutil.rmtree(self.folder(step), ignore_errors=True)

    def _measure(self, step: int, origin: Mapping) -> None:
        folder = self.folder(step)
        weights = folder / WEIGHTS_FILE
        fingerprint = fingerprint_checkpoint(step, weights)
        row = describe_checkpoint(step, weights, origin, fingerprint, self.tokens_per_step)
        tables = {
            FINGERPRINT: fingerprint,
            KURTOSIS: kurtosis_of_checkpoint(step, weights, self.layers),
            SCORES: self.prober(load_model(folder, self.prober.device), step),
        }
        self.finished.keep(f"step{step}", row, tables)

    def write(
        self, steps: Sequence[int], missing: Mapping[int, Mapping], outputs: Mapping[str, str],
        resamples: int,
    ) -> None:  # fmt: skip
        """Write the outputs of the rule: probes, sequences, kurtosis, revisions, fingerprints."""
        there = [f"step{step}" for step in steps if step not in missing]

        def tables(name: str) -> list[pd.DataFrame]:
            return [self.finished.table(part, name) for part in there]

        rows = [
            describe_missing(step, missing[step], self.tokens_per_step)
            if step in missing
            else self.finished.record(f"step{step}")
            for step in steps
        ]
        write_probes(
            tables(SCORES), resamples=resamples,
            table=outputs["table"], sequences=outputs["sequences"],
        )  # fmt: skip
        write_rows(tables(KURTOSIS), outputs["kurtosis"])
        write_rows([revision_table(rows)], outputs["revisions"])
        write_rows(tables(FINGERPRINT), outputs["fingerprints"])
