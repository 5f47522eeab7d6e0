"""Record what the checkpoints of a range of revisions hold."""

import logging

from flatminima.files import write_rows
from flatminima.jobs import progress, run
from flatminima.revisions import describe_checkpoint, fingerprint_checkpoint, revision_table

logger = logging.getLogger(__name__)


def main(*, weights: list, steps: list, tokens_per_step: int | None, table: str,
         fingerprints: str) -> None:  # fmt: skip
    """Write a row and a fingerprint per revision; ``weights`` are those of ``steps``."""
    rows, prints = [], []
    revisions = list(zip(steps, weights, strict=True))
    for step, path in progress(revisions, "describing"):
        prints.append(fingerprint_checkpoint(step, path))
        rows.append(describe_checkpoint(step, path, {}, prints[-1]))
    write_rows([revision_table(rows, tokens_per_step)], table)
    write_rows(prints, fingerprints)
    logger.info(f"{len(rows)} revisions, {sum(row['bytes'] for row in rows) / 1e6:,.1f} MB")


if __name__ == "__main__":
    run(main, snakemake)
