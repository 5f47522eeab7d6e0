"""Fetch a suite's tokenizer from the Hugging Face hub."""

import logging

from flatminima.files import file_sha256, write_json
from flatminima.hub import download_tokenizer
from flatminima.jobs import run

logger = logging.getLogger(__name__)


def main(*, source: dict, tokenizer: str, record: str) -> None:
    """Write ``tokenizer.json`` and a record with its commit.

    ``source`` has the keys repo and revision.
    """
    commit = download_tokenizer(source["repo"], source["revision"], tokenizer)
    write_json(record, {**source, "commit": commit, "sha256": file_sha256(tokenizer)})
    logger.info(f"{source['repo']} {source['revision']} is commit {commit}")


if __name__ == "__main__":
    run(main, snakemake)
