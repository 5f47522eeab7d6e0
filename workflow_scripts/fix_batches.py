"""Make the fixed validation batches and the training stream of a suite."""

import logging

from flatminima.files import read_json, write_json
from flatminima.jobs import run
from flatminima.text.corpus import overlap, read_documents
from flatminima.text.tokens import fix_split

logger = logging.getLogger(__name__)


def main(*, inputs: dict, outputs: dict, batches: dict, vocabulary: dict) -> None:
    """Write one token file and one manifest per split.

    ``batches`` has the settings that cut each split. ``vocabulary`` may have the end-of-text
    token and the size of the model's vocabulary. Raises ``UserError`` if the splits overlap.
    """
    shared = overlap(inputs["train_text"], inputs["validation_text"])
    source = read_json(inputs["manifest"])
    for split, cut_settings in batches.items():
        text = inputs[f"{split}_text"]
        record = fix_split(
            inputs["tokenizer"],
            read_documents(text),
            outputs[split],
            name=text,
            **cut_settings,
            **vocabulary,
        )
        content = {"split": split, **record, **shared, "text": source}
        write_json(outputs[f"{split}_manifest"], content)
        logger.info(f"{split}: {record['sequences']} sequences of {record['length']} tokens")


if __name__ == "__main__":
    run(main, snakemake)
