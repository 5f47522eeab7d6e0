"""The documents of a split, one ``{"text": …}`` per line."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from flatminima.files import atomic_path


def write_documents(path: str | Path, texts: Iterable[str]) -> int:
    """Write one ``{"text": …}`` per line; returns how many."""
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for text in texts:
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_documents(path: str | Path) -> Iterator[str]:
    """Texts of a file that ``write_documents`` wrote."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)["text"]
