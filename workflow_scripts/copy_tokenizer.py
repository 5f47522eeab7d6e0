"""Take the tokenizer of a suite of one's own checkpoints from where it lies."""

import shutil

from flatminima.files import atomic_path
from flatminima.jobs import log, run


def main(*, source: str, tokenizer: str) -> None:
    """Write ``tokenizer.json``."""
    with atomic_path(tokenizer) as temporary:
        shutil.copyfile(source, temporary)
    log(f"tokenizer from {source}")


if __name__ == "__main__":
    run(main, snakemake)
