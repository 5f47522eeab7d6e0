"""Make the fixed batches of one split of a suite whose text is in files."""

import logging

from flatminima.files import read_json, write_json
from flatminima.jobs import run
from flatminima.text.corpus import overlap, read_documents
from flatminima.text.tokens import fix_split

logger = logging.getLogger(__name__)


def main(
    *,
    split: str,
    documents: str,
    source: str,
    tokenizer: str,
    held_out: list,
    batches: dict,
    vocabulary: dict,
    tokens: str,
    manifest: str,
) -> None:
    """Write the token file of a split and its manifest.

    ``batches`` has the settings that cut the split, ``source`` is the record of its documents.
    Raises ``UserError`` if it overlaps with ``held_out``, one file or none.
    """
    shared = overlap(documents, held_out[0]) if held_out else {}
    texts = read_documents(documents)
    record = fix_split(tokenizer, texts, tokens, name=documents, **batches, **vocabulary)
    write_json(manifest, {"split": split, **record, **shared, "text": read_json(source)})
    logger.info(f"{split}: {record['sequences']} sequences of {record['length']} tokens")


if __name__ == "__main__":
    run(main, snakemake)
