"""Checkpoints and tokenizers of a hub, over HTTP from a tiny one: every form, every fault.

Under every fault a checkpoint ends whole and equal, or the job stops and names the revision.
"""

import hashlib
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, hf_hub_download, snapshot_download
from safetensors.torch import load_file

from flatminima import hub as hub_module
from flatminima.hub import (
    HubError,
    RevisionMissing,
    download_checkpoint,
    download_tokenizer,
    find_revision,
    list_branches,
)
from tests.conftest import in_child
from tests.hub.repos import (
    FORMS,
    STEPS,
    as_pickle,
    config_bytes,
    model_branches,
    model_files,
    model_tensors,
)
from tests.hub.server import TinyHub, point_at
from tests.workflow import ROOT

REPO, GATED, TOKEN = "tiny/neox", "tiny/gated", "hf_test"
FETCH = "import sys; from flatminima import hub; hub.download_checkpoint(*sys.argv[1:])"
TOKENIZER = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'
BRANCHES = {"safetensors": "step0", "bin_shards": "step8"}
NEEDED = {
    "safetensors": {"model.safetensors"},
    "both": {"model.safetensors"},
    "bin": {"pytorch_model.bin"},
    "shards": {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    | {"model.safetensors.index.json"},
    "bin_shards": {f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)}
    | {"pytorch_model.bin.index.json"},
}


class Stranger:
    """A pickle of this runs code."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a stranger was run')",))


INDEX, PART = b'{"weight_map": {"a": "x.bin", "b": "x.bin"}}', {"a": torch.ones(2)}
# What a branch holds beside its configuration, and how that is said; the first three are missing.
BROKEN = {
    "nothing": ({}, "it holds no weights"),
    "no-config": ({"model.safetensors": b"x"}, "it holds no config.json"),
    "no-shard": ({"pytorch_model.bin.index.json": INDEX}, "x.bin is missing"),
    "code": ({"pytorch_model.bin": as_pickle({"w": Stranger()})},
             "pytorch_model.bin is a pickle that holds more than tensors"),
    "step": ({"pytorch_model.bin": as_pickle({"step": 3})}, "something other than named tensors"),
    "pointer": ({"pytorch_model.bin": b"version https://git-lfs"}, "pytorch_model.bin "),
    "page": ({"model.safetensors": b"<html>"}, "model.safetensors is not whole"),
    "index": ({"model.safetensors.index.json": b"{"}, "the index of its shards cannot be read"),
    "lacking": ({"pytorch_model.bin.index.json": INDEX, "x.bin": as_pickle(PART)},
                "its shards lack 1 weights, such as b"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    odd = {name: {"config.json": config_bytes()} | files for name, (files, _) in BROKEN.items()}
    del odd["no-config"]["config.json"]
    own = model_branches()
    own["main"] = own["main"] | {"tokenizer.json": TOKENIZER}
    models = {REPO: own, GATED: {"main": model_files(400)}, "tiny/odd": odd}
    with TinyHub(models, gated=(GATED,), token=TOKEN) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path, pauses):
    server.clear()
    # A folder whose name a careless join would read as the repository.
    point_at(monkeypatch, server, tmp_path / "my models/tiny/neox")
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    return server


def assert_whole(folder: Path, revision: str) -> None:
    """The two files of a revision and nothing else, whatever form its weights came in."""
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "config.json").read_bytes() == config_bytes()
    found, expected = load_file(folder / "model.safetensors"), model_tensors(int(revision[4:]))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


# What is fetched


@pytest.mark.parametrize("form", NEEDED)
def test_every_form_of_a_branch_ends_as_the_same_two_files(hub, tmp_path, form):
    step = STEPS[FORMS.index(form)]
    branch = f"step{step}"
    origin = download_checkpoint(REPO, branch, tmp_path / "c")
    files = {n: d for n, d in model_files(step, form).items() if n in NEEDED[form]}
    files["config.json"] = config_bytes()
    assert origin == {
        "repo": REPO, "revision": branch, "commit": hub.commit(REPO, branch),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "bytes": sum(map(len, files.values())),
    }  # fmt: skip
    assert_whole(tmp_path / "c", branch)
    # Only what is needed is asked for, at the commit, and nothing else is left behind.
    asked = {r.path.split("/resolve/")[1] for r in hub.asked("/resolve/")}
    assert asked == {f"{origin['commit']}/{name}" for name in files}
    assert not any(p.is_file() for p in (tmp_path / "my models").rglob("*")), "no second copy"


def test_what_is_missing_or_cannot_be_loaded_is_named_at_once_and_not_run(hub, pauses, tmp_path):
    said = {("tiny/odd", branch): line for branch, (_, line) in BROKEN.items()} | {
        (REPO, "step3"): "the hub has no such revision", ("tiny/none", "step0"): "no such reposi",
    }  # fmt: skip
    missing = {("tiny/odd", name) for name in [*BROKEN][:3]} | {(REPO, "step3")}
    for (repo, branch), line in said.items():
        with pytest.raises(HubError) as caught:
            download_checkpoint(repo, branch, tmp_path / "c")
        message = str(caught.value)
        assert message.startswith(f"{repo} at {branch}: ") and line in message
        assert "\n" not in message and pauses == [] and not [*(tmp_path / "c").glob("*")]
        assert isinstance(caught.value, RevisionMissing) == ((repo, branch) in missing)
        if (repo, branch) in missing:
            assert caught.value.reason == message.removeprefix(f"{repo} at {branch}: ")


# Faults

INFO = r"^/api/models/tiny/neox/revision/"
FILE = r"/resolve/[^/]+/(model-00002|model\.safetensors$|pytorch_model)"
BYTES = r"^/lfs/.*(safetensors|bin)/"
INVALID = {"X-Error-Message": "Invalid credentials in Authorization header"}
# Faults, how the last of them is said where it does not pass, and whether it is worth another try.
FAULTS = {
    "429 for the list of files": ([(INFO, "status", {"status": 429})], "429", True),
    "half a list of files": ([(INFO, "short", {"after": 100})], "", True),
    "reset in a list of files": ([(INFO, "reset", {"after": 100})], "", True),
    "503 for a file": ([(FILE, "status", {"status": 503})], "503", True),
    "503 of the storage": ([(BYTES, "status", {"status": 503})], "503", True),
    "no more bytes": ([(BYTES, "status", {"status": 416})], "416", True),
    "reset before the first byte": ([(BYTES, "reset", {})], "", True),
    "body cut off and its length fits": ([(BYTES, "short", {"after": 5000})], "has size", True),
    "wrong bytes": ([(BYTES, "wrong", {})], "sha256", True),
    "wrong bytes in the configuration": (
        [(r"/resolve/.*config\.json", "wrong", {})], "config.json: its sha256", True,
    ),
    "a status that does not pass": ([(FILE, "status", {"status": 418})], "418", False),
    "a token that the hub refuses": (
        [(INFO, "status", {"status": 401, "headers": INVALID})], "", False,
    ),
    # Of these the client has what came before.
    "reset in mid-file": ([(BYTES, "reset", {"after": 3000})], None, True),
    "body cut off": ([(BYTES, "truncate", {"after": 5000})], None, True),
    "a server that stops": ([(BYTES, "stall", {"after": 3000, "seconds": 1.5})], None, True),
    "everything at once": (
        [(INFO, "reset", {"after": 100}), (INFO, "status", {"status": 429}),
         (FILE, "status", {"status": 503}), (BYTES, "reset", {"after": 2000}),
         (BYTES, "truncate", {"after": 1000}), (BYTES, "wrong", {})], None, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_passes_ends_equal_and_what_lasts_stops_with_the_revision(hub, pauses, tmp_path, name):
    faults, said, worth = FAULTS[name]
    for form, revision in BRANCHES.items():
        folder = tmp_path / form
        met = [hub.fault(path, kind, **how) for path, kind, how in faults if worth]
        download_checkpoint(REPO, revision, folder)
        assert all(f.met for f in met)
        assert_whole(folder, revision)
        if said is None:
            continue
        shutil.rmtree(folder)
        pauses.clear()
        path, kind, how = faults[-1]
        hub.fault(path, kind, times=None, **how)
        with pytest.raises(HubError) as caught:
            download_checkpoint(REPO, revision, folder)
        assert not isinstance(caught.value, RevisionMissing), "it is there, only not to be had now"
        message = str(caught.value)
        assert message.startswith(f"tiny/neox at {revision}: ") and "\n" not in message
        assert said in message and bool(pauses) == worth
        assert not [*folder.glob("*")], "nothing that could be taken for whole"
        hub.clear()
        download_checkpoint(REPO, revision, folder)
        assert_whole(folder, revision)


def test_a_file_that_is_wrong_on_the_hub_is_downloaded_twice_and_no_more(hub, pauses, tmp_path):
    """A wrong digest is not a fault of the network."""
    hub.fault(BYTES, "wrong", times=None)
    with pytest.raises(HubError, match="model.safetensors: its sha256"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert len(hub.asked(BYTES)) == 2 and pauses == [1]


def test_what_is_busy_is_asked_later_each_time_and_no_sooner_than_it_says(
    hub, pauses, tmp_path, monkeypatch
):
    for path, headers, least in (
        (INFO, {"Retry-After": "37"}, 37), (FILE, {"RateLimit": '"api";r=0;t=55'}, 55),
        (BYTES, {"Retry-After": "37"}, 37), (BYTES, {}, 1),
    ):  # fmt: skip
        pauses.clear()
        hub.fault(path, "status", status=429, headers=headers, times=2)
        download_checkpoint(REPO, "step0", tmp_path / "c")
        assert least <= max(pauses) <= max(2, least + 1)
    pauses.clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_module, "ATTEMPTS", 8)
    with pytest.raises(HubError, match="tiny/neox at step0: .*Connection refused"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert pauses == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("form", BRANCHES)
def test_a_kill_leaves_nothing_that_is_taken_for_whole_weights(hub, tmp_path, form, monkeypatch):
    """A kill at each of the renames in turn, until there is none left to be killed at."""
    replace, weights = os.replace, tmp_path / "c/model.safetensors"

    def replace_or_die(source, target):
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left.pop()
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_or_die)
    for number in itertools.count():
        left = [None] * number
        if not in_child(lambda: download_checkpoint(REPO, BRANCHES[form], tmp_path / "c")):
            break
        assert not weights.exists() or load_file(weights)
    assert number > 1
    assert_whole(tmp_path / "c", BRANCHES[form])


def test_a_full_disk_stops_with_the_revision(hub, pauses, tmp_path):
    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        with pytest.raises(HubError) as caught:
            download_checkpoint(REPO, "step0", tmp_path / "c")
        (tmp_path / "said").write_text(f"{pauses} {caught.value}")

    assert not in_child(fill)
    said = (tmp_path / "said").read_text()
    assert said.startswith("[] tiny/neox at step0: ") and "[Errno 27]" in said
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert_whole(tmp_path / "c", "step0")


def test_branches_are_listed_with_their_commits_in_spite_of_faults(hub):
    hub.fault("/refs", "status", status=503, times=2)
    hub.fault("/refs", "reset", after=20)
    branches = list_branches(REPO)
    assert len(branches) == 13 and branches["step100"] == hub.commit(REPO, "step100")


# The user's cache, token and environment


def test_the_users_cache_is_used_and_offline_it_is_enough_unless_it_is_damaged(
    hub, pauses, tmp_path, monkeypatch, caplog
):
    """The hub's library keeps a damaged file and returns it without a check."""
    for revision in ("step0", "step1"):
        snapshot_download(REPO, revision=revision)
    hub.requests.clear()
    expected = {r: download_checkpoint(REPO, r, tmp_path / r) for r in ("step0", "step1")}
    assert [r.path for r in hub.requests] == [
        f"/api/models/tiny/neox/revision/{r}?blobs=true" for r in expected
    ]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    for revision, origin in expected.items():
        assert download_checkpoint(REPO, revision, tmp_path / f"o-{revision}") == origin
        assert_whole(tmp_path / f"o-{revision}", revision)
    with pytest.raises(HubError, match="at main: HF_HUB_OFFLINE is set and .*my models"):
        find_revision(REPO, "main")
    cached = Path(hf_hub_download(REPO, "model.safetensors", revision="step0")).resolve()
    cached.write_bytes(cached.read_bytes()[:-1] + b"?")
    with pytest.raises(HubError, match="step0: HF_HUB_OFFLINE is set .* model.safetensors whole"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    with pytest.raises(HubError, match="offline mode"):
        list_branches(REPO)
    assert not (tmp_path / "c/model.safetensors").exists() and hub.requests == pauses == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert_whole(tmp_path / "c", "step0")
    assert "in the cache is damaged" in caplog.text


def test_a_gated_repository_says_what_it_needs(hub, tmp_path, monkeypatch):
    for token in ("", "hf_wrong"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubError, match="is gated; .* set HF_TOKEN") as caught:
            download_checkpoint(GATED, "main", tmp_path / "c")
        assert "\n" not in str(caught.value) and not isinstance(caught.value, RevisionMissing)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.requests.clear()
    download_checkpoint(GATED, "main", tmp_path / "c")
    sent = {r.path.startswith("/lfs/"): r.authorization for r in hub.requests}
    assert sent == {False: f"Bearer {TOKEN}", True: None}, "the token stays with the hub"


def test_the_variables_of_the_hub_mean_what_they_mean_elsewhere(hub, tmp_path):
    """A cache that the hub's own program filled serves without a network."""
    home = tmp_path / "cache of tiny/gated"
    hf = shutil.which("hf", path=str(Path(sys.executable).parent))
    fetch = [sys.executable, "-c", FETCH, GATED, "main", str(tmp_path / "a")]
    online = hub.environment(home, HF_TOKEN=TOKEN)
    for command, environment in (
        (fetch, online), ([hf, "download", GATED], online),
        (fetch, hub.environment(home, HF_HUB_OFFLINE="1")),
    ):  # fmt: skip
        hub.requests.clear()
        environment["PYTHONPATH"] = str(ROOT / "workflow_scripts")
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
        if command == fetch:
            assert_whole(tmp_path / "a", "step400")
            shutil.rmtree(tmp_path / "a")
    assert hub.requests == []


def test_the_tokenizer_is_copied_from_its_commit(hub, tmp_path):
    commit = download_tokenizer(REPO, "main", tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == TOKENIZER
    assert commit == hub.commit(REPO, "main")
    assert hub.asked("/resolve/")[0].path.split("/")[4] == commit
    with pytest.raises(RevisionMissing, match="tiny/neox at step0: it holds no tokenizer.json"):
        download_tokenizer(REPO, "step0", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
