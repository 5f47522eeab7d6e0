"""Frozen measurements of a suite: committed files, the digest of each, and where they come from.

A folder ``resources/published/{suite}/`` has ``suite.yaml`` (the suite as it was measured, with
source published), ``provenance.json``, and ``SHA256SUMS``, which names every measured file.
"""

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from flatminima.errors import DamagedFile

DIGESTS_FILE = "SHA256SUMS"
SUITE_FILE = "suite.yaml"
PROVENANCE_FILE = "provenance.json"


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
    wrong = [name for name, digest in digests.items() if len(digest) != 64 or not _is_inside(name)]
    if wrong or not digests:
        raise DamagedFile(f"{path} is no list of digests and names; {_cure(folder)}")
    return digests


def _is_inside(name: str) -> bool:
    return bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts


def _cure(folder: Path) -> str:
    return f"git checkout -- {folder.as_posix()} brings back what was committed"


def missing_files(folder: Path, names: Iterable[str]) -> str | None:
    """One line on the first of ``names`` that is not in ``folder``."""
    lost = [name for name in names if not (folder / name).is_file()]
    return f"{folder / lost[0]} is missing; {_cure(folder)}" if lost else None


def restore(folder: Path, paths: Sequence[str | Path]) -> int:
    """Copy every measured file of ``folder``, in the order of its list, to ``paths``.

    Returns their bytes. All are read and compared with their digests before any is written. Raises
    ``DamagedFile``, which names the file, where one is not what was measured.
    """
    contents = []
    for name, expected in read_digests(folder).items():
        if line := missing_files(folder, [name]):
            raise DamagedFile(line)
        content = (folder / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != expected:
            raise DamagedFile(
                f"{folder / name}: damaged or changed, its sha256 is not the one in "
                f"{DIGESTS_FILE}; {_cure(folder)}"
            )
        contents.append(content)
    for path, content in zip(map(Path, paths), contents, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return sum(map(len, contents))


def freeze(root: Path, names: Iterable[str], folder: Path) -> int:
    """Copy files of ``root`` to ``folder`` and list their digests there; returns their bytes."""
    lines, size = [], 0
    for name in sorted(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, path)
        content = path.read_bytes()
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
        size += len(content)
    (folder / DIGESTS_FILE).write_text("".join(lines), encoding="utf-8")
    return size
