"""After a power cut a file has its final name only if all of its bytes are on the disk.

That is so where a file is flushed after its last byte and before it is renamed, and the
folder that holds the name afterwards. Each test records these calls in their order.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from flatminima.files import write_digests, write_table
from flatminima.hub import download_checkpoint
from flatminima.model import save_model
from flatminima.text.tokens import write_tokens
from flatminima.training.loop import save_state
from tests.hub.repos import FORMS, STEPS, model_branches
from tests.hub.server import TinyHub, point_at


@pytest.fixture
def renamed(monkeypatch):
    """Calling it gives what was renamed into a folder, once all that is there was flushed."""
    flushed = set()
    unsafe = set()
    moved = []
    fsync = os.fsync
    replace = os.replace

    def state_of(path: Path) -> tuple:
        """What changes with every write to a file, whatever its name."""
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def flush(descriptor):
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        flushed.add(state_of(path))
        unsafe.discard(path)

    def move(source, target):
        source = Path(source)
        target = Path(target)
        files = [p for p in source.rglob("*") if p.is_file()] if source.is_dir() else [source]
        unsafe.update(path for path in files if state_of(path) not in flushed)
        unsafe.add(target.parent)  # until its new entry is flushed
        moved.append(target)
        replace(source, target)

    def names(folder: Path) -> list[str]:
        assert unsafe == set()
        assert all(state_of(path) in flushed for path in folder.rglob("*") if path.is_file())
        return [path.name for path in moved if path.parent == folder and path.exists()]

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", move)
    return names


def test_tables_tokens_digests_and_the_state_of_a_training(renamed, tmp_path, tiny_model):
    for name in ("table.csv", "table.parquet"):
        write_table(tmp_path / name, pd.DataFrame({"a": [1, 2]}))
    write_tokens(tmp_path / "train.safetensors", np.zeros((2, 4), np.int32))
    write_digests(tmp_path, ["train.safetensors"])
    optimizer = torch.optim.AdamW(tiny_model.parameters())
    save_state(tmp_path / "state", tiny_model, optimizer, step=1, fingerprint="f", losses=[1.0])
    written = ["table.csv", "table.parquet", "train.safetensors", "SHA256SUMS", "state"]
    assert renamed(tmp_path) == written


def test_a_checkpoint_new_and_replaced(renamed, tmp_path, tiny_model):
    for _ in range(2):
        save_model(tiny_model, tmp_path / "step1", digests=True)
    assert renamed(tmp_path) == 2 * ["step1"]


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
def test_a_revision_from_the_hub(renamed, tmp_path, monkeypatch, form):
    with TinyHub({"tiny/neox": model_branches()}) as hub:
        point_at(monkeypatch, hub, tmp_path / "home")
        download_checkpoint("tiny/neox", f"step{STEPS[form]}", tmp_path / "step")
    assert renamed(tmp_path / "step") == ["model.safetensors", "config.json"]
