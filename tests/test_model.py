"""Models survive a file to the bit, and a broken one is never taken for a whole one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from flatminima import device as device_module
from flatminima import model as model_module
from flatminima.errors import UserError
from flatminima.files import atomic_path, weights_digest
from flatminima.model import (
    WEIGHTS_FILE,
    build_model,
    is_legacy_buffer,
    load_model,
    read_weights,
    save_model,
    tensor_digests,
    weights_dtypes,
)
from flatminima.quantizers import linear_weights
from tests.conftest import TINY, TINY_VOCABULARY, assert_equal, weights_of

LEGACY = {
    "attention.bias": torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril(),
    "attention.masked_bias": torch.tensor(float("-inf"), dtype=torch.float16),
    "attention.rotary_emb.inv_freq": torch.ones(1),
}


def names_below(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    save_model(tiny_model, tmp_path / "step40")
    return tmp_path / "step40"


def test_models_survive_a_file_to_the_bit(tiny_model, checkpoint):
    bias = tiny_model.gpt_neox.layers[0].mlp.dense_h_to_4h.bias
    bias.data[:4] = torch.tensor([1e-42, -0.0, 3.4e38, 1e-30])
    save_model(tiny_model, checkpoint)
    loaded = load_model(checkpoint)
    saved, read = (
        {name: w.view(torch.int32) for name, w in weights_of(model).items()}
        for model in (tiny_model, loaded)
    )
    assert_equal(saved, read)
    assert not loaded.training


def test_an_old_checkpoint_loads_as_float32_without_its_buffers(tiny_model, checkpoint):
    """What published Pythia checkpoints look like: float16, the buffers of old code beside."""
    path = checkpoint / WEIGHTS_FILE
    stored = {name: w.half() for name, w in load_file(path).items()}
    for layer in (0, 1):
        stored |= {f"gpt_neox.layers.{layer}.{n}": b.clone() for n, b in LEGACY.items()}
    save_file(stored, path, metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    config.pop("dtype", None)
    (checkpoint / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    assert weights_dtypes(path) == "F16+F32+U8"
    loaded = load_model(checkpoint)
    widened = weights_of(tiny_model.half().float())
    assert_equal(weights_of(loaded), widened)
    assert sum(map(is_legacy_buffer, stored)) == 6
    read = dict(read_weights(path))
    assert list(read) == sorted(n for n in stored if not n.endswith(tuple(LEGACY)))
    assert len(linear_weights(loaded, "blocks")) == 8
    assert all(name.endswith(".weight") for name in linear_weights(loaded, "blocks+head"))


def test_a_checkpoint_with_fewer_or_more_weights_than_its_model_is_refused(checkpoint):
    """What it lacks would be filled with random numbers, with no more than a warning."""
    path = checkpoint / WEIGHTS_FILE
    config = checkpoint / "config.json"
    stored = load_file(path)
    text = config.read_text()
    config.write_text(json.dumps(json.loads(text) | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match="unexpected weights, such as gpt_neox.layers.1"):
        load_model(checkpoint)
    config.write_text(text)
    name = sorted(stored)[3]
    del stored[name]
    save_file(stored, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"^{checkpoint}: 1 missing weights, such as {name}$"):
        load_model(checkpoint)


def test_a_save_replaces_a_whole_checkpoint_or_leaves_the_old_one(
    tiny_model, checkpoint, tmp_path, monkeypatch
):
    (checkpoint / "stale.bin").write_bytes(b"old")
    before = {p.name: p.read_bytes() for p in checkpoint.iterdir()}

    def fail(folder):
        folder.mkdir()
        (folder / WEIGHTS_FILE).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(tiny_model, "save_pretrained", fail)
    for name in ("step40", "step80"):
        with pytest.raises(OSError, match="disk full"):
            save_model(tiny_model, tmp_path / name)
    assert {p.name: p.read_bytes() for p in checkpoint.iterdir()} == before
    other = build_model(TINY, TINY_VOCABULARY, seed=1)
    save_model(other, checkpoint)
    assert not (checkpoint / "stale.bin").exists()
    assert_equal(weights_of(load_model(checkpoint)), weights_of(other))
    assert [p.name for p in tmp_path.iterdir()] == ["step40"]


def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(checkpoint, monkeypatch):
    monkeypatch.setattr(device_module, "available_bytes", lambda device: 2**10)
    with pytest.raises(UserError, match=f"{checkpoint}: .* GiB are missing"):
        load_model(checkpoint)


def test_only_files_of_the_form_that_is_loaded_count(checkpoint, monkeypatch):
    """``consolidated.safetensors`` is another framework's copy of the same weights."""
    weights = load_file(checkpoint / WEIGHTS_FILE)
    numbers = sum(tensor.numel() for tensor in weights.values())
    save_file(weights, checkpoint / "consolidated.safetensors")
    save_file({"codes": torch.zeros(8, 8, dtype=torch.int32)}, checkpoint / "other.safetensors")
    assert model_module.check_kind(checkpoint) == numbers
    monkeypatch.setattr(device_module, "available_bytes", lambda device: 4 * numbers)
    load_model(checkpoint)


def test_a_device_that_is_not_there_is_a_mistake_of_the_user(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="'cuda' .* valid: auto, cpu"):
        device_module.choose_device("cuda")
    assert device_module.choose_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_module.choose_device("auto") == device_module.choose_device("cuda") == "cuda"


def test_the_memory_of_a_batch_job_is_what_its_cgroups_leave(tmp_path):
    for place, limit in (("job", "max"), ("job/step", "3000")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "memory.max").write_text(limit)
        (tmp_path / place / "memory.current").write_text("1000")
    (tmp_path / "cgroup").write_text("0::/job/step\n")
    assert device_module.available_bytes("cpu", tmp_path, tmp_path / "cgroup") == 2000


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "file.txt"
    for before, written in ((None, True), (None, False), ("whole", True)):
        if before:
            with atomic_path(target) as temporary:
                temporary.write_text(before)
                assert not target.exists()
        with pytest.raises(KeyboardInterrupt), atomic_path(target) as temporary:
            if written:
                temporary.write_text("half")
            raise KeyboardInterrupt
        assert names_below(tmp_path) == ["deep", *(["deep/file.txt"] if before else [])]
    assert target.read_text() == "whole"


def test_digests_do_not_depend_on_the_layout_and_find_the_one_tensor_that_changed(
    tiny_model, tmp_path
):
    tensors = weights_of(tiny_model)
    buffers = {f"gpt_neox.layers.0.{name}": buffer for name, buffer in LEGACY.items()}
    save_file(tensors, tmp_path / "a")
    save_file(tensors | buffers, tmp_path / "b", {"note": "all lie elsewhere"})
    first, same = (tensor_digests(tmp_path / name) for name in "ab")
    assert same == first
    assert weights_digest(dict(reversed(first.items()))) == weights_digest(first)
    changed = "gpt_neox.layers.1.attention.dense.weight"
    tensors[changed].view(torch.int32)[5, 5] ^= 1  # the last bit of one weight
    save_file(tensors, tmp_path / "c")
    after = tensor_digests(tmp_path / "c")
    assert [name for name in first if first[name] != after[name]] == [changed]
    assert weights_digest(first) != weights_digest(after)
