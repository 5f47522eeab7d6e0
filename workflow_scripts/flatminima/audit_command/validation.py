"""The fixed batches of an audit: the user's text, or docstrings that every machine has."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from flatminima.errors import UserError
from flatminima.text.corpus import deduplicate, package_documents, package_versions, split
from flatminima.text.files import read_texts
from flatminima.text.packing import encode_stream
from flatminima.text.sources import NotAvailable, TextError, find_file

PACKAGE = "numpy"
MIN_CHARACTERS = 200


def open_text(data: str | None) -> tuple[Iterable[str], str]:
    """The documents of ``data``, or the embedded ones, and what they are in words."""
    if data is None:
        version = package_versions([PACKAGE])[PACKAGE]
        return _embedded(), f"docstrings of {PACKAGE} {version}"
    path = Path(data)
    if not path.is_file():
        raise UserError(f"--data {data}: {'is no file' if path.exists() else 'no such file'}")
    if not path.stat().st_size:
        raise UserError(f"--data {data}: the file is empty")
    try:
        return read_texts(find_file({"path": data})), data
    except (NotAvailable, ValueError) as error:
        raise UserError(f"--data {data}: {error}") from error


def _embedded() -> Iterator[str]:
    found = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
    _, documents = split(found, validation_fraction=1.0, seed=0)  # all of them, shuffled
    yield from (document.text for document in documents)


def fixed_batches(
    texts: Iterable[str],
    tokenizer_file: Path,
    *,
    end: int | None,
    sequences: int,
    length: int,
    batch_size: int,
    name: str,
) -> np.ndarray:
    """``[sequences, length]`` int32 token ids, fewer sequences where the text is shorter.

    Documents are concatenated, each followed by the id ``end`` unless that is ``None``.
    Raises ``UserError`` where there is not even one batch of ``batch_size`` sequences.
    """
    tokenizer = _read(tokenizer_file)
    ids: list[int] = []
    try:
        for document in encode_stream(tokenizer, texts, end):
            ids += document
            if len(ids) >= sequences * length:
                break
    except TextError as error:
        raise UserError(f"--data {error}") from error
    whole = min(len(ids) // length, sequences)
    if whole < batch_size:
        raise UserError(
            f"{name}: {len(ids):,} tokens are fewer than one batch of {batch_size} sequences of "
            f"{length} ({batch_size * length:,}); give more text, or a smaller --batch-size or "
            "--length"
        )
    return np.asarray(ids[: whole * length], dtype=np.int32).reshape(whole, length)


def _read(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path}: cannot be read as a tokenizer ({error})") from error
