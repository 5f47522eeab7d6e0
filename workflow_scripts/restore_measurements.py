"""Put the frozen measurements of a suite where the rules look for them."""

from pathlib import Path

from flatminima.jobs import run
from flatminima.published import restore


def main(folder: str, outputs: list) -> None:
    """Copy every measured file of ``folder`` to ``outputs``, once all of them are found whole."""
    restore(Path(folder), outputs)


if __name__ == "__main__":
    run(main, snakemake)
