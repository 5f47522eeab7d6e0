"""Text of hub datasets, over HTTP from a tiny one: the same data whatever the route."""

import json
import random
import time
from types import SimpleNamespace

import pytest
import zstandard
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import _http

from flatminima.hub.retrying import Patience
from flatminima.text.collecting import collect
from flatminima.text.files import read_texts
from flatminima.text.sources import NotAvailable, TextError, find_file
from flatminima.text.tokens import file_sha256, train_tokenizer
from tests.hub.libraries import point_at
from tests.hub.server import TinyHub
from tests.test_text_files import jsonl, write_parquet
from workflow_scripts import fix_batches

PILE, MIRROR = "tiny/pile", "tiny/mirror"
WORDS = random.Random(0).choices(["alpha", "beta", "gamma", "delta", "epsilon", "zeta"], k=4000)
VALIDATION = [" ".join(WORDS[n : n + 40]) + f"\n  held out {n}" for n in range(0, 2000, 50)]
TRAIN = [*(" ".join(WORDS[n : n + 40]) + f" seen {n}" for n in range(2000, 4000, 50)),
         VALIDATION[3].replace(" ", "\n")]  # fmt: skip
BIG = [f"{n} " + random.Random(n).randbytes(2000).hex() for n in range(2000)]  # 8 MB
FILE = {"repo": PILE, "file": "val.jsonl.zst"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirror")
    pile = {
        "README.md": b"# a tiny Pile\n",
        "val.jsonl.zst": zstandard.compress(jsonl(VALIDATION)),
        "train/00.jsonl.zst": zstandard.compress(jsonl(TRAIN)),
        "train/big.jsonl.zst": zstandard.compress(jsonl(BIG)),
    }
    mirror = {
        "plain.jsonl": jsonl(VALIDATION),
        "broken.jsonl": jsonl(VALIDATION[:2]) + b"{\n",
    }
    write_parquet(folder / "a.parquet", VALIDATION)
    mirror["data/validation.parquet"] = (folder / "a.parquet").read_bytes()
    old = {"val.jsonl.zst": zstandard.compress(jsonl(["old"]))}
    repositories = {PILE: {"main": pile, "old": old}, MIRROR: {"main": mirror}}
    repositories["tiny/gated"] = {"main": pile}
    with TinyHub(datasets=repositories, gated=("tiny/gated",)) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    import datasets

    server.requests.clear()
    server.faults.clear()
    point_at(monkeypatch, server, tmp_path / "home")
    for kind in ("", "SERVER_UNAVAILABLE_", "RATE_LIMIT_"):
        monkeypatch.setattr(datasets.config, f"STREAMING_READ_{kind}RETRY_INTERVAL", 0)
    impatient = SimpleNamespace(**vars(time) | {"sleep": lambda seconds: None})
    monkeypatch.setattr(_http, "time", impatient)  # the pauses of the client's own retries
    return server


@pytest.fixture
def patience():
    """Three attempts, and the pauses between them noted instead of waited for."""
    pauses = []
    return Patience(attempts=3, sleep=pauses.append)


def read(source, patience) -> list[str]:
    return list(read_texts(find_file(source, patience), patience))


def test_every_form_of_the_same_documents_is_the_same(hub, patience):
    for file in ("data/validation.parquet", "plain.jsonl"):
        assert read({"repo": MIRROR, "file": file}, patience) == VALIDATION
    assert read(FILE, patience) == VALIDATION
    assert read(FILE | {"revision": "old"}, patience) == ["old"]


def test_the_commit_is_asked_once_and_then_pinned(hub, patience):
    file = find_file(FILE, patience)
    assert file.commit == hub.commit(PILE, "main", "dataset")
    assert f"@{file.commit}/val.jsonl.zst" in file.location
    hub.requests.clear()
    list(read_texts(file, patience))
    assert hub.requests and not hub.asked("main")
    assert hub.commit(PILE, "old", "dataset") == find_file(FILE | {"revision": "old"}).commit


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (FILE | {"file": "test.jsonl.zst"}, "there is no test.jsonl.zst in it; did you mean"),
        (FILE | {"file": "validation/00.jsonl.zst"}, "did you mean train/00.jsonl.zst? valid:"),
        (FILE | {"repo": "tiny/nothing"}, "no such repository, or it is private"),
        (FILE | {"revision": "v2"}, "datasets/tiny/pile at v2: the hub has no such revision"),
        (FILE | {"repo": "tiny/gated"}, "is gated; accept its terms at"),
    ],
)
def test_what_a_dataset_lacks_is_said_and_never_replaced(hub, source, reason, patience):
    """train/ beside a file for validation: datasets on its own would find train alone."""
    with pytest.raises(NotAvailable) as error:
        find_file(source, patience)
    assert reason in str(error.value) and "\n" not in str(error.value)
    assert not hub.asked("resolve|lfs"), "no file was asked for"


def test_a_gated_dataset_opens_with_the_users_token(hub, patience, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert read(FILE | {"repo": "tiny/gated"}, patience) == VALIDATION


def test_a_hub_that_cannot_be_reached_is_passed_over(monkeypatch, tmp_path, patience):
    with TinyHub() as gone:
        point_at(monkeypatch, gone, tmp_path)
    with pytest.raises(NotAvailable, match="datasets/tiny/pile at main: ConnectError"):
        find_file(FILE, patience)


def test_offline_the_users_cache_is_a_source(hub, patience, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotAvailable, match="HF_HUB_OFFLINE is set and .* lacks it"):
        find_file(FILE, patience)
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hf_hub_download(PILE, "val.jsonl.zst", repo_type="dataset")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert read(FILE, patience) == VALIDATION
    assert find_file(FILE, patience).commit == hub.commit(PILE, "main", "dataset")
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert read(FILE, patience) == VALIDATION
    assert not hub.asked("resolve|lfs"), "what is in the cache is not fetched again"


# Faults

BIG_FILE = {"repo": PILE, "file": "train/big.jsonl.zst"}
FAULTS = {
    "busy hub": ("/api/datasets", "status", {"status": 503}),
    "too many requests": ("/api/datasets", "status",
                          {"status": 429, "headers": {"Retry-After": "7"}}),
    "busy storage": ("/lfs/", "status", {"status": 503}),
    "reset in mid-file": ("/lfs/", "reset", {"after": 100_000}),
    "early end": ("/lfs/", "truncate", {"after": 100_000}),
    "reset at once": ("/api/datasets", "reset", {"after": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_passing_fault_changes_nothing(name, hub, patience):
    path, kind, details = FAULTS[name]
    fault = hub.faults.add(path, kind, **details)
    assert read(BIG_FILE, patience) == BIG
    assert fault.met == 1


@pytest.mark.parametrize("kind", ["reset", "truncate"])
def test_a_stream_that_keeps_breaking_off_is_one_line(kind, hub, patience, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "STREAMING_READ_MAX_RETRIES", 2)
    hub.faults.add("/lfs/", kind, times=None, after=100_000)
    with pytest.raises(TextError) as error:
        read(BIG_FILE, patience)
    assert str(error.value).startswith("tiny/pile: train/big.jsonl.zst: ")
    assert "\n" not in str(error.value)


def test_wrong_bytes_are_never_taken_for_text(hub, patience):
    hub.faults.add("/lfs/", "wrong", times=None)
    with pytest.raises(TextError, match="tiny/pile: val.jsonl.zst: cannot be read after doc"):
        read(FILE, patience)


def test_a_broken_line_of_a_hub_file_is_named(hub, patience):
    with pytest.raises(TextError, match="tiny/mirror: broken.jsonl: line 3 is not JSON"):
        read({"repo": MIRROR, "file": "broken.jsonl"}, patience)


# The identity of the data


def token_files(folder, validation, train, patience):
    """Both token files of these sources, and their manifests."""
    folder.mkdir()
    wanted = {"validation": {"amount": 2000}, "train": {"amount": 10**6}}
    source = {"text": {"source": "files", "validation": validation, "train": train},
              "wanted": wanted}  # fmt: skip
    paths = {split: folder / f"{split}.jsonl" for split in ("train", "validation")}
    (folder / "text.json").write_text(json.dumps(collect(source, **paths, patience=patience)))
    train_tokenizer(TRAIN, 300).save(str(folder / "tokenizer.json"))
    outputs = {s: (folder / f"{s}.safetensors", folder / f"{s}.json") for s in paths}
    fix_batches.main(
        texts=paths,
        tokenizer=folder / "tokenizer.json",
        manifest=folder / "text.json",
        batches={"validation": {"sequences": 4, "length": 32},
                 "train": {"sequences": 26, "length": 64}},
        vocabulary={"model_vocabulary": 304},
        outputs=outputs,
    )  # fmt: skip
    tokens = {split: file_sha256(file) for split, (file, _) in outputs.items()}
    return tokens, {s: json.loads(record.read_text()) for s, (_, record) in outputs.items()}


def test_the_token_files_are_the_same_whatever_the_route(hub, patience, tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    for split, texts in (("val", VALIDATION), ("train", TRAIN)):
        (local / f"{split}.jsonl").write_bytes(jsonl(texts))
        (local / f"{split}.jsonl.zst").write_bytes(zstandard.compress(jsonl(texts)))
        write_parquet(local / f"{split}.parquet", texts)
    routes = {
        ending: ([{"path": f"{local}/val{ending}"}], [{"path": f"{local}/train{ending}"}])
        for ending in (".jsonl", ".jsonl.zst", ".parquet")
    }
    missing = {"repo": MIRROR, "file": "val.jsonl.zst"}
    on_hub = {"repo": PILE, "file": "train/00.jsonl.zst"}
    routes["hub"] = ([missing, FILE], [on_hub])
    routes["both"] = ([{"repo": MIRROR, "file": "data/validation.parquet"}], routes[".jsonl"][1])
    found = {
        name: token_files(tmp_path / name, *sources, patience) for name, sources in routes.items()
    }
    tokens, records = found["hub"]
    assert all(other == tokens for other, _ in found.values())
    assert tokens["validation"] != tokens["train"]

    record = records["validation"]
    assert record["sha256"] == tokens["validation"]
    assert record["vocab_size"] == 300 and record["model_vocabulary"] == 304
    assert record["documents_shared_with_training"] == 0
    validation, train = record["text"]["validation"], record["text"]["train"]
    assert validation["taken"] == "tiny/pile: val.jsonl.zst"
    assert validation["commit"] == hub.commit(PILE, "main", "dataset")
    assert validation["passed_over"][0]["source"] == "tiny/mirror: val.jsonl.zst"
    assert "there is no val.jsonl.zst in it" in validation["passed_over"][0]["reason"]
    assert train["left_out_as_validation"] == 1 and train["documents"] == len(TRAIN) - 1
    digests = [r["validation"]["text"]["validation"]["sha256"] for _, r in found.values()]
    assert set(digests) == {validation["sha256"]}
