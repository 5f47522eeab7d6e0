"""Frozen measurements of a suite, read back where the rules look for them.

A folder ``resources/published/{suite}/`` has the measured files, ``SHA256SUMS`` with their
digests, ``suite.yaml`` (the suite as it was measured, with source published) and
``provenance.json``; ``flatminima.freezing`` writes it.
"""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from flatminima.errors import DamagedFile
from flatminima.files import DIGESTS_FILE, file_sha256


def read_digests(folder: Path) -> dict[str, str]:
    """sha256 of each measured file by its name below ``folder``, in the order of the list.

    Raises ``DamagedFile`` where the list is missing or is none.
    """
    path = folder / DIGESTS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read; {_cure(folder)}") from error
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, digest in (digests or {"": ""}).items():
        inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts
        if len(digest) != 64 or not inside:
            raise DamagedFile(f"{path} is no list of digests and names; {_cure(folder)}")
    return digests


def _cure(folder: Path) -> str:
    return f"git checkout -- {folder.as_posix()} brings back what was committed"


def missing_file(folder: Path, names: Iterable[str]) -> str | None:
    """One line on the first of ``names`` that is not in ``folder``."""
    lost = next((name for name in names if not (folder / name).is_file()), None)
    return lost and f"{folder / lost} is missing; {_cure(folder)}"


def restore(folder: Path, paths: Sequence[str | Path]) -> None:
    """Copy every measured file of ``folder``, in the order of its list, to ``paths``.

    All are compared with their digests before any is written. Raises ``DamagedFile``, which
    names the file, where one is not what was measured.
    """
    digests = read_digests(folder)
    if line := missing_file(folder, digests):
        raise DamagedFile(line)
    for name, digest in digests.items():
        if file_sha256(folder / name) != digest:
            raise DamagedFile(
                f"{folder / name}: damaged or changed, its sha256 is not the one in "
                f"{DIGESTS_FILE}; {_cure(folder)}"
            )
    for name, path in zip(digests, map(Path, paths), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, path)
