"""The embedded text: docstrings of installed packages, taken without importing them.

Real English and code prose that every machine with the lock file already has.
Documents are deduplicated, shuffled with a fixed seed and split by document, so
that no validation document occurs in training.
"""

import ast
import hashlib
import importlib.util
import random
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# Half characters that a string literal may hold and that no file and no tokenizer can.
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """One docstring and where it was found (``package/module.py::qualified.name``)."""

    origin: str
    text: str


@dataclass(frozen=True)
class Source:
    """What was taken from one package, for the manifest."""

    package: str
    version: str
    documents: int
    characters: int
    sha256: str


def package_root(package: str) -> Path:
    """Folder of an installed package, found without importing it.

    Raises ``ModuleNotFoundError`` where it is not installed or a single file.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that was not made from a file, such as __main__
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} is not installed in this environment")
    return Path(spec.submodule_search_locations[0])


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Installed version of each package.

    Raises ``ModuleNotFoundError`` where one has none, such as a folder of Python's own.
    """
    return {package: _version(package) for package in packages}


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Qualified name and cleaned docstring of each definition, in source order."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{child.name}"
                if text := ast.get_docstring(child):
                    yield name, text
                yield from visit(child, f"{name}.")
            else:
                yield from visit(child, prefix)

    if text := ast.get_docstring(tree):
        yield "", text
    yield from visit(tree, "")


def package_documents(package: str, min_characters: int) -> list[Document]:
    """Docstrings of at least ``min_characters`` in one package, its tests left out."""
    root = package_root(package)
    documents = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if "tests" in relative.parts:
            continue
        try:
            with warnings.catch_warnings():  # about escapes in other people's strings
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):  # templates and fixtures some packages ship
            continue
        for name, text in _docstrings(tree):
            if len(text) >= min_characters and not _SURROGATES.search(text):
                origin = f"{package}/{relative.as_posix()}::{name}"
                documents.append(Document(origin, text))
    return documents


def _version(package: str) -> str:
    """Version of the distribution that installed ``package``: dateutil is python-dateutil's."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        distributions = metadata.packages_distributions().get(package)
    if not distributions:
        raise ModuleNotFoundError(f"package {package!r} belongs to no installed distribution")
    return metadata.version(distributions[0])


def describe(package: str, documents: Sequence[Document]) -> Source:
    """Manifest entry of the documents that were taken from ``package``."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.text.encode())
        digest.update(b"\0")
    return Source(
        package,
        _version(package),
        len(documents),
        sum(len(document.text) for document in documents),
        digest.hexdigest(),
    )


def words(text: str) -> str:
    """What makes two documents the same: the text with every white space a single blank."""
    return " ".join(text.split())


def deduplicate(documents: Sequence[Document]) -> list[Document]:
    """The first of each group of documents that are equal but for white space."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        key = words(document.text)
        if key not in seen:
            seen.add(key)
            kept.append(document)
    return kept


def split(
    documents: Sequence[Document], *, validation_fraction: float, seed: int
) -> tuple[list[Document], list[Document]]:
    """Shuffle with ``seed`` and split by document into (training, validation)."""
    shuffled = list(documents)
    random.Random(seed).shuffle(shuffled)
    cut = round(len(shuffled) * validation_fraction)
    return shuffled[cut:], shuffled[:cut]
