"""Take the tokenizer of a suite of one's own checkpoints from where it lies."""

import shutil
from pathlib import Path

from flatminima.files import atomic_path
from flatminima.jobs import log, logged


def main(*, source: str, tokenizer: str) -> None:
    """Write ``tokenizer.json``."""
    with atomic_path(Path(tokenizer)) as temporary:
        shutil.copyfile(source, temporary)
    log(f"tokenizer from {source}")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(source=snakemake.input.source, tokenizer=snakemake.output.tokenizer)
