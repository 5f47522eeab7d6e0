"""Checkpoints and tokenizers of a hub, over HTTP from a tiny one: every form, every fault.

Under every fault a checkpoint ends whole and equal, or the job stops and names the revision.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import tenacity
import torch
from huggingface_hub import constants, hf_hub_download, snapshot_download
from safetensors.torch import load_file

from flatminima import hub as hub_module
from flatminima.downloads import download_checkpoint
from flatminima.hub import (
    HubError,
    RevisionMissing,
    download_tokenizer,
    find_revision,
    list_branches,
)
from tests.hub.libraries import point_at
from tests.hub.repos import (
    FORMS,
    STEPS,
    as_pickle,
    as_safetensors,
    branch_name,
    config_bytes,
    model_branches,
    model_files,
    model_tensors,
)
from tests.hub.server import TinyHub
from tests.workflow import ROOT

REPO, GATED, TOKEN = "tiny/neox", "tiny/gated", "hf_test"
TOKENIZER = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'
WHOLE = {"model.safetensors", "config.json"}
BRANCHES = {"safetensors": "step0", "bin": "step1", "shards": "step4", "bin_shards": "step8"}
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
    "no-config": ({"config.json": None, "model.safetensors": b"x"}, "it holds no config.json"),
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
    main = {"config.json": config_bytes(), "model.safetensors": as_safetensors(model_tensors(400))}
    odd = {
        name: {n: d for n, d in ({"config.json": config_bytes()} | files).items() if d is not None}
        for name, (files, _) in BROKEN.items()
    }
    models = {
        REPO: model_branches() | {"main": main | {"tokenizer.json": TOKENIZER}},
        GATED: {"main": main},
        "tiny/odd": odd,
    }
    with TinyHub(models, gated=(GATED,), token=TOKEN) as hub:
        yield hub


@pytest.fixture
def pauses(monkeypatch):
    """What was waited, by us and by the hub's own client; it takes no time."""
    found = []
    fake = SimpleNamespace(sleep=found.append)
    monkeypatch.setattr(tenacity.nap, "time", fake)
    monkeypatch.setattr(huggingface_hub.utils._http, "time", fake)
    monkeypatch.setattr(huggingface_hub.file_download, "time", fake)
    monkeypatch.setattr(hub_module, "ATTEMPTS", 4)
    return found


@pytest.fixture
def hub(server, monkeypatch, tmp_path, pauses):
    server.faults.clear()
    server.requests.clear()
    # A folder whose name a careless join would read as the repository.
    point_at(monkeypatch, server, tmp_path / "my models/tiny/neox")
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 5)
    return server


def digests(folder) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def faultless(server, tmp_path_factory):
    """What each form ends as without a fault."""
    home = tmp_path_factory.mktemp("faultless")
    server.faults.clear()
    with pytest.MonkeyPatch.context() as monkeypatch:
        point_at(monkeypatch, server, home / "home")
        for form, revision in BRANCHES.items():
            download_checkpoint(REPO, revision, home / form)
    return {form: digests(home / form) for form in BRANCHES}


# What is fetched


@pytest.mark.parametrize("form", NEEDED)
def test_every_form_of_a_branch_ends_as_the_same_two_files(hub, tmp_path, form):
    step = STEPS[FORMS.index(form)]
    origin = download_checkpoint(REPO, branch_name(step), tmp_path / "c")
    files = {n: d for n, d in model_files(step, form).items() if n in NEEDED[form]}
    files["config.json"] = config_bytes()
    assert origin == {
        "repo": REPO, "revision": branch_name(step), "commit": hub.commit(REPO, branch_name(step)),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "bytes": sum(map(len, files.values())),
    }  # fmt: skip
    found, expected = load_file(tmp_path / "c/model.safetensors"), model_tensors(step)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype and torch.equal(
            found[name], expected[name]
        )
    assert (tmp_path / "c/config.json").read_bytes() == config_bytes()
    # Only what is needed is asked for, at the commit, and nothing else is left behind.
    asked = {r.path.split("/resolve/")[1] for r in hub.asked("/resolve/")}
    assert asked == {f"{origin['commit']}/{name}" for name in files}
    assert digests(tmp_path / "c").keys() == WHOLE
    home = tmp_path / "my models"
    assert not home.exists() or not any(p.is_file() for p in home.rglob("*")), "no second copy"


def test_a_missing_branch_is_asked_for_once_and_nothing_is_written(hub, pauses, tmp_path):
    with pytest.raises(RevisionMissing) as caught:
        download_checkpoint(REPO, "step3", tmp_path / "c")
    assert str(caught.value) == "tiny/neox at step3: the hub has no such revision"
    assert caught.value.reason == "the hub has no such revision"
    assert not (tmp_path / "c").exists() and len(hub.requests) == 1 and pauses == []
    with pytest.raises(HubError, match="tiny/none at step0: .* has no such repository") as caught:
        download_checkpoint("tiny/none", "step0", tmp_path / "c")
    assert not isinstance(caught.value, RevisionMissing)


def test_a_revision_that_ignores_its_branch_shows_by_its_hashes(hub, tmp_path):
    """Commit and hashes agree with one another; only the comparison with main tells."""
    hub.faults.ignore_branch(REPO, "step0")
    early = download_checkpoint(REPO, "step0", tmp_path / "a")
    final = download_checkpoint(REPO, "main", tmp_path / "b")
    assert early.pop("revision") == "step0" and final.pop("revision") == "main"
    assert early == final


@pytest.mark.parametrize("branch", BROKEN)
def test_what_cannot_be_loaded_is_named_and_not_run(hub, pauses, tmp_path, branch):
    kind = RevisionMissing if branch in [*BROKEN][:3] else HubError
    with pytest.raises(kind) as caught:
        download_checkpoint("tiny/odd", branch, tmp_path / "c")
    line = str(caught.value)
    assert type(caught.value) is kind and "\n" not in line and pauses == []
    assert line.startswith(f"tiny/odd at {branch}: ") and BROKEN[branch][1] in line
    assert not (tmp_path / "c").exists() or not list((tmp_path / "c").iterdir())


# Faults

INFO = r"^/api/models/tiny/neox/revision/"
FILE = r"/resolve/[^/]+/(model-00002|model\.safetensors$|pytorch_model)"
BYTES = r"^/lfs/.*(safetensors|bin)/"
PASSING = {
    "429 for the list of files": [(INFO, "status", {"status": 429, "times": 2})],
    "503 for a file": [(FILE, "status", {"status": 503, "times": 9})],
    "503 of the storage": [(BYTES, "status", {"status": 503, "times": 3})],
    "half a list of files": [(INFO, "short", {"after": 100})],
    "reset before the first byte": [(BYTES, "reset", {"times": 3})],
    "reset in mid-file": [(BYTES, "reset", {"after": 3000, "times": 3})],
    "body cut off": [(BYTES, "truncate", {"after": 5000, "times": 3})],
    "body cut off and its length fits": [(BYTES, "short", {"after": 5000})],
    "wrong bytes": [(BYTES, "wrong", {})],
    "wrong bytes in the configuration": [(r"/resolve/.*config\.json", "wrong", {"method": "GET"})],
    "another range than was asked for": [
        (BYTES, "truncate", {"after": 3000}), (BYTES, "wrong_range", {}),
    ],
    "a server that stops in mid-file": [(BYTES, "stall", {"after": 3000, "seconds": 1.5})],
    "everything at once": [
        (INFO, "reset", {"after": 100}), (INFO, "status", {"status": 429}),
        (FILE, "status", {"status": 503}), (BYTES, "reset", {"after": 2000}),
        (BYTES, "truncate", {"after": 1000}), (BYTES, "wrong", {}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_ends_equal_to_a_run_without_faults(
    hub, faultless, tmp_path, monkeypatch, fault
):
    if "stops in mid-file" in fault:
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    for form in ("safetensors", "bin_shards"):
        faults = [hub.faults.add(path, kind, **how) for path, kind, how in PASSING[fault]]
        download_checkpoint(REPO, BRANCHES[form], tmp_path / form)
        assert all(f.met for f in faults), "the fault took place"
        assert digests(tmp_path / form) == faultless[form]


LASTING = {  # how it is said, and whether it is worth another try
    "429": (INFO, "status", {"status": 429}, "429", True),
    "503 for a file": (FILE, "status", {"status": 503}, "503", True),
    "reset before the first byte": (BYTES, "reset", {}, "", True),
    "cut off for good": (BYTES, "short", {"after": 5000}, "the body is cut off", True),
    "no more bytes": (BYTES, "status", {"status": 416}, "the body is cut off", True),
    "wrong bytes": (BYTES, "wrong", {}, "came twice with other bytes", False),
    "no JSON": (INFO, "short", {"after": 50}, "no JSON", True),
    "a fault that does not pass": (FILE, "status", {"status": 418}, "418", False),
    "a token that the hub refuses": (INFO, "status", {"status": 401, "headers": {
        "X-Error-Message": "Invalid credentials in Authorization header"}}, "", False),
}  # fmt: skip


@pytest.mark.parametrize("fault", LASTING)
def test_what_lasts_stops_with_the_revision_and_a_rerun_ends_equal(
    hub, pauses, faultless, tmp_path, fault
):
    path, kind, how, said, again = LASTING[fault]
    hub.faults.add(path, kind, times=None, **how)
    for form in ("safetensors", "bin_shards"):
        with pytest.raises(HubError) as caught:
            download_checkpoint(REPO, BRANCHES[form], tmp_path / form)
        assert not isinstance(caught.value, RevisionMissing), "it is there, only not to be had now"
        message = str(caught.value)
        assert message.startswith(f"tiny/neox at {BRANCHES[form]}: ") and "\n" not in message
        assert said in message and bool(pauses) == again
        assert not list((tmp_path / form).glob("*")), "nothing that could be taken for whole"
    hub.faults.clear()
    for form in ("safetensors", "bin_shards"):
        download_checkpoint(REPO, BRANCHES[form], tmp_path / form)
        assert digests(tmp_path / form) == faultless[form]


def test_a_connection_that_is_refused_is_tried_for_longer_each_time(
    hub, pauses, tmp_path, monkeypatch
):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_module, "ATTEMPTS", 8)
    with pytest.raises(HubError, match="tiny/neox at step0: .*Connection refused"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert pauses == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize(
    ("path", "headers", "least"),
    [(INFO, {"Retry-After": "37"}, 37), (FILE, {"RateLimit": '"api";r=0;t=55'}, 55),
     (BYTES, {"Retry-After": "37"}, 37), (BYTES, {}, 1)],
)  # fmt: skip
def test_the_wait_that_the_server_asks_for_is_kept(hub, pauses, tmp_path, path, headers, least):
    hub.faults.add(path, "status", status=429, headers=headers, times=2)
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert least <= max(pauses) <= max(2, least + 1)


def test_a_branch_that_moves_between_two_tries_is_not_mixed(hub, monkeypatch, tmp_path):
    branches = {"main": dict(hub.repositories["model", REPO].branches["step0"])}
    with TinyHub({"tiny/moving": branches}) as moving:
        point_at(monkeypatch, moving, tmp_path / "home")
        moving.faults.add(BYTES, "reset", after=3000, times=1)
        moving.faults.add(BYTES, "status", status=418)
        with pytest.raises(HubError):
            download_checkpoint("tiny/moving", "main", tmp_path / "c")
        before = moving.commit("tiny/moving", "main")
        newer = {"model.safetensors": as_safetensors(model_tensors(300)),
                 "config.json": config_bytes()}  # fmt: skip
        moving.push("tiny/moving", "main", newer)
        origin = download_checkpoint("tiny/moving", "main", tmp_path / "c")
        assert origin["commit"] == moving.commit("tiny/moving", "main") != before
        assert (tmp_path / "c/model.safetensors").read_bytes() == newer["model.safetensors"]


def killed_at_rename(number: int, action) -> bool:
    """Run ``action`` in a child that kills itself at that rename; whether it got so far."""
    child = os.fork()
    if child == 0:
        left, replace = iter(range(number - 1, -1, -1)), os.replace

        def replace_or_die(source, target):
            if next(left, None) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = replace_or_die
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", BRANCHES)
def test_a_kill_leaves_nothing_that_is_taken_for_whole_weights(hub, faultless, tmp_path, form):
    number = 1
    while killed_at_rename(
        number, lambda: download_checkpoint(REPO, BRANCHES[form], tmp_path / "c")
    ):
        weights = tmp_path / "c/model.safetensors"
        assert not weights.exists() or load_file(weights)
        number += 1
    assert number > 2 and digests(tmp_path / "c") == faultless[form]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_full_disk_stops_with_the_revision(hub, pauses, faultless, tmp_path):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            download_checkpoint(REPO, "step0", tmp_path / "c")
        except HubError as error:
            (tmp_path / "said").write_text(f"{pauses} {error}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = (tmp_path / "said").read_text()
    assert said.startswith("[] tiny/neox at step0: ") and "[Errno 27]" in said
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert digests(tmp_path / "c") == faultless["safetensors"]


def test_branches_are_listed_with_their_commits_in_spite_of_faults(hub):
    hub.faults.add("/refs", "status", status=503, times=2)
    hub.faults.add("/refs", "reset", after=20)
    branches = list_branches(REPO)
    assert len(branches) == 13 and branches["step100"] == hub.commit(REPO, "step100")
    hub.faults.add("/refs", "status", status=503, times=None)
    with pytest.raises(HubError, match="tiny/neox at its list of branches: the hub answers 503"):
        list_branches(REPO)


# The user's cache, token and environment


def test_files_of_the_users_cache_are_not_fetched_again_unless_they_are_damaged(
    hub, tmp_path, capsys
):
    """The hub's library keeps a damaged file and returns it without a check."""
    snapshot_download(REPO, revision="step0")
    hub.requests.clear()
    origin = download_checkpoint(REPO, "step0", tmp_path / "c")
    assert [r.path for r in hub.requests] == ["/api/models/tiny/neox/revision/step0?blobs=true"]
    whole = (tmp_path / "c/model.safetensors").read_bytes()
    assert whole == as_safetensors(model_tensors(0))
    cached = Path(hf_hub_download(REPO, "model.safetensors", revision=origin["commit"]))
    cached.resolve().write_bytes(bytes(len(whole)))
    download_checkpoint(REPO, "step0", tmp_path / "c")
    assert (tmp_path / "c/model.safetensors").read_bytes() == whole
    assert "in the cache is damaged" in capsys.readouterr().err


def test_offline_the_cache_is_enough_and_nothing_is_asked(hub, tmp_path, monkeypatch):
    for revision in ("step0", "step1"):
        snapshot_download(REPO, revision=revision)
    expected = {r: download_checkpoint(REPO, r, tmp_path / r) for r in ("step0", "step1")}
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in ("step0", "step1"):
        assert download_checkpoint(REPO, revision, tmp_path / f"o-{revision}") == expected[revision]
        assert digests(tmp_path / f"o-{revision}") == digests(tmp_path / revision)
    with pytest.raises(HubError, match="at main: HF_HUB_OFFLINE is set and .*my models"):
        find_revision(REPO, "main")
    cached = Path(snapshot_download(REPO, revision="step0", local_files_only=True))
    weights = (cached / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(HubError, match="step0: HF_HUB_OFFLINE is set .* model.safetensors whole"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert not (tmp_path / "c/model.safetensors").exists() and hub.requests == []


def test_a_gated_repository_says_what_it_needs(hub, tmp_path, monkeypatch):
    for token in (None, "hf_wrong"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(HubError, match="is gated; .* set HF_TOKEN") as caught:
            download_checkpoint(GATED, "main", tmp_path / "c")
        assert "\n" not in str(caught.value) and not isinstance(caught.value, RevisionMissing)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.requests.clear()
    download_checkpoint(GATED, "main", tmp_path / "c")
    sent = {r.origin: r.authorization for r in hub.requests}
    assert sent == {"hub": f"Bearer {TOKEN}", "storage": None}, "the token stays with the hub"


FETCH = """
import json, sys
from flatminima.downloads import download_checkpoint
print(json.dumps(download_checkpoint(*sys.argv[1:])))
"""


def fetch_in_a_process(folder: Path, environment: dict) -> dict:
    environment = environment | {"PYTHONPATH": str(ROOT / "workflow_scripts")}
    run = subprocess.run(
        [sys.executable, "-c", FETCH, GATED, "main", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_variables_of_the_hub_mean_what_they_mean_elsewhere(hub, tmp_path):
    home = tmp_path / "cache of tiny/gated"
    online = hub.environment(home, HF_TOKEN=TOKEN)
    first = fetch_in_a_process(tmp_path / "a", online)
    assert first["commit"] == hub.commit(GATED, "main")
    assert {r.authorization for r in hub.asked(GATED) if r.origin == "hub"} == {f"Bearer {TOKEN}"}
    # A cache that the hub's own program filled serves without a network.
    download = [shutil.which("hf", path=str(Path(sys.executable).parent)), "download", GATED]
    subprocess.run(download, env=online, check=True, capture_output=True, timeout=300)
    hub.requests.clear()
    offline = hub.environment(home, HF_HUB_OFFLINE="1")
    assert fetch_in_a_process(tmp_path / "b", offline)["files"] == first["files"]
    assert hub.requests == []


def test_the_tokenizer_is_copied_from_its_commit(hub, tmp_path):
    commit = download_tokenizer(REPO, "main", tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == TOKENIZER
    assert commit == hub.commit(REPO, "main")
    assert hub.asked("/resolve/")[0].path.split("/")[4] == commit
    with pytest.raises(RevisionMissing, match="tiny/neox at step0: it holds no tokenizer.json"):
        download_tokenizer(REPO, "step0", tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
