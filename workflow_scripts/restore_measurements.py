"""Copy the stored measurements of a published suite to its results."""

import shutil
from pathlib import Path

from flatminima.errors import DamagedFile
from flatminima.files import DIGESTS_FILE, file_sha256, read_digests
from flatminima.jobs import run


def main(folder: str, outputs: list) -> None:
    """Copy every measured file of ``folder`` to ``outputs``, after a check of all digests.

    Raises ``DamagedFile``.
    """
    digests = read_digests(Path(folder))
    for name, digest in digests.items():
        if file_sha256(f"{folder}/{name}") != digest:
            raise DamagedFile(
                f"{folder}/{name}: damaged or changed, its sha256 is not the one in "
                f"{DIGESTS_FILE}; restore it with git checkout -- {folder}"
            )
    for name, path in zip(digests, map(Path, outputs), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"{folder}/{name}", path)


if __name__ == "__main__":
    run(main, snakemake)
