"""How much of the validation text occurs in training: whole documents, and runs of words.

Both compare words, so white space does not matter. Memory and time stay bounded: of the
validation text digests are kept, and the training text is read once, document by document.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator

import numpy as np

WINDOW = 13  # words; what is commonly taken for text that was seen before
MOST_WINDOWS = 100_000
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, with its bits well mixed


def document_key(text: str) -> bytes:
    """What makes two documents the same: a digest of the words."""
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def document_keys(texts: Iterable[str]) -> set[bytes]:
    """The keys of all texts."""
    return set(map(document_key, texts))


def without(texts: Iterable[str], excluded: Collection[bytes]) -> Iterator[str]:
    """Texts whose key is not in ``excluded``."""
    return (text for text in texts if document_key(text) not in excluded)


def shared_documents(training: Iterable[str], validation: Iterable[str]) -> int:
    """How many different validation documents occur in training, white space aside."""
    known = document_keys(validation)
    return len({key for key in map(document_key, training) if key in known})


def window_hashes(text: str) -> np.ndarray:
    """64-bit hash of each run of ``WINDOW`` words, ``[words - WINDOW + 1]``.

    Equal runs have equal hashes within one process; two others share one with a
    probability of about 2 to the power of -64.
    """
    words = np.fromiter((hash(word) for word in text.split()), dtype=np.int64).view(np.uint64)
    count = max(0, len(words) - WINDOW + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(WINDOW):
        hashes = hashes * _BASE + words[offset : offset + count]
    return hashes


def shared_windows(
    training: Iterable[str], validation: Iterable[str], *, most: int = MOST_WINDOWS
) -> dict[str, int | float | None]:
    """The share of validation's runs of ``WINDOW`` words that occur somewhere in training.

    Where there are more than ``most``, as many are drawn with ``default_rng(0)`` and stand
    for all. The share is ``None`` where no document has that many words.
    """
    runs = np.concatenate([np.zeros(0, np.uint64), *map(window_hashes, validation)])
    found = {"words": WINDOW, "windows": len(runs)}
    if len(runs) > most:
        runs = runs[np.random.default_rng(0).choice(len(runs), most, replace=False)]
    found["windows_looked_for"] = len(runs)
    if not len(runs):
        return found | {"in_training_pct": None}
    known = np.unique(runs)
    seen = np.zeros(len(known), dtype=bool)
    for text in training:
        at = _places(window_hashes(text), known)
        seen[at] = True
    share = np.mean(seen[np.searchsorted(known, runs)])
    return found | {"in_training_pct": round(100 * float(share), 3)}


def _places(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Where in the sorted ``known`` those of ``hashes`` are that it holds."""
    at = np.searchsorted(known, hashes)
    at[at == len(known)] = 0
    return at[known[at] == hashes]
