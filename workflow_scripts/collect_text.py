"""Collect the training and validation documents of a suite."""

import logging

from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.text.sources import collect

logger = logging.getLogger(__name__)


def main(*, source: dict, train: str, validation: str, manifest: str) -> None:
    """Write one json lines file per split and a manifest of where they came from."""
    taken = collect(source, train, validation)
    write_json(manifest, taken)
    training, held_out = taken["train_documents"], taken["validation_documents"]
    logger.info(f"{training} training, {held_out} validation documents")


if __name__ == "__main__":
    run(main, snakemake)
