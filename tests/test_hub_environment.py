"""The user's cache, token and environment; tokenizers; the unmodified libraries."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download, snapshot_download

from flatminima.hub.checkpoints import download_checkpoint
from flatminima.hub.errors import HubError, RevisionMissing
from flatminima.hub.retrying import Patience
from flatminima.hub.revisions import resolve
from tests.hub.libraries import point_at
from tests.hub.repos import as_safetensors, config_bytes, model_branches, model_tensors
from tests.hub.server import TinyHub
from tests.test_hub_checkpoints import run_script
from tests.workflow import ROOT

REPO, GATED, TOKEN = "tiny/neox", "tiny/gated", "hf_test"
TOKENIZER = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'
NO_PATIENCE = Patience(attempts=1)


@pytest.fixture(scope="module")
def server():
    main = {"config.json": config_bytes(), "model.safetensors": as_safetensors(model_tensors(400))}
    models = {
        REPO: model_branches(steps=(0, 1)) | {"main": main | {"tokenizer.json": TOKENIZER}},
        GATED: {"main": main},
    }
    with TinyHub(models, gated=(GATED,), token=TOKEN) as hub:
        yield hub


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    server.faults.clear()
    server.requests.clear()
    # A folder whose name a careless join would read as the repository.
    point_at(monkeypatch, server, tmp_path / "my models/tiny/neox")
    return server


# The cache


def test_files_of_the_users_cache_are_not_fetched_again(hub, tmp_path):
    snapshot_download(REPO, revision="step0")
    hub.requests.clear()
    download = download_checkpoint(REPO, "step0", tmp_path / "c")
    assert [r.path for r in hub.requests] == ["/api/models/tiny/neox/revision/step0?blobs=true"]
    assert (tmp_path / "c/model.safetensors").read_bytes() == as_safetensors(model_tensors(0))
    assert download.commit == hub.commit(REPO, "step0")
    cached = Path(hf_hub_download(REPO, "model.safetensors", revision=download.commit))
    assert cached.exists(), "the cache keeps its copy"


def test_a_damaged_file_of_the_cache_is_not_used(hub, tmp_path, capsys):
    """The hub's library keeps such a file and returns it without a check."""
    cached = Path(hf_hub_download(REPO, "model.safetensors", revision="step0"))
    whole = cached.read_bytes()
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
        for name in ("model.safetensors", "config.json"):
            made = (tmp_path / f"o-{revision}" / name).read_bytes()
            assert made == (tmp_path / revision / name).read_bytes()
    with pytest.raises(HubError, match="at main: HF_HUB_OFFLINE is set and .*my models"):
        resolve(REPO, "main")
    assert hub.requests == []


def test_offline_a_cache_that_holds_half_is_named(hub, tmp_path, monkeypatch):
    cached = Path(snapshot_download(REPO, revision="step0"))
    weights = (cached / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="step0: HF_HUB_OFFLINE is set .* model.safetensors whole"):
        download_checkpoint(REPO, "step0", tmp_path / "c")
    assert not (tmp_path / "c/model.safetensors").exists()


# Tokens


def test_a_gated_repository_says_what_it_needs(hub, tmp_path, monkeypatch):
    with pytest.raises(
        HubError, match="tiny/gated at main: .* is gated; .* set HF_TOKEN"
    ) as caught:
        download_checkpoint(GATED, "main", tmp_path / "c", NO_PATIENCE)
    assert "\n" not in str(caught.value) and not isinstance(caught.value, RevisionMissing)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="set HF_TOKEN"):
        download_checkpoint(GATED, "main", tmp_path / "c", NO_PATIENCE)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.requests.clear()
    download_checkpoint(GATED, "main", tmp_path / "c", NO_PATIENCE)
    sent = {r.origin: r.authorization for r in hub.requests}
    assert sent == {"hub": f"Bearer {TOKEN}", "storage": None}, "the token stays with the hub"


# As users start it

FETCH = """
import json, sys
from dataclasses import asdict
from flatminima.hub.checkpoints import download_checkpoint
print(json.dumps(asdict(download_checkpoint(*sys.argv[1:]))))
"""


def fetch_in_a_process(folder: Path, environment: dict) -> dict:
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
    sent = {r.authorization for r in hub.asked(GATED) if r.origin == "hub"}
    assert sent == {f"Bearer {TOKEN}"}
    # A cache that the hub's own program filled serves without a network.
    download = [shutil.which("hf", path=str(Path(sys.executable).parent)), "download", GATED]
    subprocess.run(download, env=online, check=True, capture_output=True, timeout=300)
    hub.requests.clear()
    offline = hub.environment(home, HF_HUB_OFFLINE="1")
    assert fetch_in_a_process(tmp_path / "b", offline)["files"] == first["files"]
    assert hub.requests == []


# Tokenizers and text


def test_the_tokenizer_is_copied_with_a_record_of_its_commit(hub, tmp_path):
    record, output = tmp_path / "tokenizer_source.json", tmp_path / "tokenizer.json"
    run_script(
        "fetch_tokenizer", tmp_path,
        output={"tokenizer": str(output), "record": str(record)},
        params={"source": {"repo": REPO, "revision": "main"}, "code": "abc"},
    )  # fmt: skip
    assert output.read_bytes() == TOKENIZER
    made = json.loads(record.read_text())
    assert made["commit"] == hub.commit(REPO, "main") and len(made["sha256"]) == 64
    assert hub.asked("/resolve/")[0].path.split("/")[4] == made["commit"], "fetched by commit"


def test_a_revision_without_a_tokenizer_is_named(hub, tmp_path):
    with pytest.raises(SystemExit):
        run_script(
            "fetch_tokenizer", tmp_path,
            output={"tokenizer": str(tmp_path / "t.json"), "record": str(tmp_path / "r.json")},
            params={"source": {"repo": REPO, "revision": "step0"}, "code": "abc"},
        )  # fmt: skip
    log = (tmp_path / "fetch_tokenizer.log").read_text()
    assert log.splitlines()[-1] == "Error: tiny/neox at step0: it holds no tokenizer.json"
    assert "Traceback" not in log
    assert not (tmp_path / "t.json").exists() and not (tmp_path / "r.json").exists()


@pytest.mark.parametrize("script", ["fetch_tokenizer", "collect_text"])
def test_text_and_tokenizers_need_no_torch(script):
    """Their rules have an environment without it."""
    code = f"import sys; sys.modules['torch'] = None; import workflow_scripts.{script}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


# The tiny hub itself


def test_the_libraries_read_the_tiny_hub_as_they_read_the_real_one(hub):
    from huggingface_hub import HfApi, list_repo_refs, model_info
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError
    from transformers import AutoModelForCausalLM

    branches = {b.name: b.target_commit for b in list_repo_refs(REPO).branches}
    assert branches == {b: hub.commit(REPO, b) for b in ("main", "step0", "step1")}
    info = model_info(REPO, revision="step1", files_metadata=True)
    assert info.sha == branches["step1"]
    large = {s.rfilename: s.lfs.sha256 for s in info.siblings if s.lfs}
    assert large.keys() == {"pytorch_model.bin"}
    tree = HfApi(endpoint=hub.endpoint).list_repo_tree(REPO, revision="step1", recursive=True)
    assert {f.path: f.lfs.sha256 for f in tree if f.lfs} == large
    model = AutoModelForCausalLM.from_pretrained(REPO, revision="step0")
    assert str(model.dtype) == "torch.float16", "why weights are widened explicitly"
    with pytest.raises(RemoteEntryNotFoundError):
        hf_hub_download(REPO, "none.bin", revision="step0")
    with pytest.raises(RepositoryNotFoundError):
        model_info("tiny/none")
    path = Path(hf_hub_download(REPO, "pytorch_model.bin", revision="step1"))
    assert path.resolve().name == large["pytorch_model.bin"]


def test_the_libraries_believe_wrong_bytes(hub):
    """The reason for our own check, and what an upgrade that checks would show here."""
    hub.faults.add("^/lfs/", "wrong")
    path = Path(hf_hub_download(REPO, "model.safetensors", revision="step0"))
    assert path.read_bytes() != as_safetensors(model_tensors(0))
