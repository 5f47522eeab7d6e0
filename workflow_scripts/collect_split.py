"""Collect the documents of one split of a suite from files."""

import logging

from flatminima.files import write_json
from flatminima.jobs import run
from flatminima.text.sources import collect_split

logger = logging.getLogger(__name__)


def main(*, split: str, text: dict, held_out: list, documents: str, manifest: str) -> None:
    """Write a json lines file, and a manifest with its source and counts.

    ``text`` has the sources and the wanted amount of text. Documents of ``held_out``, one file or
    none, are left out.
    """
    held_out_file = held_out[0] if held_out else None
    record = collect_split(split, text["sources"], text["wanted"], documents, held_out_file)
    write_json(manifest, record)
    logger.info(f"{split}: {record['documents']} documents of {record['taken']}")


if __name__ == "__main__":
    run(main, snakemake)
