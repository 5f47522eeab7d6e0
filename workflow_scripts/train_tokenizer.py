"""Train the byte-level BPE tokenizer of a suite on its training documents."""

import logging

from flatminima.jobs import run
from flatminima.text.corpus import read_documents
from flatminima.text.tokens import train_tokenizer

logger = logging.getLogger(__name__)


def main(*, train: str, vocab_size: int, tokenizer: str) -> None:
    """Write ``tokenizer.json``."""
    trained = train_tokenizer(read_documents(train), vocab_size)
    trained.save(tokenizer)
    logger.info(f"{trained.get_vocab_size()} entries")


if __name__ == "__main__":
    run(main, snakemake)
