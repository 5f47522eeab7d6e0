"""Under every fault a checkpoint ends whole and equal, or the job stops and names the revision."""

import hashlib
import os
import resource
import signal
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from huggingface_hub import constants

from flatminima.hub import weights
from flatminima.hub.checkpoints import download_checkpoint
from flatminima.hub.errors import HubError, RevisionMissing
from flatminima.hub.retrying import Patience
from flatminima.hub.revisions import list_branches, resolve
from tests.hub.libraries import point_at
from tests.hub.repos import as_pickle, config_bytes, model_branches, model_tensors
from tests.hub.server import TinyHub

REPO = "tiny/neox"
FORMS = {"safetensors": "step0", "bin": "step1", "shards": "step4", "bin_shards": "step8"}
INFO = r"^/api/models/tiny/neox/revision/"
FILE = r"/resolve/[^/]+/(model-00002|model\.safetensors$|pytorch_model)"
BYTES = r"^/lfs/.*(safetensors|bin)/"


class Stranger:
    """A pickle of this runs code."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a stranger was run')",))


@pytest.fixture(scope="module")
def server():
    with TinyHub({REPO: model_branches()}) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    server.faults.clear()
    server.requests.clear()
    point_at(monkeypatch, server, tmp_path / "home")
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 5)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 5)
    return server


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def patience(pauses):
    """Four tries, and waiting that takes no time."""
    return Patience(attempts=4, sleep=pauses.append)


def digests(folder) -> dict[str, str]:
    names = ("model.safetensors", "config.json")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture(scope="module")
def faultless(server, tmp_path_factory):
    """What each form ends as without a fault."""
    home = tmp_path_factory.mktemp("faultless")
    server.faults.clear()
    made = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        point_at(monkeypatch, server, home / "home")
        for form, revision in FORMS.items():
            download_checkpoint(REPO, revision, home / form)
            made[form] = digests(home / form)
    return made


def in_future(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


PASSING = {
    "429 for the list of files": [(INFO, "status", {"status": 429, "times": 2})],
    "429 for a file": [(FILE, "status", {"status": 429, "times": 3})],
    "429 of the storage": [(BYTES, "status", {"status": 429, "times": 3})],
    "503 for the list of files": [(INFO, "status", {"status": 503, "times": 3})],
    "503 for a file": [(FILE, "status", {"status": 503, "times": 3})],
    "503 of the storage": [(BYTES, "status", {"status": 503, "times": 3})],
    "500, 502 and 504 in turn": [
        (FILE, "status", {"status": status}) for status in (500, 502, 504)
    ],
    "reset of the list of files": [(INFO, "reset", {"after": 100})],
    "half a list of files": [(INFO, "short", {"after": 100})],
    "reset before the first byte": [(BYTES, "reset", {"times": 3})],
    "reset in mid-file": [(BYTES, "reset", {"after": 3000})],
    "reset again and again": [(BYTES, "reset", {"after": 900, "times": 9})],
    "body cut off": [(BYTES, "truncate", {"after": 5000})],
    "body cut off and its length fits": [(BYTES, "short", {"after": 5000})],
    "wrong bytes": [(BYTES, "wrong", {})],
    "wrong bytes in the configuration": [(r"/resolve/.*config\.json", "wrong", {})],
    "half a configuration": [(r"/resolve/.*config\.json", "truncate", {"after": 10})],
    "another range than was asked for": [
        (BYTES, "reset", {"after": 3000}), (BYTES, "wrong_range", {}),
    ],
    "a server without ranges": [
        (BYTES, "reset", {"after": 3000}), (BYTES, "whole", {}),
    ],
    "a server that stops in mid-file": [(BYTES, "stall", {"after": 3000, "seconds": 1.5})],
    "a slow server": [(r".", "slow", {"seconds": 0.2, "times": None})],
    "everything at once": [
        (INFO, "status", {"status": 429}), (FILE, "status", {"status": 503}),
        (BYTES, "reset", {"after": 2000}), (BYTES, "truncate", {"after": 1000}),
        (BYTES, "wrong", {}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_ends_equal_to_a_run_without_faults(
    hub, patience, faultless, tmp_path, monkeypatch, fault, form
):
    if "stops in mid-file" in fault:
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    faults = [hub.faults.add(path, kind, **how) for path, kind, how in PASSING[fault]]
    download = download_checkpoint(REPO, FORMS[form], tmp_path / "c", patience)
    assert all(f.met for f in faults), "the fault took place"
    assert digests(tmp_path / "c") == faultless[form]
    assert download.commit == hub.commit(REPO, FORMS[form])
    assert not (tmp_path / "c/.download").exists()


LASTING = {
    "429": [(INFO, "status", {"status": 429})],
    "503 for a file": [(FILE, "status", {"status": 503})],
    "503 of the storage": [(BYTES, "status", {"status": 503})],
    "reset before the first byte": [(BYTES, "reset", {})],
    "body cut off before the first byte": [(BYTES, "truncate", {})],
    "wrong bytes": [(BYTES, "wrong", {})],
    "no JSON": [(INFO, "short", {"after": 50})],
    "a fault that does not pass": [(FILE, "status", {"status": 418})],
    "a token that the hub refuses": [(INFO, "status", {"status": 401, "headers": {
        "X-Error-Message": "Invalid credentials in Authorization header"}})],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", LASTING)
def test_what_lasts_stops_with_the_revision_and_a_rerun_ends_equal(
    hub, patience, pauses, faultless, tmp_path, fault, form
):
    for path, kind, how in LASTING[fault]:
        hub.faults.add(path, kind, times=None, **how)
    with pytest.raises(HubError) as caught:
        download_checkpoint(REPO, FORMS[form], tmp_path / "c", patience)
    assert not isinstance(caught.value, RevisionMissing), "it is there, only not to be had now"
    message = str(caught.value)
    assert message.startswith(f"tiny/neox at {FORMS[form]}: ") and "\n" not in message
    if fault == "wrong bytes":
        assert "came twice with other bytes" in message
        assert (".bin" if "bin" in form else ".safetensors") in message
    left = (
        {path.name for path in (tmp_path / "c").glob("*")} if (tmp_path / "c").exists() else set()
    )
    assert left <= {".download"}, "nothing that could be taken for whole"
    if fault in ("a fault that does not pass", "a token that the hub refuses"):
        assert pauses == [], "asked once"
    hub.faults.clear()
    download_checkpoint(REPO, FORMS[form], tmp_path / "c", patience)
    assert digests(tmp_path / "c") == faultless[form]


@pytest.mark.parametrize("form", FORMS)
def test_a_connection_that_is_refused_stops_with_the_revision(
    hub, patience, pauses, tmp_path, monkeypatch, form
):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=f"tiny/neox at {FORMS[form]}: ConnectError"):
        download_checkpoint(REPO, FORMS[form], tmp_path / "c", patience)
    assert pauses == [1, 2, 4], "longer each time"


def test_the_wait_grows_to_a_limit():
    patience = Patience(first=0.5, longest=6)
    assert [patience.pause(n) for n in range(1, 7)] == [0.5, 1, 2, 4, 6, 6]


@pytest.mark.parametrize("path", [INFO, FILE, BYTES])
@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "37"}, 37, 37),
        ({"Retry-After": "in a while"}, 1, 1),
        ({"RateLimit": '"api";r=0;t=55'}, 55, 55),
        ({"RateLimit": '"api";r=3;t=55'}, 1, 1),
        ({"Retry-After": "date"}, 80, 90),
        ({}, 1, 1),
    ],
)
def test_the_wait_that_the_server_asks_for_is_kept(
    hub, patience, pauses, tmp_path, path, headers, low, high
):
    headers = {k: in_future(90) if v == "date" else v for k, v in headers.items()}
    hub.faults.add(path, "status", status=429, headers=headers)
    download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    (pause,) = pauses
    assert low <= pause <= high


def test_waiting_really_takes_its_time(hub, tmp_path):
    hub.faults.add(INFO, "status", status=429, headers={"Retry-After": "1"})
    resolve(REPO, "step0")
    first, second = hub.asked(INFO)
    assert second.time - first.time >= 1


def test_a_broken_off_file_goes_on_where_it_stopped(hub, patience, tmp_path):
    hub.faults.add(BYTES, "reset", after=3000, times=2)
    download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    ranges = [r.range for r in hub.asked(BYTES)]
    assert ranges == [None, "bytes=3000-", "bytes=6000-"]


def test_another_process_goes_on_where_this_one_stopped(hub, patience, faultless, tmp_path):
    """The hub's own library would start again at the first byte."""
    hub.faults.add(BYTES, "reset", after=3000, times=2)
    hub.faults.add(BYTES, "status", status=503, times=3)
    with pytest.raises(HubError):
        download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    (part,) = (tmp_path / "c/.download").glob("model*.part")
    assert part.stat().st_size == 6000
    hub.requests.clear()
    download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    assert [r.range for r in hub.asked(BYTES)] == ["bytes=6000-"]
    assert digests(tmp_path / "c") == faultless["safetensors"]


def test_a_damaged_part_is_found_and_fetched_again(hub, patience, faultless, tmp_path):
    hub.faults.add(BYTES, "reset", after=3000)
    hub.faults.add(BYTES, "status", status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(RevisionMissing, match="step0: a file that it lists is not there"):
        download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    (part,) = (tmp_path / "c/.download").glob("model*.part")
    part.write_bytes(bytes(3000))  # as a power cut may leave it
    download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    assert digests(tmp_path / "c") == faultless["safetensors"]


def test_a_branch_that_moves_between_two_tries_is_not_mixed(hub, patience, tmp_path):
    """What an earlier commit left unfinished is no part of the new one."""
    branches = {"main": dict(hub.repositories["model", REPO].branches["step0"])}
    with TinyHub({"tiny/moving": branches}) as moving, pytest.MonkeyPatch.context() as patch:
        point_at(patch, moving, tmp_path / "home")
        moving.faults.add(BYTES, "reset", after=3000, times=1)
        moving.faults.add(BYTES, "status", status=418)
        with pytest.raises(HubError):
            download_checkpoint("tiny/moving", "main", tmp_path / "c", patience)
        before = moving.commit("tiny/moving", "main")
        newer = dict(hub.repositories["model", REPO].branches["step300"])
        newer = {"model.safetensors": as_new_weights(), "config.json": newer["config.json"]}
        moving.push("tiny/moving", "main", newer)
        download = download_checkpoint("tiny/moving", "main", tmp_path / "c", patience)
        assert download.commit == moving.commit("tiny/moving", "main") != before
        found = (tmp_path / "c/model.safetensors").read_bytes()
        assert found == newer["model.safetensors"]


def as_new_weights() -> bytes:
    from tests.hub.repos import as_safetensors

    return as_safetensors(model_tensors(300))


# What the hub does not have


def test_what_is_missing_is_said_with_its_reason(hub, patience, pauses, tmp_path):
    hub.faults.missing_branch(REPO, "step0")
    with pytest.raises(RevisionMissing) as caught:
        download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    assert caught.value.reason == "the hub has no such revision" and pauses == []
    with pytest.raises(RevisionMissing, match="tiny/neox at step0: the hub has no such revision"):
        resolve(REPO, "step0", patience)


def test_a_revision_that_ignores_its_branch_shows_by_its_hashes(hub, patience, tmp_path):
    """Commit and hashes agree with one another; only the comparison with main tells."""
    hub.faults.ignore_branch(REPO, "step0")
    early = download_checkpoint(REPO, "step0", tmp_path / "a", patience)
    final = download_checkpoint(REPO, "main", tmp_path / "b", patience)
    assert early.files == final.files and early.commit == final.commit
    assert early.revision == "step0"


BROKEN = {
    "no weights": ({"config.json": config_bytes()}, "it holds no weights"),
    "no configuration": ({"model.safetensors": b"x"}, "it holds no config.json"),
    "a shard is missing": (
        {"config.json": config_bytes(), "model.safetensors.index.json":
         b'{"weight_map": {"a": "model-00001-of-00001.safetensors"}}'},
        "model-00001-of-00001.safetensors is missing",
    ),
}  # fmt: skip
REFUSED = {
    "code in a pickle": ({"pytorch_model.bin": as_pickle({"w": Stranger()})},
                         "pytorch_model.bin is a pickle that holds more than tensors"),
    "something else in a pickle": ({"pytorch_model.bin": as_pickle({"step": 3})},
                                   "holds something other than named tensors"),
    "a list in a pickle": ({"pytorch_model.bin": as_pickle([1, 2])},
                           "holds something other than named tensors"),
    "no pickle": ({"pytorch_model.bin": b"version https://git-lfs.github.com/spec/v1"},
                  "pytorch_model.bin "),
    "no safetensors": ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1"},
                       "model.safetensors is no safetensors file"),
    "an index that cannot be read": ({"model.safetensors.index.json": b"{"},
                                     "the index of its shards cannot be read"),
    "an index that is not kept": (
        {"pytorch_model.bin.index.json": b'{"weight_map": {"a": "x.bin", "b": "x.bin"}}',
         "x.bin": as_pickle({"a": model_tensors(1)["embed_out.weight"]})},
        "its shards lack 1 weights, such as b"),
}  # fmt: skip


@pytest.fixture(scope="module")
def odd_server():
    branches = {name.replace(" ", "-"): files for name, (files, _) in BROKEN.items()}
    for name, (files, _) in REFUSED.items():
        branches[name.replace(" ", "-")] = {"config.json": config_bytes(), **files}
    with TinyHub({"tiny/odd": branches}) as hub:
        yield hub


@pytest.mark.parametrize("case", [*BROKEN, *REFUSED])
def test_what_cannot_be_loaded_is_named_and_not_run(
    odd_server, monkeypatch, patience, pauses, tmp_path, case
):
    point_at(monkeypatch, odd_server, tmp_path / "home")
    kind = RevisionMissing if case in BROKEN else HubError
    _, message = {**BROKEN, **REFUSED}[case]
    revision = case.replace(" ", "-")
    with pytest.raises(kind) as caught:
        download_checkpoint("tiny/odd", revision, tmp_path / "c", patience)
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"tiny/odd at {revision}: ") and message in str(
        caught.value
    )
    assert not (tmp_path / "c/model.safetensors").exists() and pauses == []
    assert not (tmp_path / "c/download.json").exists()


def test_a_repository_that_is_not_there_is_no_missing_revision(hub, patience, tmp_path):
    with pytest.raises(HubError, match="tiny/none at step0: .* has no such repository") as caught:
        download_checkpoint("tiny/none", "step0", tmp_path / "c", patience)
    assert not isinstance(caught.value, RevisionMissing)


# Kills


def killed_at(call: int, action) -> bool:
    """Run ``action`` in a child that kills itself at its ``call``-th rename; whether it did."""
    child = os.fork()
    if child == 0:
        count, replace = 0, os.replace

        def replace_or_die(source, target):
            nonlocal count
            count += 1
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = replace_or_die
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", FORMS)
def test_a_kill_at_any_step_leaves_nothing_that_is_taken_for_whole(
    hub, patience, faultless, tmp_path, form
):
    def fetch():
        return download_checkpoint(REPO, FORMS[form], tmp_path / "c", patience)

    call = 1
    while killed_at(call, fetch):
        assert not (tmp_path / "c/download.json").exists()
        call += 1
    assert call > 3
    hub.requests.clear()
    fetch()
    assert hub.requests == [] and digests(tmp_path / "c") == faultless[form]
    assert {p.name for p in (tmp_path / "c").iterdir()} == {
        "model.safetensors", "config.json", "download.json"
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kill_while_weights_are_written_costs_no_download(
    hub, patience, faultless, tmp_path, monkeypatch
):
    def half_written(tensors, path, metadata):
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        weights.save_file = half_written
        try:
            download_checkpoint(REPO, "step1", tmp_path / "c", patience)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert not (tmp_path / "c/model.safetensors").exists()
    hub.requests.clear()
    download_checkpoint(REPO, "step1", tmp_path / "c", patience)
    assert [r.path.split("?")[0] for r in hub.requests] == [
        "/api/models/tiny/neox/revision/step1"
    ], "only what the revision means is asked again"
    assert digests(tmp_path / "c") == faultless["bin"]
    assert not list((tmp_path / "c").glob(".*"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kill_in_mid_file_is_resumed(hub, patience, faultless, tmp_path):
    fault = hub.faults.add(BYTES, "stall", after=4000, seconds=60)
    child = os.fork()
    if child == 0:
        constants.HF_HUB_DOWNLOAD_TIMEOUT = 60
        try:
            download_checkpoint(REPO, "step0", tmp_path / "c", patience)
        finally:
            os._exit(0)
    parts, deadline = [], time.monotonic() + 30
    while not (parts and parts[0].stat().st_size == 4000) and time.monotonic() < deadline:
        parts = list((tmp_path / "c/.download").glob("model*.part"))
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert fault.met and not (tmp_path / "c/model.safetensors").exists()
    hub.requests.clear()
    download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    (request,) = hub.asked(BYTES)
    assert request.range == "bytes=4000-"
    assert digests(tmp_path / "c") == faultless["safetensors"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_full_disk_stops_with_the_revision(hub, patience, faultless, tmp_path):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            download_checkpoint(REPO, "step0", tmp_path / "c", patience)
        except HubError as error:
            (tmp_path / "said").write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text().startswith("tiny/neox at step0: [Errno 27]")
    assert not (tmp_path / "c/model.safetensors").exists()
    download_checkpoint(REPO, "step0", tmp_path / "c", patience)
    assert digests(tmp_path / "c") == faultless["safetensors"]


def test_branches_are_listed_with_their_commits_in_spite_of_faults(hub, patience):
    hub.faults.add("/refs", "status", status=503, times=2)
    hub.faults.add("/refs", "reset", after=20)
    branches = list_branches(REPO, patience)
    assert len(branches) == 13 and branches["step100"] == hub.commit(REPO, "step100")
    hub.faults.add("/refs", "status", status=503, times=None)
    with pytest.raises(HubError, match="tiny/neox at its list of branches: the hub answers 503"):
        list_branches(REPO, patience)
