"""Fetch revisions of a hub suite one after another; describe, probe, and delete each."""

import logging
import shutil
from pathlib import Path

from flatminima.absent_steps import MISSING
from flatminima.files import write_json, write_rows
from flatminima.hub import WEIGHTS_FILE, RevisionMissing, download_checkpoint
from flatminima.jobs import progress, run
from flatminima.kurtosis import kurtosis_of_checkpoint
from flatminima.revisions import describe_checkpoint, fingerprint_checkpoint, revision_table
from flatminima.scoring import Prober

logger = logging.getLogger(__name__)


def main(
    *,
    repo: str,
    branches: dict,
    validation: str,
    probe: dict,
    layers: str,
    tokens_per_step: int | None,
    threads: int,
    folder: str,
    code: str,
    outputs: dict,
) -> None:
    """Write the files that separate rules write for checkpoints on disk.

    ``branches`` maps steps to the hub's branches. A revision that the hub does not have gets a row
    with the reason. A checkpoint that has diverged is described, but has no scores and no
    kurtosis. At most one checkpoint at a time is in ``folder``, and none when the job ends.
    """
    prober = Prober(validation, probe, threads)
    rows = []
    fingerprints = []
    kurtosis = []
    scores = []
    weights = Path(folder, WEIGHTS_FILE)
    try:
        for step, branch in progress(branches.items(), "revisions", total=len(branches)):
            # Remove the previous revision, or one that a killed job left.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                origin = download_checkpoint(repo, branch, folder)
            except RevisionMissing as error:
                logger.warning(f"step {step} is missing: {error.reason}")
                reason = {"status": MISSING, "reason": error.reason}
                rows.append({"step": step, **reason, "revision": branch})
                continue
            fingerprint = fingerprint_checkpoint(step, weights)
            fingerprints.append(fingerprint)
            rows.append(describe_checkpoint(step, weights, origin, fingerprint))
            kurtosis += kurtosis_of_checkpoint(step, weights, layers)
            scores += prober.checkpoint(folder, step)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_rows([revision_table(rows, tokens_per_step)], outputs["revisions"])
    write_rows(fingerprints, outputs["fingerprints"])
    write_rows(kurtosis, outputs["kurtosis"])
    write_rows(scores, outputs["sequences"])
    write_json(outputs["provenance"], {**prober.made_by, "code": code})
    logger.info(f"{len(scores)} of {len(branches)} revisions probed")


if __name__ == "__main__":
    run(main, snakemake)
