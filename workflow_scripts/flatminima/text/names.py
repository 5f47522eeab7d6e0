"""What the name of a text file says of its form."""

import re
from pathlib import PurePosixPath

FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}
COMPRESSIONS = {".zst": "zstandard", ".gz": None}  # the package that opens it
# `datasets` reads these in a file's name as a pattern, and finds nothing, without an error.
PATTERN = re.compile(r"[*?\[\]]")


def file_format(name: str) -> str:
    """json, parquet or text, by the end of a file's name; ``ValueError`` for any other."""
    suffixes = PurePosixPath(name).suffixes
    packed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    if packed:
        suffixes.pop()
    found = FORMATS.get(suffixes[-1]) if suffixes else None
    if found is None or (packed and found == "parquet"):
        raise ValueError(
            f"{name!r} has no known ending; valid: .jsonl, .json and .txt (each also with .zst "
            "or .gz after it) and .parquet"
        )
    if PATTERN.search(name):
        raise ValueError(f"{name!r} has one of the characters * ? [ ] in its name")
    return found
