"""Collects the text of a suite from the first available source of a list, as a stream.

A source is a local file (``path``) or a file of a hub dataset (``repo``, ``file`` and
``revision``, by default main). A source that is not available is passed over, and the reason is
recorded. No other file is ever used instead of a file that a source names.
"""

import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath

import pyarrow as pa
from huggingface_hub import HfFileSystem, try_to_load_from_cache
from huggingface_hub.errors import HTTPError

from flatminima.errors import UserError, one_line, suggest
from flatminima.hub import ask, find_revision
from flatminima.jobs import progress
from flatminima.text import corpus

logger = logging.getLogger(__name__)

REMOTE = "hf://"
MAIN = "main"  # default branch of a hub dataset
# Bytes of one request for a part of a file. With large blocks, a few documents would cost megabytes
# more than they have; with small ones, a large text would need thousands of requests.
SMALLEST_BLOCK = 2**18
LARGEST_BLOCK = 5 * 2**20


class TextError(UserError):
    """Text that is not available or cannot be read. The one-line message names the file."""


@dataclass(frozen=True)
class TextFile:
    """An available file of text.

    ``name`` is for messages. ``location`` is a path, or begins with ``hf://``. ``field`` is the
    key or column that contains the text. A file of the hub is read in blocks of ``block_bytes``,
    and only as many as are needed.
    """

    name: str
    location: str
    field: str = "text"
    commit: str | None = None
    block_bytes: int = LARGEST_BLOCK

    @property
    def format(self) -> str:
        """json, parquet or text."""
        return corpus.file_format(self.location)


# Available files


def describe_source(source: Mapping) -> str:
    """Short name of a source of the configuration."""
    if "path" in source:
        return source["path"]
    revision = source.get("revision", MAIN)
    place = source["repo"] if revision == MAIN else f"{source['repo']} at {revision}"
    return f"{place}: {source['file']}"


def find_file(source: Mapping) -> TextFile:
    """The file of one source.

    Raises ``UserError`` with the reason if it is not available. The reason does not name the file.
    """
    if "path" in source:
        return _local_file(source)
    return _dataset_file(source)


def _local_file(source: Mapping) -> TextFile:
    name = describe_source(source)
    path = Path(name)
    if not path.exists():
        raise TextError("no such file")
    if not path.is_file():
        raise TextError("not a file")
    corpus.file_format(name)  # raises for an unknown ending
    return TextFile(name, name, source.get("field", "text"))


def _dataset_file(source: Mapping) -> TextFile:
    repo = source["repo"]
    file = source["file"]
    revision = find_revision(repo, source.get("revision", MAIN), "dataset", required_file=file)
    if file not in revision.files:
        text_files = [name for name in revision.files if name.endswith(tuple(corpus.FORMATS))]
        raise TextError(f"there is no {file} in it; {suggest(file, text_files)}")
    # The user's cache, or else a stream from the hub that needs no disk space.
    cached = try_to_load_from_cache(repo, file, revision=revision.commit, repo_type="dataset")
    remote = f"{REMOTE}datasets/{repo}@{revision.commit}/{file}"
    location = cached if isinstance(cached, str) else remote
    name = describe_source(source)
    return TextFile(name, location, source.get("field", "text"), revision.commit)


# Documents of a file


def read_texts(file: TextFile) -> Iterator[str]:
    """Documents of a file, in order. The file is read as a stream.

    A document is the key ``file.field`` of each line in a json lines file, the column
    ``file.field`` of each row in a parquet file, or a paragraph of a text file. Raises
    ``TextError`` with the line or row if the file has another form, is damaged or is empty.
    """
    n_documents = 0
    try:
        for place, text in _READERS[file.format](file):
            # Half of a surrogate pair can neither be written nor encoded.
            if not isinstance(text, str) or corpus.SURROGATES.search(text):
                excerpt = json.dumps(text, default=str)[:20]
                reason = f"{place}: the field {file.field!r} is {excerpt}, not text"
                raise TextError(f"{file.name}: {reason}")
            n_documents += 1
            yield text
    except UserError:
        raise
    except (OSError, ValueError, HTTPError, pa.ArrowException) as error:
        reason = f"cannot be read after document {n_documents} ({one_line(error)})"
        raise TextError(f"{file.name}: {reason}") from error
    if not n_documents:
        raise TextError(f"{file.name}: contains no documents")


def _lines(file: TextFile) -> Iterator[tuple[str, str]]:
    """Name (``line 7``) and text of each line of a file, with its line break."""
    if file.location.startswith(REMOTE):
        # ``ask`` repeats the opening only. Once it is open, the client repeats broken reads.
        hub = HfFileSystem(skip_instance_cache=True)
        # The stream is read as far as documents are needed; the rest is never fetched.
        location = file.location.removeprefix(REMOTE)
        open_stream = partial(hub.open, location, "rb", block_size=file.block_bytes)
        stream = ask(open_stream, file.name, file.commit)
    else:
        stream = open(file.location, "rb")  # noqa: SIM115
    codec = corpus.COMPRESSIONS.get(PurePosixPath(file.location).suffix)
    with stream:
        lines = io.TextIOWrapper(pa.input_stream(stream, codec), encoding="utf-8-sig")
        for number, line in enumerate(lines, start=1):
            yield f"line {number}", line


def _paragraphs(file: TextFile) -> Iterator[tuple[str, str]]:
    """Name of the first line, and text, of each group of lines between blank lines."""
    for is_blank, lines in groupby(_lines(file), key=lambda line: line[1].isspace()):
        if not is_blank:
            places, texts = zip(*lines, strict=True)
            yield places[0], "".join(texts).removesuffix("\n")


def _json_fields(file: TextFile) -> Iterator[tuple[str, object]]:
    """Name of the line, and content of the field, of each line of a json lines file."""
    for place, line in _lines(file):
        if line.isspace():
            continue
        named_place = f"{file.name}: {place}"
        try:
            row = json.loads(line)
        except ValueError as error:
            reason = f"is not JSON; each line must be an object ({error})"
            raise TextError(f"{named_place} {reason}") from error
        if not isinstance(row, dict):
            excerpt = line.strip()[:20]
            raise TextError(f"{named_place} is {excerpt}; each line must be an object")
        if file.field not in row:
            fields = ", ".join(row) or "no field"
            raise TextError(f"{named_place} lacks the field {file.field!r}; it has {fields}")
        yield place, row[file.field]


def _parquet_fields(file: TextFile) -> Iterator[tuple[str, object]]:
    """Name of the row, and content of the column, of each row of a parquet file."""
    import datasets  # takes seconds, and only parquet files need it

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it would be another request to the hub
    # The library puts a file without a stated split into the split "train".
    options = {"data_files": file.location, "split": "train", "streaming": True}
    columns = datasets.load_dataset("parquet", **options).features
    if file.field not in columns:
        names = ", ".join(columns)
        raise TextError(f"{file.name}: lacks the column {file.field!r}; it has {names}")
    rows = datasets.load_dataset("parquet", **options, columns=[file.field], batch_size=1000)
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row[file.field]


_READERS = {"json": _json_fields, "text": _paragraphs, "parquet": _parquet_fields}


# One split


def up_to(texts: Iterable[str], wanted: Mapping[str, int]) -> Iterator[str]:
    """The first texts, until ``wanted["amount"]`` is reached.

    The amount is a number of characters. With the key ``document_of`` it is a number of documents
    of at least ``document_of`` characters. Documents longer than ``longest`` do not count.
    """
    amount = 0
    shortest = wanted.get("document_of")
    longest = wanted.get("longest")
    for text in texts:
        yield text
        # Documents that will be left out later do not count, but are written all the same.
        is_counted = longest is None or len(text) <= longest
        if is_counted and shortest is None:
            amount += len(text)
        elif is_counted and len(text) >= shortest:
            amount += 1
        if amount >= wanted["amount"]:
            return


def block_bytes(wanted: Mapping[str, int]) -> int:
    """Bytes of one request for a hub file from which ``wanted`` is read (see ``up_to``)."""
    characters = wanted["amount"] * wanted.get("document_of", 1)
    return min(max(characters, SMALLEST_BLOCK), LARGEST_BLOCK)


def collect_split(
    split: str,
    sources: Sequence[Mapping],
    wanted: Mapping[str, int],
    output: str | Path,
    held_out: str | Path | None = None,
) -> dict:
    """Write the documents of one split to ``output`` and return their record.

    ``sources`` are in order of preference, and ``wanted`` is the amount of text (see ``up_to``).
    Documents of the file ``held_out`` are left out. Raises ``TextError`` with one line.
    """
    held_out_keys: set[bytes] = set()
    if held_out is not None:
        held_out_keys = set(map(corpus.document_key, corpus.read_documents(held_out)))
    file, passed_over = _first_available(split, sources)
    file = replace(file, block_bytes=block_bytes(wanted))
    # Longer documents are cut, but not before the end of the text that ``document_key`` reads.
    longest = max(corpus.KEY_CHARACTERS, *wanted.values()) + 1
    left_out = 0

    def documents() -> Iterator[str]:
        nonlocal left_out
        for text in read_texts(file):
            if corpus.document_key(text) in held_out_keys:
                left_out += 1
            else:
                yield text[:longest]

    texts = progress(up_to(documents(), wanted), f"documents from {file.name}")
    corpus.write_documents(output, texts)
    return {
        "source": "files",
        "taken": file.name,
        "commit": file.commit,
        "field": None if file.format == "text" else file.field,
        **corpus.tally(corpus.read_documents(output)),
        "left_out_as_validation": left_out,
        "passed_over": passed_over,
    }


def _first_available(
    split: str, sources: Sequence[Mapping]
) -> tuple[TextFile, list[dict[str, str]]]:
    """The file of the first available source, and the sources before it with reasons."""
    passed_over: list[dict[str, str]] = []
    for source in sources:
        try:
            return find_file(source), passed_over
        except UserError as error:
            name = describe_source(source)
            passed_over.append({"source": name, "reason": str(error)})
            logger.warning(f"{split} text: passed over {name}: {error}")
    reasons = "; ".join(f"{skipped['source']} ({skipped['reason']})" for skipped in passed_over)
    raise TextError(f"{split} text: none of its sources is available: {reasons}")
