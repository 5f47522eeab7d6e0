"""Documents: docstrings of installed packages, files of documents, and what two splits share.

The embedded text is real English and code prose that every machine with the lock file
already has, taken without importing a package. Its documents are deduplicated, shuffled
with a fixed seed and split by document, so that no validation document occurs in training.

Planning reads this module: nothing here is slow to import.
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
FORMATS = {
    f"{ending}{packed}": form
    for ending, form in ((".jsonl", "json"), (".json", "json"), (".txt", "text"))
    for packed in ("", *COMPRESSIONS)
} | {".parquet": "parquet"}
KEY_CHARACTERS = 1 << 20  # of a document, that its key is taken of
WINDOW = 13  # words; what is commonly taken for text that was seen before
MOST_WINDOWS = 100_000
MOST_SHARED_PCT = 50.0  # of validation's windows; with more a suite is refused
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, with its bits well mixed
# Half characters that a string literal may hold and that no file and no tokenizer can.
SURROGATES = re.compile("[\ud800-\udfff]")


# Files


def file_format(name: str) -> str:
    """json, parquet or text, by the end of a file's name; ``ValueError`` for any other."""
    for ending, form in FORMATS.items():
        if name.endswith(ending):
            return form
    raise ValueError(f"{name!r} has no known ending; valid: {', '.join(FORMATS)}")


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


def tally(texts: Iterable[str]) -> dict[str, int | str]:
    """Number of documents, their characters, and a digest that sees each of their ends."""
    documents, characters, digest = 0, 0, hashlib.sha256()
    for text in texts:
        documents, characters = documents + 1, characters + len(text)
        digest.update(text.encode() + b"\0")
    return {"documents": documents, "characters": characters, "sha256": digest.hexdigest()}


# Packages


def package_root(package: str) -> Path:
    """Folder of a package, found without an import; ``ModuleNotFoundError`` where it has none."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that was not made from a file, such as __main__
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} is not installed in this environment")
    return Path(spec.submodule_search_locations[0])


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Version of the distribution that installed each package: dateutil is python-dateutil's.

    Raises ``ModuleNotFoundError`` where one has none, such as Python's own.
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
    defines = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, defines) and (text := ast.get_docstring(node)):
        yield text
    for child in ast.iter_child_nodes(node):
        yield from _docstrings(child)


def package_documents(
    package: str, min_characters: int, documents: str = "docstrings"
) -> list[str]:
    """Docstrings or ``modules`` of at least ``min_characters`` in one package, tests left out."""
    root = package_root(package)
    found = []
    for path in sorted(root.rglob("*.py")):
        if "tests" in path.relative_to(root).parts:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            with warnings.catch_warnings():  # about escapes in other people's strings
                warnings.simplefilter("ignore")
                texts = [source] if documents == "modules" else _docstrings(ast.parse(source))
        except (SyntaxError, ValueError):  # templates and fixtures some packages ship
            continue
        found += [t for t in texts if len(t) >= min_characters and not SURROGATES.search(t)]
    return found


def deduplicate(documents: Iterable[str]) -> list[str]:
    """The first of each group of documents that are equal but for white space."""
    kept: dict[str, str] = {}
    for text in documents:
        kept.setdefault(" ".join(text.split()), text)
    return list(kept.values())


def split(
    documents: Sequence[str], *, validation_fraction: float, seed: int
) -> tuple[list[str], list[str]]:
    """Shuffle with ``seed`` and split by document into (training, validation)."""
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    cut = round(len(shuffled) * validation_fraction)
    return shuffled[cut:], shuffled[:cut]


def collect_packages(text: Mapping, train: str | Path, validation: str | Path) -> dict:
    """Write the documents of installed packages and return the manifest.

    ``text`` has packages, min_characters, validation_fraction and seed; documents may be left out.
    """
    kind, versions = text.get("documents", "docstrings"), package_versions(text["packages"])
    found = {
        name: package_documents(name, text["min_characters"], kind)
        for name in progress(text["packages"], "packages")
    }
    documents = deduplicate(chain.from_iterable(found.values()))
    training, held_out = split(
        documents, validation_fraction=text["validation_fraction"], seed=text["seed"]
    )
    return {
        "source": f"{kind} of installed packages",
        "packages": [
            {"package": name, "version": versions[name], **tally(texts)}
            for name, texts in found.items()
        ],
        "documents": len(documents),
        "seed": text["seed"],
        "train_documents": write_documents(train, training),
        "validation_documents": write_documents(validation, held_out),
    }


# How much of the validation text occurs in training: whole documents, and runs of words.
# Memory stays bounded: of the validation text digests are kept, and the training text is
# read once, document by document.


def document_key(text: str) -> bytes:
    """A digest of the words: equal for documents that are the same but for white space.

    Of a longer document it is that of the first ``KEY_CHARACTERS``, however much of it a split
    keeps.
    """
    beginning = " ".join(text[:KEY_CHARACTERS].split())
    return hashlib.blake2b(beginning.encode(), digest_size=16).digest()


def _window_hashes(text: str) -> list[int]:
    """A hash of each run of ``WINDOW`` words, the same within one process.

    Two different ones share a hash with a probability of about 2 to the power of -64.
    """
    words = np.fromiter(map(hash, text.split()), dtype=np.int64).view(np.uint64)
    hashes = np.zeros(max(0, len(words) - WINDOW + 1), dtype=np.uint64)
    for offset in range(WINDOW):
        hashes = hashes * _BASE + words[offset : offset + len(hashes)]
    return hashes.tolist()


def shared_windows(
    training: Iterable[str], validation: Iterable[str], *, most: int = MOST_WINDOWS
) -> dict[str, int | float | None]:
    """The percentage of validation's runs of ``WINDOW`` words that occur somewhere in training.

    Where there are more than ``most``, as many are drawn with ``default_rng(0)`` and stand
    for all. It is ``None`` where no document has that many words.
    """
    runs = list(chain.from_iterable(map(_window_hashes, validation)))
    found = {"words": WINDOW, "windows": len(runs)}
    if len(runs) > most:
        drawn = np.random.default_rng(0).choice(len(runs), most, replace=False)
        runs = [runs[at] for at in drawn]
    known, seen = set(runs), set()
    for text in training:
        seen |= known.intersection(_window_hashes(text))
    fraction = np.mean([run in seen for run in runs]) if runs else None
    return found | {
        "windows_looked_for": len(runs),
        "in_training_pct": None if fraction is None else round(100 * float(fraction), 3),
    }


def overlap(train: str | Path, validation: str | Path) -> dict:
    """What validation's text shares with all the text that was collected for training.

    Raises ``UserError`` where that is whole documents, or more than ``MOST_SHARED_PCT`` of
    validation's windows: on such text low perplexity is memory.
    """
    held_out = set(map(document_key, read_documents(validation)))
    if shared := held_out.intersection(map(document_key, read_documents(train))):
        raise UserError(f"{train}: {len(shared)} validation documents occur in training")
    windows = shared_windows(read_documents(train), read_documents(validation))
    shared_pct = windows["in_training_pct"]
    if shared_pct is not None and shared_pct > MOST_SHARED_PCT:
        raise UserError(
            f"{validation}: {shared_pct:g} % of its runs of {WINDOW} words occur in {train}; at "
            f"most {MOST_SHARED_PCT:g} % may; take the two splits from different text"
        )
    return {
        "documents_shared_with_training": 0,
        "word_windows_shared_with_training": windows | {"refused_above_pct": MOST_SHARED_PCT},
    }
