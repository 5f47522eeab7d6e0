"""Text of a suite: the first source of an ordered list that can be had, read as a stream.

A source is a local file (``path``) or a file of a hub dataset (``repo``, ``file`` and
``revision``, main where left out). It names its file. A source that is not there, or that
lacks this file, is passed over with its reason, and nothing else ever takes its place.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa
from huggingface_hub import HfApi, HfFileSystem, constants, try_to_load_from_cache

from flatminima.errors import UserError, suggest
from flatminima.hub import HubError, ask
from flatminima.jobs import log, progress
from flatminima.text.corpus import (
    COMPRESSIONS,
    FORMATS,
    SURROGATES,
    collect_packages,
    document_key,
    file_format,
    read_documents,
    tally,
    write_documents,
)

REMOTE = "hf://"
LONG = 1 << 20  # characters; of a longer document no more is read than is asked for


class TextError(UserError):
    """Text that cannot be had or read, in one line that names the file."""


class NotAvailable(Exception):
    """Why a source cannot be had here and now, without its name."""


@dataclass(frozen=True)
class TextFile:
    """A file that was found: its ``name`` for people, where it lies, and what it holds.

    ``location`` is a path, or begins with ``hf://``; ``field`` has the text in each line or row.
    """

    name: str
    location: str
    format: str
    field: str = "text"
    commit: str | None = None


# Which file


def describe_source(source: Mapping) -> str:
    """A source of the configuration in a few words."""
    if "path" in source:
        return source["path"]
    revision = f" at {source['revision']}" if "revision" in source else ""
    return f"{source['repo']}{revision}: {source['file']}"


def find_first(sources: Sequence[Mapping], what: str) -> tuple[TextFile, list[dict[str, str]]]:
    """The first source that can be had, and those before it with the reason of each.

    ``what`` names the text in the error, a ``TextError`` where none can be had.
    """
    passed_over: list[dict[str, str]] = []
    for source in sources:
        try:
            return find_file(source), passed_over
        except NotAvailable as error:
            passed_over.append({"source": describe_source(source), "reason": str(error)})
    reasons = "; ".join(f"{entry['source']} ({entry['reason']})" for entry in passed_over)
    raise TextError(f"{what}: none of its sources can be had: {reasons}")


def find_file(source: Mapping) -> TextFile:
    """The file of one source; raises ``NotAvailable`` where it cannot be had."""
    field = source.get("field", "text")
    if "repo" in source:
        return _on_hub(source, field)
    path = Path(source["path"])
    if not path.is_file():
        raise NotAvailable("is no file" if path.exists() else "no such file")
    return TextFile(source["path"], str(path), file_format(path.name), field)


def _on_hub(source: Mapping, field: str) -> TextFile:
    repo, file, revision = source["repo"], source["file"], source.get("revision", "main")
    name, form = describe_source(source), file_format(file)
    if constants.is_offline_mode():
        cached = _in_cache(repo, file, revision)
        if cached is None:
            raise NotAvailable(f"HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} lacks it")
        commit = cached.parts[-1 - len(PurePosixPath(file).parts)]  # …/snapshots/<commit>/<file>
        return TextFile(name, str(cached), form, field, commit)
    api, timeout = HfApi(endpoint=constants.ENDPOINT), constants.HF_HUB_ETAG_TIMEOUT
    try:
        info = ask(
            lambda: api.dataset_info(repo, revision=revision, timeout=timeout),
            f"datasets/{repo}",
            revision,
        )
    except HubError as error:
        raise NotAvailable(str(error)) from error
    files = [sibling.rfilename for sibling in info.siblings or ()]
    if file not in files:
        # For the message a few of its text files, those of the same folder first.
        texts = [name for name in files if set(PurePosixPath(name).suffixes) & set(FORMATS)]
        texts.sort(
            key=lambda name: (PurePosixPath(name).parent != PurePosixPath(file).parent, name)
        )
        raise NotAvailable(f"there is no {file} in it; {suggest(file, texts[:5])}")
    cached = _in_cache(repo, file, info.sha)
    location = str(cached) if cached else f"{REMOTE}datasets/{repo}@{info.sha}/{file}"
    return TextFile(name, location, form, field, info.sha)


def _in_cache(repo: str, file: str, revision: str) -> Path | None:
    """The file in the user's cache, where an earlier download left it."""
    found = try_to_load_from_cache(repo, file, revision=revision, repo_type="dataset")
    return Path(found) if isinstance(found, str) else None


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
        for text in _resumed(file) if file.location.startswith(REMOTE) else _texts(file):
            given += 1
            yield text
    except (TextError, HubError):
        raise
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TextError(
            f"{file.name}: not UTF-8, byte {byte:#04x} after document {given}"
        ) from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TextError(f"{file.name}: cannot be read after document {given} ({error})") from error
    if not given:
        raise TextError(f"{file.name}: holds no documents")


def _resumed(file: TextFile) -> Iterator[str]:
    """Texts of a file of the hub; where it breaks off it is begun again, what was given skipped."""
    given, rest = 0, _texts(file)

    def following() -> str | None:
        nonlocal rest
        try:
            return next(rest, None)
        except BaseException:
            rest = islice(_texts(file), given, None)
            raise

    repo, _, path = file.location.removeprefix(REMOTE).partition("@")
    commit, _, name = path.partition("/")
    while (text := ask(following, repo, commit, f"{name} after document {given}")) is not None:
        given += 1
        yield text


def _texts(file: TextFile) -> Iterator[str]:
    if file.format == "parquet":
        yield from _parquet_texts(file)
        return
    if file.location.startswith(REMOTE):
        hub = HfFileSystem(endpoint=constants.ENDPOINT, skip_instance_cache=True)
        stream = hub.open(file.location.removeprefix(REMOTE), "rb")
    else:
        stream = open(file.location, "rb")  # noqa: SIM115
    with stream:
        yield from _READERS[file.format](stream, file)


def _lines(stream: BinaryIO, file: TextFile) -> Iterator[str]:
    """Lines of a text file with their ends; a compressed stream that is cut is an error."""
    unpacked = pa.PythonFile(stream, mode="r")
    if codec := COMPRESSIONS.get(PurePosixPath(file.location).suffix):
        unpacked = pa.CompressedInputStream(unpacked, codec)
    try:
        yield from io.TextIOWrapper(unpacked, encoding="utf-8-sig")
    except OSError as error:
        if "Truncated" not in str(error):
            raise
        raise TextError(f"{file.name}: ends in the middle of its {codec} stream") from error


def _paragraphs(stream: BinaryIO, file: TextFile) -> Iterator[str]:
    for blank, lines in groupby(_lines(stream, file), key=str.isspace):
        if not blank:
            yield "".join(lines).removesuffix("\n")


def _json_texts(stream: BinaryIO, file: TextFile) -> Iterator[str]:
    for number, line in enumerate(_lines(stream, file), start=1):
        if line.isspace():
            continue
        where = f"{file.name}: line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextError(f"{where} is not JSON, one object a line ({error})") from error
        if not isinstance(row, dict):
            raise TextError(f"{where} is {line.strip()[:20]}; each line must be an object")
        if file.field not in row:
            has = ", ".join(row) or "no field"
            raise TextError(f"{where} lacks the field {file.field!r}; it has {has}")
        yield _checked(row[file.field], where, file.field)


def _parquet_texts(file: TextFile) -> Iterator[str]:
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
        yield _checked(row[file.field], f"{file.name}: row {number}", file.field)


def _checked(text: object, where: str, field: str) -> str:
    if not isinstance(text, str):
        shown = json.dumps(text, default=str)[:20]
        raise TextError(f"{where}: the field {field!r} is {shown}, not text")
    if found := SURROGATES.search(text):
        raise TextError(
            f"{where}: the field {field!r} has half a character ({ascii(found[0])}), which no "
            "file and no tokenizer can hold"
        )
    return text


_READERS = {"json": _json_texts, "text": _paragraphs}


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
        if longest is not None and len(text) > longest:
            continue
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
        return collect_packages(text, train, validation)
    wanted, records, held_out = source["wanted"], {}, set()
    # Validation first: training leaves out every document that it holds, white space aside.
    for split, path in (("validation", validation), ("train", train)):
        records[split] = _collect_split(split, text.get(split), wanted.get(split), held_out, path)
        held_out = set(map(document_key, read_documents(path)))
    counts = {f"{split}_documents": record["documents"] for split, record in records.items()}
    return {"source": "files", **records, **counts}


def _collect_split(
    split: str, sources: Sequence[Mapping], wanted: Mapping | None, held_out: set[bytes], path: str
) -> dict:
    """Write what is ``wanted`` of the first source that can be had; return the record of it.

    A split of which nothing is wanted has a file without documents.
    """
    if wanted is None:
        return {"documents": write_documents(path, [])}
    file, passed_over = find_first(sources, f"{split} text")
    for entry in passed_over:
        log(f"{split} text: passed over {entry['source']}: {entry['reason']}")
    most, left_out = max(LONG, *wanted.values()) + 1, 0

    def others() -> Iterator[str]:
        nonlocal left_out
        for text in read_texts(file):
            if document_key(text[:most]) in held_out:
                left_out += 1
            else:
                yield text[:most]

    write_documents(path, progress(up_to(others(), wanted), f"documents from {file.name}"))
    return {
        "taken": file.name,
        "commit": file.commit,
        "field": None if file.format == "text" else file.field,
        **tally(read_documents(path)),
        "left_out_as_validation": left_out,
        "passed_over": passed_over,
    }
