"""Describe the checkpoints of a range of revisions: digests, sizes, dtypes and fingerprints."""

import logging

from flatminima.files import write_rows
from flatminima.jobs import progress, run
from flatminima.revisions import describe_checkpoint, fingerprint_checkpoint, revision_table

logger = logging.getLogger(__name__)


def main(
    *, weights: list, steps: list, tokens_per_step: int | None, table: str, fingerprints: str
) -> None:
    """Write one row and one fingerprint per revision. ``weights`` has the file of each step."""
    rows = []
    fingerprint_tables = []
    revisions = list(zip(steps, weights, strict=True))
    for step, path in progress(revisions, "describing"):
        fingerprint = fingerprint_checkpoint(step, path)
        fingerprint_tables.append(fingerprint)
        rows.append(describe_checkpoint(step, path, {}, fingerprint))
    write_rows([revision_table(rows, tokens_per_step)], table)
    write_rows(fingerprint_tables, fingerprints)
    logger.info(f"{len(rows)} revisions, {sum(row['bytes'] for row in rows) / 1e6:,.1f} MB")


if __name__ == "__main__":
    run(main, snakemake)
