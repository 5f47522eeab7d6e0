"""Text files of every form, read as a stream; what is wrong with one is said in one line."""

import gzip
import importlib.util
import json

import pandas as pd
import pytest
import zstandard

from flatminima.text import files as text_files
from flatminima.text.files import read_texts
from flatminima.text.sources import NotAvailable, TextError, find_file

# What a reader that guesses types, line ends or paragraphs would change.
TEXTS = [
    "first", "2020-01-01", "17", "null", "one\ntwo\r\nthree\rfour", "a\u2028b\x0bc\x1cd\x85e",
    "  white \n\n space\t", "", "é 漢字 \U0001f600 e\u0301", '{"text": "inner"}', "\ufeffbom",
    "x" * 70_000,
]  # fmt: skip
META = [{"pile_set_name": "A"}, 3, None, ["x"], "2020-01-01", {"pile_set_name": 5}]


def jsonl(texts, field: str = "text") -> bytes:
    rows = [{field: t, "meta": META[n % len(META)]} for n, t in enumerate(texts)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(path, **details) -> list[str]:
    return list(read_texts(find_file({"path": str(path), **details})))


def write_parquet(path, texts, field: str = "text") -> None:
    pd.DataFrame({"n": range(len(texts)), field: texts}).to_parquet(path, row_group_size=5)


PACKED = {
    "a.jsonl": jsonl(TEXTS),
    "a.json": jsonl(TEXTS),
    "a.jsonl.zst": zstandard.compress(jsonl(TEXTS)),
    "a.jsonl.gz": gzip.compress(jsonl(TEXTS), mtime=0),
    # As two runs of zstd or gzip one after another leave it.
    "b.jsonl.zst": zstandard.compress(jsonl(TEXTS[:5])) + zstandard.compress(jsonl(TEXTS[5:])),
    "b.jsonl.gz": gzip.compress(jsonl(TEXTS[:5]), mtime=0)
    + gzip.compress(jsonl(TEXTS[5:]), mtime=0),
    "c.jsonl": b"\xef\xbb\xbf" + jsonl(TEXTS).replace(b"\n", b"\r\n") + b"\n   \n",
    "name with blanks, é.jsonl": jsonl(TEXTS),
}


@pytest.mark.parametrize("name", PACKED)
def test_json_lines_are_what_was_written(name, tmp_path):
    (tmp_path / name).write_bytes(PACKED[name])
    assert read(tmp_path / name) == TEXTS


def test_parquet_is_what_was_written(tmp_path):
    write_parquet(tmp_path / "a.parquet", TEXTS)
    assert read(tmp_path / "a.parquet") == TEXTS


def test_another_field_can_hold_the_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS, "content"))
    write_parquet(tmp_path / "a.parquet", TEXTS, "content")
    for name in ("a.jsonl", "a.parquet"):
        assert read(tmp_path / name, field="content") == TEXTS


@pytest.mark.parametrize("pack", [bytes, zstandard.compress, gzip.compress])
def test_a_text_file_holds_paragraphs(pack, tmp_path):
    ending = {zstandard.compress: ".zst", gzip.compress: ".gz"}.get(pack, "")
    text = "\n\none\n  two  \n\n \t\n\nthree\r\nfour\u2028five\r\n\r\nsix"
    (tmp_path / f"a.txt{ending}").write_bytes(pack(text.encode()))
    expected = ["one\n  two  ", "three\nfour\u2028five", "six"]
    assert read(tmp_path / f"a.txt{ending}") == expected


def test_a_relative_path_is_seen_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert read("a.txt") == ["here"]


def test_a_long_file_is_read_no_further_than_it_must(tmp_path):
    """A broken line far behind what is wanted does not matter; datasets reads 10 MB at once."""
    line = json.dumps({"text": "x" * 100_000}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 250 + "broken\n")
    texts = read_texts(find_file({"path": str(tmp_path / "a.jsonl")}))
    assert [len(next(texts)) for _ in range(100)] == [100_000] * 100
    with pytest.raises(TextError, match="a.jsonl: line 251 is not JSON"):
        list(texts)


GOOD = jsonl(["a", "b", "c", "d", "e", "f"])
BROKEN = [
    ("a.jsonl", GOOD + b'{"txt": "g", "n": 1}\n', "line 7 lacks the field 'text'; it has txt, n"),
    ("a.jsonl", GOOD + b"{}\n", "line 7 lacks the field 'text'; it has no field"),
    ("a.jsonl", GOOD + b'{"text": null}\n', "line 7: the field 'text' is null, not text"),
    ("a.jsonl", GOOD + b'{"text": 7}\n', "line 7: the field 'text' is a number, not text"),
    ("a.jsonl", GOOD + b'{"text": "a\\ud800b"}\n', "line 7: the field 'text' has half a char"),
    ("a.jsonl", GOOD + b'{"text": "cut o', "line 7 is not JSON, one object a line (Unterminated"),
    ("a.jsonl", GOOD + b"[" * 100_000 + b"\n", "line 7 is not JSON"),
    ("a.jsonl", GOOD + b'"text"\n', "line 7 is text; each line must be an object"),
    ("a.json", b"[\n" + GOOD + b"]\n", "line 1 is not JSON, one object a line"),
    ("a.jsonl", GOOD + b'{"text": "\xff"}\n', "not UTF-8, byte 0xff"),
    ("a.jsonl", zstandard.compress(GOOD), "not UTF-8, byte 0xb5"),
    ("a.txt", b"caf\xe9\n", "not UTF-8, byte 0xe9 after document 0"),
    ("a.jsonl", b"", "holds no documents"),
    ("a.txt", b" \n\n\t\n", "holds no documents"),
    ("a.jsonl.zst", GOOD, "cannot be read after document 0 (ZstdError"),
    ("a.jsonl.zst", zstandard.compress(GOOD)[:30], "a.jsonl.zst: "),
    ("a.jsonl.gz", GOOD, "cannot be read after document 0 (BadGzipFile"),
    ("a.jsonl.gz", gzip.compress(GOOD, mtime=0)[:60], "cannot be read after document 0 (EOFError"),
    ("a.parquet", GOOD, "cannot be read after document 0 (ArrowInvalid"),
]


@pytest.mark.parametrize(("name", "content", "line"), BROKEN)
def test_a_broken_file_is_one_line_with_its_name(name, content, line, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError) as error:
        read(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}: ") and line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_broken_parquet_file_is_one_line_with_its_name(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, [*"abcdef", None])
    with pytest.raises(TextError, match="a.parquet: row 7: the field 'text' is null, not text"):
        read(path)
    with pytest.raises(TextError, match="lacks the column 'body'; it has n, text"):
        read(path, field="body")
    with pytest.raises(TextError, match="row 1: the field 'n' is a number, not text"):
        read(path, field="n")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(TextError, match="cannot be read after document 0"):
        read(path)


def test_a_missing_zstandard_is_said_as_that(tmp_path, monkeypatch):
    """Whatever else is listed: what is installed must not decide which text is taken."""
    (tmp_path / "a.jsonl.zst").write_bytes(PACKED["a.jsonl.zst"])
    found = importlib.util.find_spec
    hidden = lambda name, *more: None if name == "zstandard" else found(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    message = "reading it needs the package zstandard, which is not installed"
    for source in ({"path": str(tmp_path / "a.jsonl.zst")}, {"repo": "a/b", "file": "c.jsonl.zst"}):
        with pytest.raises(TextError, match=message):
            find_file(source)


def test_a_folder_whose_name_datasets_would_read_as_a_pattern_is_refused(tmp_path):
    (tmp_path / "old [1]").mkdir()
    (tmp_path / "old [1]" / "a.txt").write_text("here")
    with pytest.raises(TextError, match=r"a folder above it has one of \* \? \[ \]"):
        read(tmp_path / "old [1]" / "a.txt")


def test_what_is_no_file_is_not_available(tmp_path):
    (tmp_path / "a.txt").mkdir()
    for name, reason in (("a.txt", "is no file"), ("b.txt", "no such file")):
        with pytest.raises(NotAvailable, match=reason):
            find_file({"path": str(tmp_path / name)})


def test_no_request_is_made_for_a_local_file(tmp_path, monkeypatch):
    """`datasets` would count the use of its loader with a request to the hub."""
    import socket

    def refuse(*_: object) -> None:
        raise AssertionError("a local file needs no network")

    (tmp_path / "a.jsonl").write_bytes(GOOD)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert read(tmp_path / "a.jsonl") == list("abcdef")


def test_every_form_has_its_reader():
    assert set(text_files._READERS) == {"json", "parquet", "text"}
