"""Documents: docstrings of installed packages, files of documents, and overlap of two splits.

The text of ``mini`` is English prose that is already on every machine with the lock file: the
docstrings of installed packages, read without importing them. Documents are deduplicated, shuffled
with a fixed seed and split by document, so that no validation document occurs in training.

Planning imports this module, so nothing here may be slow to import.
"""

import ast
import hashlib
import importlib.util
import json
import random
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path

import numpy as np

from flatminima.errors import UserError
from flatminima.files import atomic_path
from flatminima.jobs import progress

COMPRESSIONS = {".zst": "zstd", ".gz": "gzip"}
# Format by the ending of a file's name.
FORMATS = {
    f"{ending}{compression}": form
    for ending, form in ((".jsonl", "json"), (".json", "json"), (".txt", "text"))
    for compression in ("", *COMPRESSIONS)
} | {".parquet": "parquet"}
KEY_CHARACTERS = 1 << 20  # characters at the start of a document that decide its key
WINDOW = 13  # words; this length is commonly used to detect text that was seen before
MOST_WINDOWS = 100_000
MOST_SHARED_PCT = 50.0  # of the validation windows; a suite with more is refused
_BASE = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial hash: odd, with well-mixed bits
# Half of a surrogate pair. String literals may contain it; files and tokenizers cannot.
SURROGATES = re.compile("[\ud800-\udfff]")


# Files


def file_format(name: str) -> str:
    """Format of a file by the ending of its name: json, parquet or text. Raises ``ValueError``."""
    for ending, form in FORMATS.items():
        if name.endswith(ending):
            return form
    raise ValueError(f"{name!r} has no known ending; valid: {', '.join(FORMATS)}")


def write_documents(path: str | Path, texts: Iterable[str]) -> int:
    """Write one ``{"text": …}`` per line; returns the number of documents."""
    count = 0
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for text in texts:
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_documents(path: str | Path) -> Iterator[str]:
    """Read the texts of a file that ``write_documents`` wrote."""
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)["text"]


def tally(texts: Iterable[str]) -> dict[str, int | str]:
    """Number of documents, number of characters, and one sha256 of all documents."""
    n_documents = 0
    n_characters = 0
    digest = hashlib.sha256()
    for text in texts:
        n_documents += 1
        n_characters += len(text)
        digest.update(text.encode() + b"\0")  # so that the digest depends on where texts end
    return {"documents": n_documents, "characters": n_characters, "sha256": digest.hexdigest()}


# Packages


def package_root(package: str) -> Path:
    """Folder of a package, without importing it. Raises ``ModuleNotFoundError``."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # modules without a file, such as __main__
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} is not installed in this environment")
    return Path(spec.submodule_search_locations[0])


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Version of each package's distribution, such as python-dateutil for dateutil.

    Raises ``ModuleNotFoundError`` for packages without a distribution, such as Python's own.
    """
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            distributions = metadata.packages_distributions().get(package)
            if not distributions:
                reason = f"package {package!r} belongs to no installed distribution"
                raise ModuleNotFoundError(reason) from None
            versions[package] = metadata.version(distributions[0])
    return versions


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Cleaned docstring of a node and of each definition below it, in source order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        yield from _docstrings(child)


def package_documents(
    package: str, min_characters: int, documents: str = "docstrings"
) -> list[str]:
    """Texts of at least ``min_characters`` in one package, without its tests.

    A text is a docstring, or with ``documents="modules"`` a complete module.
    """
    root = package_root(package)
    package_texts = []
    for path in sorted(root.rglob("*.py")):
        if "tests" in path.relative_to(root).parts:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            with warnings.catch_warnings():  # invalid escapes in strings of the package
                warnings.simplefilter("ignore")
                texts = [source] if documents == "modules" else _docstrings(ast.parse(source))
        except (SyntaxError, ValueError):  # some packages contain templates and broken fixtures
            continue
        for text in texts:
            if len(text) >= min_characters and not SURROGATES.search(text):
                package_texts.append(text)
    return package_texts


def deduplicate(documents: Iterable[str]) -> list[str]:
    """Remove documents that equal an earlier one, apart from white space."""
    text_by_words: dict[str, str] = {}
    for text in documents:
        text_by_words.setdefault(" ".join(text.split()), text)
    return list(text_by_words.values())


def split(
    documents: Sequence[str], *, validation_fraction: float, seed: int
) -> tuple[list[str], list[str]]:
    """Shuffle the documents with ``seed`` and split them into (training, validation)."""
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    cut = round(len(shuffled) * validation_fraction)
    return shuffled[cut:], shuffled[:cut]


def collect_packages(text: Mapping, train: str | Path, validation: str | Path) -> dict:
    """Write the documents of installed packages and return the manifest.

    ``text`` has the keys packages, min_characters, validation_fraction, seed and maybe documents.
    """
    kind = text.get("documents", "docstrings")
    versions = package_versions(text["packages"])
    texts_by_package = {
        name: package_documents(name, text["min_characters"], kind)
        for name in progress(text["packages"], "packages")
    }
    documents = deduplicate(chain.from_iterable(texts_by_package.values()))
    training, held_out = split(
        documents, validation_fraction=text["validation_fraction"], seed=text["seed"]
    )
    return {
        "source": f"{kind} of installed packages",
        "packages": [
            {"package": name, "version": versions[name], **tally(texts)}
            for name, texts in texts_by_package.items()
        ],
        "documents": len(documents),
        "seed": text["seed"],
        "train_documents": write_documents(train, training),
        "validation_documents": write_documents(validation, held_out),
    }


# Overlap of the splits: complete documents, and windows of words. To save memory, only digests
# of the validation text are kept, and the training text is read once, document by document.


def document_key(text: str) -> bytes:
    """A digest of the words: equal for documents that differ in white space only.

    For long documents only the first ``KEY_CHARACTERS`` count. Splits may cut a long document at
    different lengths, and the key must be the same.
    """
    beginning = " ".join(text[:KEY_CHARACTERS].split())
    return hashlib.blake2b(beginning.encode(), digest_size=16).digest()


def _window_hashes(text: str) -> list[int]:
    """A hash of each window of ``WINDOW`` words, valid within this process.

    Two different windows have the same hash with a probability of about 2 to the power of -64.
    """
    words = np.fromiter(map(hash, text.split()), dtype=np.int64).view(np.uint64)
    # A polynomial in _BASE, for all windows at once. Overflow wraps around.
    hashes = np.zeros(max(0, len(words) - WINDOW + 1), dtype=np.uint64)
    for offset in range(WINDOW):
        hashes = hashes * _BASE + words[offset : offset + len(hashes)]
    return hashes.tolist()


def shared_windows(
    training: Iterable[str], validation: Iterable[str], *, most: int = MOST_WINDOWS
) -> dict[str, int | float | None]:
    """The percentage of the validation windows of ``WINDOW`` words that occur in training.

    If there are more than ``most`` windows, ``most`` of them are drawn with ``default_rng(0)``. The
    percentage is ``None`` if no document has that many words.
    """
    windows = list(chain.from_iterable(map(_window_hashes, validation)))
    counts = {"words": WINDOW, "windows": len(windows)}
    if len(windows) > most:
        chosen = np.random.default_rng(0).choice(len(windows), most, replace=False)
        # A window that occurs twice may be drawn twice: the share is one of occurrences.
        windows = [windows[index] for index in chosen]

    distinct_windows = set(windows)
    shared = set()
    for text in training:
        # Only windows that are looked for are kept, so memory does not grow with the training text.
        shared |= distinct_windows.intersection(_window_hashes(text))
    shared_pct = None
    if windows:
        fraction = np.mean([window in shared for window in windows])
        shared_pct = round(100 * float(fraction), 3)
    return {**counts, "windows_looked_for": len(windows), "in_training_pct": shared_pct}


def overlap(train: str | Path, validation: str | Path) -> dict:
    """The overlap of the validation text with all the text that was collected for training.

    Raises ``UserError`` for a common document, or if more than ``MOST_SHARED_PCT`` of the
    validation windows occur in training: there a low perplexity would show memory only.
    """
    held_out = set(map(document_key, read_documents(validation)))
    shared_documents = held_out.intersection(map(document_key, read_documents(train)))
    if shared_documents:
        raise UserError(f"{train}: {len(shared_documents)} validation documents occur in training")
    windows = shared_windows(read_documents(train), read_documents(validation))
    shared_pct = windows["in_training_pct"]
    if shared_pct is not None and shared_pct > MOST_SHARED_PCT:
        raise UserError(
            f"{validation}: {shared_pct:g} % of its windows of {WINDOW} words occur in {train}; "
            f"valid: at most {MOST_SHARED_PCT:g} %; take the two splits from different text"
        )
    return {
        "documents_shared_with_training": 0,
        "word_windows_shared_with_training": windows | {"refused_above_pct": MOST_SHARED_PCT},
    }
