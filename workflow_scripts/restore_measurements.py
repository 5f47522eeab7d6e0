"""Put the frozen measurements of a suite where the rules look for them."""

from pathlib import Path

from flatminima.frozen import restore
from flatminima.jobs import log, logged


def main(*, folder: str, paths: list[str]) -> None:
    """Copy every measured file of ``folder`` to ``paths``, once all of them are found whole."""
    size = restore(Path(folder), paths)
    log(f"{folder} is whole, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(folder=snakemake.params.folder, paths=list(snakemake.output))
