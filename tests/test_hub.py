"""Checkpoints and tokenizers from a tiny hub over HTTP: every format of weights, every fault.

With every fault a checkpoint is complete and correct, or the job stops and names the revision.
"""

import hashlib
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

REPO = "tiny/neox"
GATED = "tiny/gated"
TOKEN = "hf_test"
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


class HarmfulObject:
    """Unpickling this object runs code."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code in a pickle was run')",))


INDEX = b'{"weight_map": {"a": "x.bin", "b": "x.bin"}}'
PART = {"a": torch.ones(2)}
# Files of a branch, in addition to its configuration, and a part of the error.
BROKEN = {
    "nothing": ({}, "it has no weights"),
    "no-config": ({"model.safetensors": b"x"}, "it has no config.json"),
    "no-shard": ({"pytorch_model.bin.index.json": INDEX}, "it has no x.bin"),
    "code": (
        {"pytorch_model.bin": as_pickle({"w": HarmfulObject()})},
        "pytorch_model.bin is a pickle",
    ),
    "step": ({"pytorch_model.bin": as_pickle({"step": 3})}, "other objects than named tensors"),
    "pointer": ({"pytorch_model.bin": b"version https://git-lfs"}, "pytorch_model.bin "),
    "page": ({"model.safetensors": b"<html>"}, "model.safetensors is incomplete"),
    "index": ({"model.safetensors.index.json": b"{"}, "this index of shards cannot be read"),
    "lacking": (
        {"pytorch_model.bin.index.json": INDEX, "x.bin": as_pickle(PART)},
        "its shards lack 1 weights, such as b",
    ),
}
# The hub lacks something for these; the others have wrong files.
INCOMPLETE = ("nothing", "no-config", "no-shard")


@pytest.fixture(scope="module")
def server():
    broken = {name: {"config.json": config_bytes()} | files for name, (files, _) in BROKEN.items()}
    del broken["no-config"]["config.json"]
    branches = model_branches()
    branches["main"] = branches["main"] | {"tokenizer.json": TOKENIZER}
    models = {REPO: branches, GATED: {"main": model_files(400)}, "tiny/odd": broken}
    with TinyHub(models, gated=(GATED,), token=TOKEN) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path, pauses):
    server.clear()
    # A folder whose name looks like the repository.
    point_at(monkeypatch, server, tmp_path / "my models/tiny/neox")
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    return server


def assert_complete(folder: Path, revision: str) -> None:
    """The folder has the two files of a revision, with the correct weights, and no others."""
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "config.json").read_bytes() == config_bytes()
    tensors = load_file(folder / "model.safetensors")
    expected = model_tensors(int(revision.removeprefix("step")))
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


# Downloads


@pytest.mark.parametrize("form", NEEDED)
def test_every_format_of_weights_becomes_the_same_two_files(hub, tmp_path, form):
    step = STEPS[FORMS.index(form)]
    branch = f"step{step}"
    origin = download_checkpoint(REPO, branch, tmp_path / "c")
    files = {
        name: content
        for name, content in model_files(step, form).items()
        if name in NEEDED[form] | {"config.json"}
    }
    assert origin == {
        "repo": REPO,
        "revision": branch,
        "commit": hub.commit(REPO, branch),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "bytes": sum(map(len, files.values())),
    }
    assert_complete(tmp_path / "c", branch)
    # Only needed files are requested, by the commit, and no second copy is kept.
    requested = {request.path.split("/resolve/")[1] for request in hub.asked("/resolve/")}
    assert requested == {f"{origin['commit']}/{name}" for name in files}
    assert not any(path.is_file() for path in (tmp_path / "my models").rglob("*"))


def test_missing_or_broken_files_are_refused_at_once_and_not_run(hub, pauses, tmp_path):
    reasons = {("tiny/odd", branch): reason for branch, (_, reason) in BROKEN.items()}
    reasons[REPO, "step3"] = "no such revision"
    reasons["tiny/none", "step0"] = "no such repository"
    missing = {("tiny/odd", name) for name in INCOMPLETE} | {(REPO, "step3")}
    for (repo, branch), reason in reasons.items():
        with pytest.raises(HubError) as caught:
            download_checkpoint(repo, branch, tmp_path / "c")
        message = str(caught.value)
        assert message.startswith(f"{repo} at {branch}: ")
        assert reason in message
        assert "\n" not in message
        assert pauses == []
        assert list((tmp_path / "c").glob("*")) == []
        assert isinstance(caught.value, RevisionMissing) == ((repo, branch) in missing)
        if (repo, branch) in missing:
            assert caught.value.reason == message.removeprefix(f"{repo} at {branch}: ")


# Faults

INFO = r"^/api/models/tiny/neox/revision/"
FILE = r"/resolve/[^/]+/(model-00002|model\.safetensors$|pytorch_model)"
BYTES = r"^/lfs/.*(safetensors|bin)/"
INVALID = {"X-Error-Message": "Invalid credentials in Authorization header"}
# Faults; a part of the error if the last fault does not pass, or None if downloads continue; and
# whether requests are repeated.
FAULTS = {
    "429 for the list of files": ([(INFO, "status", {"status": 429})], "429", True),
    "half a list of files": ([(INFO, "short", {"after": 100})], "", True),
    "reset in a list of files": ([(INFO, "reset", {"after": 100})], "", True),
    "503 for a file": ([(FILE, "status", {"status": 503})], "503", True),
    "503 of the storage": ([(BYTES, "status", {"status": 503})], "503", True),
    "no more bytes": ([(BYTES, "status", {"status": 416})], "416", True),
    "reset before the first byte": ([(BYTES, "reset", {})], "", True),
    "body cut off and its length fits": ([(BYTES, "short", {"after": 5000})], "has size", True),
    "wrong bytes": ([(BYTES, "wrong", {})], "hash", True),
    "wrong bytes in the configuration": (
        [(r"/resolve/.*config\.json", "wrong", {})], "config.json: its hash", True,
    ),
    "a status that does not pass": ([(FILE, "status", {"status": 418})], "418", False),
    "a token that the hub refuses": (
        [(INFO, "status", {"status": 401, "headers": INVALID})], "", False,
    ),
    # After these the client continues with the bytes that it has.
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
def test_a_fault_that_passes_changes_nothing_and_one_that_lasts_names_the_revision(
    hub, pauses, tmp_path, name
):
    faults, reason, is_repeated = FAULTS[name]
    for form, revision in BRANCHES.items():
        folder = tmp_path / form
        passing_faults = []
        if is_repeated:
            passing_faults = [hub.fault(path, kind, **details) for path, kind, details in faults]
        download_checkpoint(REPO, revision, folder)
        assert all(fault.met for fault in passing_faults)
        assert_complete(folder, revision)
        if reason is None:
            continue

        shutil.rmtree(folder)
        pauses.clear()
        path, kind, details = faults[-1]
        hub.fault(path, kind, times=None, **details)
        with pytest.raises(HubError) as caught:
            download_checkpoint(REPO, revision, folder)
        assert not isinstance(caught.value, RevisionMissing), "it exists, but is not available now"
        message = str(caught.value)
        assert message.startswith(f"tiny/neox at {revision}: ")
        assert reason in message
        assert "\n" not in message
        assert bool(pauses) == is_repeated
        assert list(folder.glob("*")) == [], "no file looks complete"

        hub.clear()
        download_checkpoint(REPO, revision, folder)
        assert_complete(folder, revision)


def test_a_wrong_file_on_the_hub_is_downloaded_only_twice(hub, pauses, tmp_path):
    """A wrong digest is not a fault of the network."""
    hub.fault(BYTES, "wrong", times=None)
    with pytest.raises(HubError, match="model.safetensors: its hash"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert len(hub.asked(BYTES)) == 2 and pauses == [1]


def test_pauses_grow_and_are_as_long_as_a_busy_hub_demands(hub, pauses, tmp_path, monkeypatch):
    for path, headers, shortest in (
        (INFO, {"Retry-After": "37"}, 37),
        (FILE, {"RateLimit": '"api";r=0;t=55'}, 55),
        (BYTES, {"Retry-After": "37"}, 37),
        (BYTES, {}, 1),
    ):
        pauses.clear()
        hub.fault(path, "status", status=429, headers=headers, times=2)
        download_checkpoint(REPO, "step0", tmp_path / "c")
        assert shortest <= max(pauses) <= max(2, shortest + 1)
    pauses.clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_module, "ATTEMPTS", 8)
    with pytest.raises(HubError, match="tiny/neox at step0: .*Connection refused"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert pauses == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("form", BRANCHES)
def test_a_kill_leaves_no_incomplete_weights(hub, tmp_path, form, monkeypatch):
    """A kill at each rename in turn, until a download has no further rename."""
    replace = os.replace
    weights = tmp_path / "c/model.safetensors"
    renames_before_kill = 0
    renames_done = 0

    def replace_or_die(source, target):
        nonlocal renames_done
        if renames_done == renames_before_kill:
            os.kill(os.getpid(), signal.SIGKILL)
        renames_done += 1
        replace(source, target)

    def download() -> None:
        download_checkpoint(REPO, BRANCHES[form], tmp_path / "c")

    monkeypatch.setattr(os, "replace", replace_or_die)
    while in_child(download):  # each child counts its renames from 0
        assert not weights.exists() or load_file(weights)
        renames_before_kill += 1
    assert renames_before_kill > 1
    assert_complete(tmp_path / "c", BRANCHES[form])


def test_a_full_disk_stops_with_the_revision(hub, pauses, tmp_path):
    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        with pytest.raises(HubError) as caught:
            download_checkpoint(REPO, "step0", tmp_path / "c")
        (tmp_path / "message").write_text(f"{pauses} {caught.value}")

    assert not in_child(fill)
    message = (tmp_path / "message").read_text()
    assert message.startswith("[] tiny/neox at step0: ")
    assert "[Errno 27]" in message
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert_complete(tmp_path / "c", "step0")


def test_branches_are_listed_with_their_commits_despite_faults(hub):
    hub.fault("/refs", "status", status=503, times=2)
    hub.fault("/refs", "reset", after=20)
    branches = list_branches(REPO)
    assert len(branches) == 13 and branches["step100"] == hub.commit(REPO, "step100")


# The user's cache, token and environment


def test_the_users_cache_is_used_also_offline_unless_it_is_damaged(
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
        assert_complete(tmp_path / f"o-{revision}", revision)
    with pytest.raises(HubError, match="at main: HF_HUB_OFFLINE .*my models"):
        find_revision(REPO, "main")
    cached = Path(hf_hub_download(REPO, "model.safetensors", revision="step0")).resolve()
    cached.write_bytes(cached.read_bytes()[:-1] + b"?")
    with pytest.raises(HubError, match="step0: HF_HUB_OFFLINE .* model.safetensors"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    with pytest.raises(HubError, match="offline mode"):
        list_branches(REPO)
    assert not (tmp_path / "c/model.safetensors").exists() and hub.requests == pauses == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert_complete(tmp_path / "c", "step0")
    assert "in the cache is damaged" in caplog.text


def test_the_error_of_a_gated_repository_names_the_token(hub, tmp_path, monkeypatch):
    for token in ("", "hf_wrong"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubError, match="gated.*HF_TOKEN") as caught:
            download_checkpoint(GATED, "main", tmp_path / "c")
        assert "\n" not in str(caught.value) and not isinstance(caught.value, RevisionMissing)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.requests.clear()
    download_checkpoint(GATED, "main", tmp_path / "c")
    sent = {r.path.startswith("/lfs/"): r.authorization for r in hub.requests}
    assert sent == {False: f"Bearer {TOKEN}", True: None}, "the token stays with the hub"


def test_the_environment_variables_of_the_hub_work_as_usual(hub, tmp_path):
    """A cache that the program ``hf`` has filled is enough without a network."""
    home = tmp_path / "cache of tiny/gated"
    hf = shutil.which("hf", path=str(Path(sys.executable).parent))
    fetch = [sys.executable, "-c", FETCH, GATED, "main", str(tmp_path / "a")]
    online = hub.environment(home, HF_TOKEN=TOKEN)
    for command, environment in (
        (fetch, online),
        ([hf, "download", GATED], online),
        (fetch, hub.environment(home, HF_HUB_OFFLINE="1")),
    ):
        hub.requests.clear()
        environment["PYTHONPATH"] = str(ROOT / "workflow_scripts")
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
        if command == fetch:
            assert_complete(tmp_path / "a", "step400")
            shutil.rmtree(tmp_path / "a")
    assert hub.requests == []


def test_the_tokenizer_is_copied_from_its_commit(hub, tmp_path):
    commit = download_tokenizer(REPO, "main", tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == TOKENIZER
    assert commit == hub.commit(REPO, "main")
    assert hub.asked("/resolve/")[0].path.split("/")[4] == commit
    with pytest.raises(RevisionMissing, match="tiny/neox at step0: .* tokenizer.json"):
        download_tokenizer(REPO, "step0", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
