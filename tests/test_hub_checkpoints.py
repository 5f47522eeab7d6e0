"""Checkpoints from the hub, over HTTP from a tiny one: every form a branch can have."""

import hashlib
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from snakemake.iocontainers import Namedlist

from flatminima.hub.checkpoints import download_checkpoint
from flatminima.hub.errors import RevisionMissing
from flatminima.hub.revisions import resolve
from flatminima.model import is_legacy_buffer, load_model
from tests.hub.libraries import point_at
from tests.hub.repos import (
    FORMS,
    STEPS,
    branch_name,
    config_bytes,
    model_branches,
    model_files,
    model_tensors,
)
from tests.hub.server import TinyHub
from tests.workflow import ROOT

REPO = "tiny/neox"
NEEDED = {
    "safetensors": {"model.safetensors"},
    "both": {"model.safetensors"},
    "bin": {"pytorch_model.bin"},
    "shards": {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    | {"model.safetensors.index.json"},
    "bin_shards": {f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)}
    | {"pytorch_model.bin.index.json"},
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def server():
    with TinyHub({REPO: model_branches()}) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    server.requests.clear()
    server.faults.clear()
    point_at(monkeypatch, server, tmp_path / "home")
    return server


def same_weights(path: Path, expected: dict) -> bool:
    found = load_file(path)
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype
        and torch.equal(found[name].view(torch.uint8), expected[name].view(torch.uint8))
        if found[name].dim()
        else found[name] == expected[name]
        for name in expected
    )


@pytest.mark.parametrize("form", NEEDED)
def test_every_form_of_a_branch_ends_as_the_same_two_files(hub, tmp_path, form):
    step = STEPS[FORMS.index(form)]
    download = download_checkpoint(REPO, branch_name(step), tmp_path / "c")
    assert download.revision == branch_name(step)
    assert download.commit == hub.commit(REPO, branch_name(step)) == resolve(REPO, f"step{step}")
    assert same_weights(tmp_path / "c/model.safetensors", model_tensors(step))
    files = {n: d for n, d in model_files(step, form).items() if n in NEEDED[form]}
    files["config.json"] = config_bytes()
    assert download.files == {name: sha256(data) for name, data in files.items()}
    assert download.bytes == sum(map(len, files.values()))
    assert (tmp_path / "c/config.json").read_bytes() == config_bytes()
    # Only what is needed is asked for, at the commit, and nothing else is left behind.
    asked = {r.path.split("/resolve/")[1] for r in hub.asked("/resolve/")}
    assert asked == {f"{download.commit}/{name}" for name in files}
    assert {p.name for p in (tmp_path / "c").iterdir()} == {
        "model.safetensors", "config.json", "download.json"
    }  # fmt: skip


def test_half_precision_weights_are_widened_when_they_are_loaded(hub, tmp_path):
    for step in (0, 1):
        download_checkpoint(REPO, branch_name(step), tmp_path / f"c{step}")
        before = len(hub.requests)
        model = load_model(tmp_path / f"c{step}")
        assert len(hub.requests) == before, "no conversion is asked for in the background"
        expected = {n: t for n, t in model_tensors(step).items() if not is_legacy_buffer(n)}
        state = model.state_dict()
        assert {t.dtype for t in state.values()} == {torch.float32}
        found = {n.replace("lm_head", "embed_out"): t for n, t in state.items()}
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name].float()) for name in expected)


def test_a_finished_folder_makes_no_request(hub, tmp_path):
    first = download_checkpoint(REPO, "step4", tmp_path / "c")
    hub.requests.clear()
    assert download_checkpoint(REPO, "step4", tmp_path / "c") == first
    assert hub.requests == []
    # It is not believed: a file that was changed since is fetched again.
    (tmp_path / "c/model.safetensors").write_bytes(b"other")
    assert download_checkpoint(REPO, "step4", tmp_path / "c") == first
    assert same_weights(tmp_path / "c/model.safetensors", model_tensors(4))
    # And another revision of the same folder is another checkpoint.
    assert download_checkpoint(REPO, "step2", tmp_path / "c").revision == "step2"
    assert same_weights(tmp_path / "c/model.safetensors", model_tensors(2))


def test_a_missing_branch_is_named_and_nothing_is_written(hub, tmp_path):
    with pytest.raises(RevisionMissing) as caught:
        download_checkpoint(REPO, "step3", tmp_path / "c")
    assert str(caught.value) == "tiny/neox at step3: the hub has no such revision"
    assert caught.value.reason == "the hub has no such revision"
    assert not (tmp_path / "c").exists()
    assert len(hub.requests) == 1, "what is missing is not asked for twice"


# The scripts


def run_script(name: str, folder: Path, *, output: dict, params: dict) -> Path:
    job = SimpleNamespace(
        output=Namedlist(fromdict=output),
        params=Namedlist(fromdict=params),
        log=[str(folder / f"{name}.log")],
    )
    script = str(ROOT / "workflow_scripts" / f"{name}.py")
    runpy.run_path(script, init_globals={"snakemake": job}, run_name="__main__")
    return Path(job.log[0])


def test_a_revision_is_fetched_with_a_record_of_where_it_came_from(hub, tmp_path):
    log = run_script(
        "fetch_checkpoint", tmp_path,
        output={"record": str(tmp_path / "step1.json")},
        params={"repo": REPO, "revision": "step1", "folder": str(tmp_path / "c"),
                "may_be_missing": False, "code": "abc"},
    )  # fmt: skip
    record = json.loads((tmp_path / "step1.json").read_text())
    assert record["commit"] == hub.commit(REPO, "step1")
    assert record["repo"] == REPO and record["revision"] == "step1"
    assert record["files"].keys() == {"config.json", "pytorch_model.bin"}
    assert record["commit"] in log.read_text()
    assert same_weights(tmp_path / "c/model.safetensors", model_tensors(1))
