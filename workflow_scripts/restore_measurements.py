"""Put the frozen measurements of a suite where the rules look for them."""

import shutil
from pathlib import Path

from flatminima.errors import DamagedFile
from flatminima.files import DIGESTS_FILE, file_sha256, read_digests
from flatminima.jobs import run


def main(folder: str, outputs: list) -> None:
    """Copy every measured file of ``folder`` to ``outputs``, once all of them are found whole."""
    digests = read_digests(Path(folder))
    for name, digest in digests.items():
        if file_sha256(f"{folder}/{name}") != digest:
            raise DamagedFile(
                f"{folder}/{name}: damaged or changed, its sha256 is not the one in "
                f"{DIGESTS_FILE}; git checkout -- {folder} brings back what was committed"
            )
    for name, path in zip(digests, map(Path, outputs), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"{folder}/{name}", path)


if __name__ == "__main__":
    run(main, snakemake)
