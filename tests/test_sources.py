"""Text files of every format, local and from a hub, are read as a stream; errors are one line."""

import gzip
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import zstandard
from huggingface_hub import constants, hf_hub_download

from flatminima.errors import UserError
from flatminima.text.corpus import KEY_CHARACTERS, overlap, read_documents, write_documents
from flatminima.text.sources import TextError, collect_split, find_file, read_texts
from flatminima.tools.sources import step_in_name
from tests.hub.server import TinyHub, point_at
from tests.workflow import ROOT

# Texts that a reader would change if it guessed types, line ends or paragraphs.
TEXTS = [
    *("first", "2020-01-01", "17", "null", "one\ntwo\r\nthree\rfour"),
    *("a\u2028b\x0bc\x1cd\x85e", "  white \n\n space\t", "", "é 漢字 \U0001f600 e\u0301"),
    *('{"text": "inner"}', "\ufeffbom", "x" * 70_000),
]
# Another field, whose type changes from line to line.
META = [{"pile_set_name": "A"}, 3, None, ["x"], "2020-01-01", {"pile_set_name": 5}]


def jsonl(texts, field: str = "text") -> bytes:
    rows = [{field: text, "meta": META[n % len(META)]} for n, text in enumerate(texts)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def texts_of(source: dict) -> list[str]:
    return list(read_texts(find_file(source)))


def read(path, **details) -> list[str]:
    return texts_of({"path": str(path), **details})


def write_parquet(path, texts, field: str = "text") -> None:
    pd.DataFrame({"n": range(len(texts)), field: texts}).to_parquet(path, row_group_size=5)


PACKED = {
    "a.jsonl": jsonl(TEXTS),
    "a.json": jsonl(TEXTS),
    "a.jsonl.zst": zstandard.compress(jsonl(TEXTS)),
    "a.jsonl.gz": gzip.compress(jsonl(TEXTS), mtime=0),
    # Two compressed streams, one after the other.
    "b.jsonl.zst": zstandard.compress(jsonl(TEXTS[:5])) + zstandard.compress(jsonl(TEXTS[5:])),
    "b.jsonl.gz": gzip.compress(jsonl(TEXTS[:5]), mtime=0)
    + gzip.compress(jsonl(TEXTS[5:]), mtime=0),
    "c.jsonl": b"\xef\xbb\xbf" + jsonl(TEXTS).replace(b"\n", b"\r\n") + b"\n   \n",
    "old [1] é*.jsonl": jsonl(TEXTS),
}


def test_documents_are_read_as_written_from_every_format(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a local file needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    for name, content in PACKED.items():
        Path(name).write_bytes(content)
        assert read(tmp_path / name) == read(name) == TEXTS, name
    write_parquet("a.parquet", TEXTS, "content")
    Path("b.jsonl").write_bytes(jsonl(TEXTS, "content"))
    for name in ("a.parquet", "b.jsonl"):
        assert read(name, field="content") == TEXTS
    # A document of a text file is a paragraph.
    text = "\n\none\n  two  \n\n \t\n\nthree\r\nfour\u2028five\r\n\r\nsix".encode()
    for name, content in (("a.txt", text), ("a.txt.gz", gzip.compress(text))):
        Path(name).write_bytes(content)
        assert read(name) == ["one\n  two  ", "three\nfour\u2028five", "six"]


GOOD = jsonl(["a", "b", "c", "d", "e", "f"])
LONG = "\n\n".join(f"paragraph {n}" for n in range(20_000)).encode()
PARQUET = pd.DataFrame({"n": range(7), "text": [*"abcdef", None]}).to_parquet()
BROKEN = [
    ("a.jsonl", GOOD + b'{"txt": "g", "n": 1}\n', "line 7 lacks the field 'text'; it has txt, n"),
    ("a.jsonl", GOOD + b'{"text": null}\n', "line 7: the field 'text' is null, not text"),
    ("a.jsonl", GOOD + b'{"text": "a\\ud800b"}\n', "line 7: the field 'text' is \"a\\ud800b\""),
    ("a.jsonl", GOOD + b'{"text": "cut o', "line 7 is not JSON; each line"),
    ("a.jsonl", GOOD + b'"text"\n', "line 7 is \"text\"; each line must be an object"),
    ("a.jsonl", GOOD + b'{"text": "\xff"}\n', "byte 0xff"),
    ("a.jsonl", zstandard.compress(GOOD), "byte 0xb5"),
    ("a.txt", b" \n\n\t\n", "contains no documents"),
    ("a.jsonl.zst", GOOD, "cannot be read after document 0 (ZSTD decompress failed"),
    ("a.jsonl.gz", GOOD, "cannot be read after document 0 (zlib inflate failed"),
    *(
        (f"a.txt{ending}", pack(LONG)[:cut], "Truncated")
        for ending, pack in ((".zst", zstandard.compress), (".gz", gzip.compress))
        for cut in (-1000, 20, -1)
    ),
    ("a.parquet", GOOD, "cannot be read after document 0 ("),
    ("a.parquet", PARQUET[:200], "cannot be read after document 0 ("),
    ("a.parquet", PARQUET, "row 7: the field 'text' is null, not text"),
    ("a.parquet", pd.DataFrame({"n": [1]}).to_parquet(), "lacks the column 'text'; it has n"),
    ("a.parquet", pd.DataFrame({"text": [0]}).to_parquet(), "row 1: the field 'text' is 0, not"),
]  # fmt: skip


def test_a_broken_file_gives_one_line_with_its_name(tmp_path):
    for name, content, part in BROKEN:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TextError) as error:
            read(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: ")
        assert part in str(error.value)
        assert "\n" not in str(error.value)


# Both splits


@pytest.fixture
def files(tmp_path):
    """A source of local files; training repeats two validation documents."""
    train = ["seen 0", "held out 0", "held\n  out 1 ", *(f"seen {n}" for n in range(1, 9))]
    write_documents(tmp_path / "val.jsonl", [f"held out {n}" for n in range(10)])
    write_documents(tmp_path / "00.jsonl", train)
    text = {
        "source": "files",
        "validation": [{"path": f"{tmp_path}/val.jsonl"}],
        "train": [{"path": f"{tmp_path}/00.jsonl"}],
    }
    amounts = {"validation": {"amount": 40}, "train": {"amount": 48}}
    return {"text": text, "wanted": amounts}


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "out" / "train.jsonl", tmp_path / "out" / "validation.jsonl"


def collect(files: dict, train: Path, validation: Path) -> dict[str, dict]:
    """Collect both splits, the validation text first; returns their records."""
    text = files["text"]
    wanted = files["wanted"]
    return {
        "validation": collect_split(
            "validation", text["validation"], wanted["validation"], validation
        ),
        "train": collect_split("train", text["train"], wanted["train"], train, validation),
    }


def test_enough_documents_are_taken_and_none_is_in_both_splits(files, paths):
    manifest = collect(files, *paths)
    train, validation = (list(read_documents(path)) for path in paths)
    # Validation: four documents of ten characters are 40. Training: eight of six are 48.
    assert validation == [f"held out {n}" for n in range(4)]
    assert train == [f"seen {n}" for n in range(8)]
    assert manifest["validation"]["documents"] == 4
    assert manifest["train"]["documents"] == 8
    assert manifest["train"]["characters"] == 48
    assert manifest["train"]["left_out_as_validation"] == 2
    assert manifest["train"]["passed_over"] == []


def test_documents_that_are_too_long_are_written_and_do_not_count(files, paths):
    files["wanted"]["train"]["longest"] = 5
    assert collect(files, *paths)["train"]["documents"] == 9


def test_one_file_can_be_both_splits(files, paths):
    files["text"]["train"] = files["text"]["validation"]
    files["wanted"]["train"] = {"amount": 30}
    assert collect(files, *paths)["train"]["left_out_as_validation"] == 4
    assert list(read_documents(paths[0])) == ["held out 4", "held out 5", "held out 6"]


def test_a_document_of_any_length_is_in_one_split_only(files, paths, tmp_path):
    """Splits may cut a long document at different lengths. It still is the same document."""
    long_document = " ".join(f"word{n}" for n in range(300_000))
    assert len(long_document) > 2 * KEY_CHARACTERS
    for name in ("val", "00"):
        write_documents(tmp_path / f"{name}.jsonl", [long_document, "another document"])
    for amount in (40, 1_500_000):
        files["wanted"]["train"]["amount"] = amount
        manifest = collect(files, *paths)
        assert manifest["validation"]["documents"] == 1
        assert manifest["train"]["left_out_as_validation"] == 1
        assert list(read_documents(paths[0])) == ["another document"]
        assert overlap(*paths)["word_windows_shared_with_training"]["in_training_pct"] == 0.0


def test_the_first_available_source_is_taken_and_earlier_ones_are_recorded(files, paths, tmp_path):
    available = files["text"]["validation"][0]
    missing = {"path": str(tmp_path / "nowhere.jsonl")}
    files["text"]["validation"] = [missing, available, {"path": str(tmp_path / "00.jsonl")}]
    manifest = collect(files, *paths)
    assert manifest["validation"]["taken"] == available["path"]
    passed_over = [{"source": missing["path"], "reason": "no such file"}]
    assert manifest["validation"]["passed_over"] == passed_over
    files["text"]["train"] = [{"path": f"{tmp_path}/{name}"} for name in ("a.txt", "b.jsonl")]
    (tmp_path / "b.jsonl").mkdir()
    with pytest.raises(TextError) as error:
        collect(files, *paths)
    assert str(error.value).endswith(
        f"{tmp_path}/a.txt (no such file); {tmp_path}/b.jsonl (not a file)"
    )


def test_no_more_text_is_read_than_needed(files, paths, tmp_path):
    """A broken line after the needed text does not matter. One before leaves no file."""
    write_documents(tmp_path / "val.jsonl", ["word " * 10**6])
    lines = [json.dumps({"text": "x" * 100_000})] * 25
    (tmp_path / "00.jsonl").write_text("\n".join([*lines, "broken"]))
    files["wanted"]["train"]["amount"] = 2_000_000
    manifest = collect(files, *paths)
    assert manifest["validation"]["documents"] == 1 and manifest["train"]["documents"] == 20
    assert 40 < manifest["validation"]["characters"] < 1_100_000
    files["wanted"]["train"]["amount"] = 3_000_000
    paths[0].unlink()
    with pytest.raises(TextError, match="00.jsonl: line 26 is not JSON"):
        collect(files, *paths)
    assert [path.name for path in paths[0].parent.iterdir()] == ["validation.jsonl"]


COLLECT = """
collect_split("validation", [{"path": "validation.jsonl"}], {"amount": 1000}, "b.jsonl")
collect_split("train", [{"path": "train.jsonl"}], {"amount": amount}, "a.jsonl", "b.jsonl")
"""
ONE_LINE = """
train_tokenizer(["the quick brown fox jumps over lazy dogs " * 5] * 5, 300).save("tokenizer.json")
texts = read_texts(find_file({"path": "a.txt"}))
fix_split("tokenizer.json", texts, "t", name="a.txt", sequences=8, length=amount)
"""


def peak_mib(code: str, amount: int) -> int:
    """Largest memory of a process in MiB. ``ru_maxrss`` would include that of the parent."""
    if sys.platform != "linux":
        pytest.skip("the peak is read from /proc")
    code = f"""
from flatminima.text.sources import collect_split, find_file, read_texts
from flatminima.text.tokens import fix_split, train_tokenizer
amount = {amount}
{code}
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow_scripts")}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    return int(run.stdout.split()[-1])


def test_long_text_is_read_as_a_stream(tmp_path, monkeypatch):
    """A line of 64 MiB needs little memory. Ten times as much text needs about the same memory."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("letters" * ((64 << 20) // 7))
    assert peak_mib(ONE_LINE, 64) < 1000
    Path("validation.jsonl").write_bytes(jsonl(["held out " * 200]))
    Path("train.jsonl").write_bytes(jsonl([f"{n} " * 700 for n in range(30_000)]))  # 120 MB
    peak_of_10_mb = peak_mib(COLLECT, 10_000_000)
    peak_of_100_mb = peak_mib(COLLECT, 100_000_000)
    assert Path("a.jsonl").stat().st_size > 100_000_000
    assert peak_of_100_mb < peak_of_10_mb + 40


# A hub

PILE = "tiny/pile"
MIRROR = "tiny/mirror"
WORDS = random.Random(0).choices(["alpha", "beta", "gamma", "delta", "epsilon", "zeta"], k=4000)
VALIDATION = [" ".join(WORDS[n : n + 40]) + f"\n  held out {n}" for n in range(0, 2000, 50)]
TRAIN = [" ".join(WORDS[n : n + 40]) + f" seen {n}" for n in range(2000, 4000, 50)]
TRAIN.append(VALIDATION[3].replace(" ", "\n"))  # a validation document, apart from white space
BIG = [f"{n} " + random.Random(n).randbytes(2000).hex() for n in range(2000)]  # 8 MB
FILE = {"repo": PILE, "file": "val.jsonl.zst"}
BIG_FILE = {"repo": PILE, "file": "train/big.jsonl.zst"}


@pytest.fixture(scope="module")
def server():
    pile = {
        "README.md": b"# a tiny Pile\n",
        "val.jsonl.zst": zstandard.compress(jsonl(VALIDATION)),
        "train/00.jsonl.zst": zstandard.compress(jsonl(TRAIN)),
        "train/big.jsonl.zst": zstandard.compress(jsonl(BIG)),
        "train/cut.jsonl.zst": zstandard.compress(jsonl(BIG))[:-1000],
    }
    mirror = {
        "plain.jsonl": jsonl(VALIDATION),
        "broken.jsonl": jsonl(VALIDATION[:2]) + b"{\n",
        "data/validation.parquet": pd.DataFrame({"text": VALIDATION}).to_parquet(row_group_size=5),
    }
    old = {"val.jsonl.zst": zstandard.compress(jsonl(["old"]))}
    repositories = {
        PILE: {"main": pile, "old": old},
        MIRROR: {"main": mirror},
        "tiny/gated": {"main": pile},
    }
    with TinyHub(datasets=repositories, gated=("tiny/gated",)) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path, pauses):
    server.clear()
    point_at(monkeypatch, server, tmp_path / "home")
    return server


def test_every_format_gives_the_same_texts_and_the_commit_is_requested_once(hub):
    for file in ("data/validation.parquet", "plain.jsonl"):
        assert texts_of({"repo": MIRROR, "file": file}) == VALIDATION
    assert texts_of(FILE | {"revision": "old"}) == ["old"]
    file = find_file(FILE)
    assert file.commit == hub.commit(PILE, "main", "dataset")
    hub.requests.clear()
    assert list(read_texts(file)) == VALIDATION
    assert hub.requests and not hub.asked("(revision|resolve)/main")
    assert hub.commit(PILE, "old", "dataset") == find_file(FILE | {"revision": "old"}).commit


def test_a_missing_file_or_revision_is_an_error_and_never_replaced(hub, monkeypatch):
    for change, reason in (
        ({"file": "test.jsonl.zst"}, "there is no test.jsonl.zst in it; did you mean"),
        ({"file": "validation/00.jsonl.zst"}, "did you mean train/00.jsonl.zst? valid:"),
        ({"repo": "tiny/nothing"}, "no such repository, or it is private"),
        ({"revision": "v2"}, "tiny/pile at v2: the hub has no such revision"),
        ({"repo": "tiny/gated"}, "is gated; accept its terms at"),
    ):
        with pytest.raises(UserError) as error:
            find_file(FILE | change)
        assert reason in str(error.value) and "\n" not in str(error.value)
    assert not hub.asked("resolve|lfs"), "no file was requested"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert texts_of(FILE | {"repo": "tiny/gated"}) == VALIDATION


def test_offline_files_come_from_the_users_cache(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        find_file(BIG_FILE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hf_hub_download(PILE, BIG_FILE["file"], repo_type="dataset")
    hub.requests.clear()
    assert texts_of(BIG_FILE) == BIG
    assert not hub.asked("resolve|lfs"), "cached files are not fetched again"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert texts_of(BIG_FILE) == BIG and not hub.requests
    assert find_file(BIG_FILE).commit == hub.commit(PILE, "main", "dataset")


# Path, kind and details of a fault of the hub that passes.
FAULTS = {
    "busy hub": ("/api/datasets", "status", {"status": 429}),
    "busy at its commit": ("/revision/[0-9a-f]{40}", "status", {"status": 429}),
    "busy storage": ("/lfs/", "status", {"status": 503}),
    "reset in mid-file": ("/lfs/", "reset", {"after": 100_000}),
    "early end": ("/lfs/", "truncate", {"after": 100_000}),
    "short body": ("/lfs/", "short", {"after": 100_000}),
}


def test_only_the_beginning_of_a_large_file_is_read(hub, tmp_path):
    """A compressed file of 12 MB, of which a suite needs half a megabyte."""
    noise = random.Random(0)
    texts = [noise.randbytes(5000).hex() for _ in range(2400)]
    content = zstandard.compress(jsonl(texts))
    assert len(content) > 12e6
    hub.repositories["dataset"][PILE]["main"]["large.jsonl.zst"] = content
    source = {"repo": PILE, "file": "large.jsonl.zst"}
    record = collect_split("validation", [source], {"amount": 500_000}, tmp_path / "text.jsonl")
    assert record["documents"] == 50
    assert list(read_documents(tmp_path / "text.jsonl")) == texts[:50]
    assert 250_000 < hub.bytes_sent("/lfs/.*large") < 0.15 * len(content)
    assert len(hub.asked("/lfs/.*large")) <= 4


def test_a_passing_fault_changes_nothing(hub):
    for name, (path, kind, details) in FAULTS.items():
        fault = hub.fault(path, kind, **details)
        assert texts_of(BIG_FILE) == BIG and fault.met == 1, name


def test_a_lasting_fault_gives_one_line_with_the_file(hub):
    for kind in ("truncate", "wrong"):
        hub.fault("/lfs/", kind, times=None, after=100_000)
        with pytest.raises(TextError) as error:
            texts_of(BIG_FILE)
        assert str(error.value).startswith("tiny/pile: train/big.jsonl.zst")
        assert "\n" not in str(error.value)
        hub.clear()
    with pytest.raises(TextError, match="tiny/mirror: broken.jsonl: line 3 is not JSON"):
        texts_of({"repo": MIRROR, "file": "broken.jsonl"})
    with pytest.raises(TextError, match="tiny/pile: train/cut.jsonl.zst: .*Truncated"):
        texts_of({"repo": PILE, "file": "train/cut.jsonl.zst"})


# The identity of the data


def test_local_files_and_the_hub_give_the_same_documents(hub, tmp_path):
    write_parquet(tmp_path / "val.parquet", VALIDATION)
    (tmp_path / "train.jsonl").write_bytes(jsonl(TRAIN))
    missing = {"repo": MIRROR, "file": "val.jsonl.zst"}
    paths = (tmp_path / "train", tmp_path / "validation")
    contents = []
    digests = []
    for validation, train in (
        ([{"path": f"{tmp_path}/val.parquet"}], {"path": f"{tmp_path}/train.jsonl"}),
        ([missing, FILE], {"repo": PILE, "file": "train/00.jsonl.zst"}),
    ):
        text = {"source": "files", "validation": validation, "train": [train]}
        amounts = {"validation": {"amount": 2000}, "train": {"amount": 10**6}}
        record = collect({"text": text, "wanted": amounts}, *paths)
        contents.append([path.read_bytes() for path in paths])
        digests.append(record["validation"]["sha256"])
    assert contents[0] == contents[1]
    assert digests[0] == digests[1]
    assert contents[0][0] != contents[0][1]

    validation_record = record["validation"]
    assert validation_record["taken"] == "tiny/pile: val.jsonl.zst"
    assert validation_record["commit"] == hub.commit(PILE, "main", "dataset")
    [passed_over] = validation_record["passed_over"]
    assert passed_over["source"] == "tiny/mirror: val.jsonl.zst"
    assert "no val.jsonl.zst" in passed_over["reason"]
    assert record["train"]["left_out_as_validation"] == 1
    assert record["train"]["documents"] == len(TRAIN) - 1


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("stage1-step1000-tokens3B", 1000),
        ("step70000", 70000),
        ("global_step20", 20),
        ("step-500-v2", 500),
        ("checkpoint-7", 7),
        ("v1.0-12", 12),
        ("main", 4),
    ],
)
def test_the_step_of_a_revision_is_the_number_after_step_or_the_last(name, step):
    assert step_in_name(name, default=4) == step
