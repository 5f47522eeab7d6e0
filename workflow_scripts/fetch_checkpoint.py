"""Fetch one revision of a suite from the Hugging Face hub."""

import logging
from pathlib import Path

from flatminima.files import write_json
from flatminima.hub import download_checkpoint
from flatminima.jobs import run

logger = logging.getLogger(__name__)


def main(*, repo: str, revision: str, weights: str, record: str) -> None:
    """Write the checkpoint to the folder of ``weights``, and a record of its origin."""
    origin = download_checkpoint(repo, revision, Path(weights).parent)
    write_json(record, origin)
    logger.info(f"{repo} {revision} is commit {origin['commit']}, {origin['bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    run(main, snakemake)
