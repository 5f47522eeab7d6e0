"""Text of a suite: the first source of an ordered list that can be had, read as a stream.

A source is a local file (``path``) or a file of a hub dataset (``repo``, ``file`` and
``revision``, main where left out). It names its file. A source that is not there, or that
lacks this file, is passed over with its reason, and nothing else ever takes its place.
"""

import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
MAIN = "main"  # the branch of a hub dataset where no other is named


class TextError(UserError):
    """Text that cannot be had or read, in one line that names the file."""


@dataclass(frozen=True)
class TextFile:
    """A file that was found: its ``name`` for people, and where it lies.

    ``location`` is a path, or begins with ``hf://``; ``field`` has the text in each line or row.
    """

    name: str
    location: str
    field: str = "text"
    commit: str | None = None

    @property
    def format(self) -> str:
        """json, parquet or text."""
        return corpus.file_format(self.location)


# Which file


def describe_source(source: Mapping) -> str:
    """A source of the configuration in a few words."""
    if "path" in source:
        return source["path"]
    revision = source.get("revision", MAIN)
    place = source["repo"] if revision == MAIN else f"{source['repo']} at {revision}"
    return f"{place}: {source['file']}"


def find_file(source: Mapping) -> TextFile:
    """The file of one source; a ``UserError`` says, without its name, why it cannot be had."""
    name, field = describe_source(source), source.get("field", "text")
    if "path" in source:
        path = Path(name)
        if not path.is_file():
            raise TextError("is no file" if path.exists() else "no such file")
        corpus.file_format(name)
        return TextFile(name, name, field)
    repo, file = source["repo"], source["file"]
    found = find_revision(repo, source.get("revision", MAIN), "dataset", holding=file)
    if file not in found.files:
        texts = [other for other in found.files if other.endswith(tuple(corpus.FORMATS))]
        raise TextError(f"there is no {file} in it; {suggest(file, texts)}")
    cached = try_to_load_from_cache(repo, file, revision=found.commit, repo_type="dataset")
    remote = f"{REMOTE}datasets/{repo}@{found.commit}/{file}"
    return TextFile(name, cached if isinstance(cached, str) else remote, field, found.commit)


# What is in it


def read_texts(file: TextFile) -> Iterator[str]:
    """Documents of a file in order, without holding it whole.

    A json lines file has a document in ``file.field`` of each line's object, a parquet file
    one in each row of the column ``file.field``; a text file has one in each paragraph, the
    lines between two blank ones. Raises ``TextError`` with the line or row where a file is
    not that, and where it is damaged, ends in the middle or holds nothing.
    """
    given = 0
    try:
        for where, text in _READERS[file.format](file):
            # Half a character can neither be written nor encoded.
            if not isinstance(text, str) or corpus.SURROGATES.search(text):
                shown = json.dumps(text, default=str)[:20]
                reason = f"{where}: the field {file.field!r} is {shown}, not text"
                raise TextError(f"{file.name}: {reason}")
            given += 1
            yield text
    except UserError:
        raise
    except (OSError, ValueError, HTTPError, pa.ArrowException) as error:
        reason = f"cannot be read after document {given} ({one_line(error)})"
        raise TextError(f"{file.name}: {reason}") from error
    if not given:
        raise TextError(f"{file.name}: holds no documents")


def _lines(file: TextFile) -> Iterator[tuple[str, str]]:
    """Lines of a text file with their ends, and what each is called."""
    if file.location.startswith(REMOTE):
        # What is read of it, the client asks for again by itself where it breaks off.
        hub = HfFileSystem(skip_instance_cache=True)
        begin = partial(hub.open, file.location.removeprefix(REMOTE), "rb")
        stream = ask(begin, file.name, file.commit)
    else:
        stream = open(file.location, "rb")  # noqa: SIM115
    codec = corpus.COMPRESSIONS.get(PurePosixPath(file.location).suffix)
    with stream:
        lines = io.TextIOWrapper(pa.input_stream(stream, codec), encoding="utf-8-sig")
        for number, line in enumerate(lines, start=1):
            yield f"line {number}", line


def _paragraphs(file: TextFile) -> Iterator[tuple[str, str]]:
    for blank, lines in groupby(_lines(file), key=lambda line: line[1].isspace()):
        if not blank:
            places, texts = zip(*lines, strict=True)
            yield places[0], "".join(texts).removesuffix("\n")


def _json_fields(file: TextFile) -> Iterator[tuple[str, object]]:
    for number, line in _lines(file):
        if line.isspace():
            continue
        where = f"{file.name}: {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TextError(f"{where} is not JSON, one object a line ({error})") from error
        if not isinstance(row, dict):
            raise TextError(f"{where} is {line.strip()[:20]}; each line must be an object")
        if file.field not in row:
            has = ", ".join(row) or "no field"
            raise TextError(f"{where} lacks the field {file.field!r}; it has {has}")
        yield number, row[file.field]


def _parquet_fields(file: TextFile) -> Iterator[tuple[str, object]]:
    """Rows streamed with `datasets`, which calls any file of no stated split train."""
    import datasets  # seconds, and only here

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # no request beside those for the data
    where = {"data_files": file.location, "split": "train", "streaming": True}
    columns = datasets.load_dataset("parquet", **where).features
    if file.field not in columns:
        has = ", ".join(columns)
        raise TextError(f"{file.name}: lacks the column {file.field!r}; it has {has}")
    rows = datasets.load_dataset("parquet", **where, columns=[file.field], batch_size=1000)
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row[file.field]


_READERS = {"json": _json_fields, "text": _paragraphs, "parquet": _parquet_fields}


# Both splits


def up_to(texts: Iterable[str], wanted: Mapping[str, int]) -> Iterator[str]:
    """Texts from the front until they give ``wanted["amount"]``.

    Without ``document_of`` that is so many characters; with it, so many documents of at least
    ``document_of`` characters. Documents of more than ``longest`` characters do not count.
    """
    given = 0
    shortest, longest = wanted.get("document_of"), wanted.get("longest")
    for text in texts:
        yield text
        if longest is None or len(text) <= longest:
            given += len(text) if shortest is None else len(text) >= shortest
        if given >= wanted["amount"]:
            return


def collect(source: Mapping, train: str | Path, validation: str | Path) -> dict:
    """Write the documents of both splits and return the manifest.

    ``source`` has ``text``, a suite's section of the configuration, and for files
    ``wanted``, what each split must give (see ``up_to``).
    """
    text = source["text"]
    if text["source"] == "packages":
        return corpus.collect_packages(text, train, validation)
    wanted, records, held_out = source["wanted"], {}, set()
    # Validation first: training leaves out every document that it holds, white space aside.
    for split, path in (("validation", validation), ("train", train)):
        records[split] = _collect_split(split, text.get(split), wanted.get(split), held_out, path)
        held_out = set(map(corpus.document_key, corpus.read_documents(path)))
    counts = {f"{split}_documents": record["documents"] for split, record in records.items()}
    return {"source": "files", **records, **counts}


def _collect_split(
    split: str, sources: Sequence[Mapping], wanted: Mapping | None, held_out: set[bytes], path: str
) -> dict:
    """Write what is ``wanted`` of the first source that can be had; return the record of it.

    A split of which nothing is wanted has a file without documents.
    """
    if wanted is None:
        return {"documents": corpus.write_documents(path, [])}
    passed_over: list[dict[str, str]] = []
    for source in sources:
        try:
            file = find_file(source)
            break
        except UserError as error:
            name = describe_source(source)
            passed_over.append({"source": name, "reason": str(error)})
            logger.warning(f"{split} text: passed over {name}: {error}")
    else:
        reasons = "; ".join(f"{entry['source']} ({entry['reason']})" for entry in passed_over)
        raise TextError(f"{split} text: none of its sources can be had: {reasons}")
    # Of a longer document no more is kept than is asked for, and than its key is taken of.
    longest = max(corpus.KEY_CHARACTERS, *wanted.values()) + 1
    left_out = 0

    def others() -> Iterator[str]:
        nonlocal left_out
        for text in read_texts(file):
            if corpus.document_key(text) in held_out:
                left_out += 1
            else:
                yield text[:longest]

    corpus.write_documents(path, progress(up_to(others(), wanted), f"documents from {file.name}"))
    return {
        "taken": file.name,
        "commit": file.commit,
        "field": None if file.format == "text" else file.field,
        **corpus.tally(corpus.read_documents(path)),
        "left_out_as_validation": left_out,
        "passed_over": passed_over,
    }
