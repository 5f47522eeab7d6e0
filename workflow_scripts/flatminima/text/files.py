"""Documents of json lines, parquet and text files, streamed with `datasets`.

Lines are parsed here and not by `datasets`' own reader of JSON: that one guesses types, so
that a text which looks like a date becomes one, it reads a whole file again where a line is
broken, and it knows no line numbers.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

import pyarrow as pa
from huggingface_hub.errors import HTTPError

from flatminima.hub.retrying import (
    PATIENT,
    Patience,
    asked_pause,
    describe_error,
    passes,
)
from flatminima.jobs import log
from flatminima.text.sources import TextError, TextFile

JSON_TYPES = {bool: "true or false", int: "a number", float: "a number", list: "a list",
              dict: "an object", type(None): "null", str: "text"}  # fmt: skip
# What damaged files raise, in the words of whoever reads them.
DAMAGED = (OSError, EOFError, ValueError, zlib.error, pa.ArrowException)
_SURROGATES = re.compile("[\ud800-\udfff]")


def read_texts(file: TextFile, patience: Patience = PATIENT) -> Iterator[str]:
    """Documents of a file in order, without holding it whole.

    A json lines file has a document in ``file.field`` of each line's object, a parquet file
    one in each row of the column ``file.field``; a text file has one in each paragraph, the
    lines between two blank ones. Raises ``TextError`` with the line or row where a file is
    not that, and where it is damaged or holds nothing.
    """
    given = 0
    try:
        for text in _resumed(lambda: _READERS[file.format](file), file.name, patience):
            given += 1
            yield text
    except TextError:
        raise
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TextError(
            f"{file.name}: not UTF-8, byte {byte:#04x} after document {given}"
        ) from error
    except DAMAGED + _zstandard_errors() as error:
        why = describe_error(error)
        raise TextError(f"{file.name}: cannot be read after document {given} ({why})") from error
    if not given:
        raise TextError(f"{file.name}: holds no documents")


def _zstandard_errors() -> tuple[type[Exception], ...]:
    try:
        from zstandard import ZstdError
    except ImportError:
        return ()
    return (ZstdError,)


def _resumed(texts: Callable[[], Iterable[str]], name: str, patience: Patience) -> Iterator[str]:
    """``texts()``; where the network breaks off it is begun again and what was given skipped."""
    given = failures = 0
    while True:
        try:
            for text in islice(texts(), given, None):
                yield text
                given, failures = given + 1, 0
            return
        except (HTTPError, ConnectionError) as error:
            failures += 1
            passing = passes(error) or isinstance(error, ConnectionError)
            if not passing or failures >= patience.attempts:
                why = describe_error(error)
                raise TextError(f"{name}: broke off after document {given} ({why})") from error
            pause = max(asked_pause(error), patience.pause(failures))
            log(f"{name}: {describe_error(error)} after document {given}; again in {pause:g} s")
            patience.sleep(pause)


def _rows(builder: str, location: str, **options: object) -> Iterable[dict]:
    """Rows of one named file. `datasets` calls any file of no stated split train."""
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # no request beside those for the data
    return datasets.load_dataset(
        builder, data_files=location, split="train", streaming=True, **options
    )


def _lines(file: TextFile) -> Iterator[str]:
    """Lines of a text file, without a byte order mark."""
    for number, row in enumerate(_rows("text", file.location)):
        yield row["text"].removeprefix("\ufeff") if number == 0 else row["text"]


def _paragraphs(file: TextFile) -> Iterator[str]:
    for blank, lines in groupby(_lines(file), key=lambda line: not line.strip()):
        if not blank:
            yield "\n".join(lines)


def _json_texts(file: TextFile) -> Iterator[str]:
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        where = f"{file.name}: line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TextError(f"{where} is not JSON, one object a line ({error})") from error
        if not isinstance(row, dict):
            kind = JSON_TYPES[type(row)]
            raise TextError(f"{where} is {kind}; each line must be an object")
        if file.field not in row:
            has = ", ".join(row) or "no field"
            raise TextError(f"{where} lacks the field {file.field!r}; it has {has}")
        yield _checked(row[file.field], where, file.field)


def _parquet_texts(file: TextFile) -> Iterator[str]:
    columns = _rows("parquet", file.location).features
    if file.field not in columns:
        has = ", ".join(columns)
        raise TextError(f"{file.name}: lacks the column {file.field!r}; it has {has}")
    rows = _rows("parquet", file.location, columns=[file.field], batch_size=1000)
    for number, row in enumerate(rows, start=1):
        yield _checked(row[file.field], f"{file.name}: row {number}", file.field)


def _checked(text: object, where: str, field: str) -> str:
    if not isinstance(text, str):
        kind = JSON_TYPES.get(type(text), type(text).__name__)
        raise TextError(f"{where}: the field {field!r} is {kind}, not text")
    if found := _SURROGATES.search(text):
        raise TextError(
            f"{where}: the field {field!r} has half a character ({ascii(found[0])}), which no "
            "file and no tokenizer can hold"
        )
    return text


_READERS = {"json": _json_texts, "parquet": _parquet_texts, "text": _paragraphs}
