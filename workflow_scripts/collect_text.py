"""Collect the training and validation documents of a suite from installed packages."""

import logging

from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.text.corpus import collect_packages

logger = logging.getLogger(__name__)


def main(*, source: dict, train: str, validation: str, manifest: str) -> None:
    """Write one json lines file per split, and a manifest with the sources and counts."""
    record = collect_packages(source["text"], train, validation)
    write_json(manifest, record)
    n_train = record["train_documents"]
    n_validation = record["validation_documents"]
    logger.info(f"{n_train} training, {n_validation} validation documents")


if __name__ == "__main__":
    run(main, snakemake)
