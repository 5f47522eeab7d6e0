"""Folders of checkpoints as somebody else's training leaves them behind."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def fake_checkpoint(folder: Path, *, weights: str | None = "model.safetensors") -> Path:
    """A folder with a configuration and weights of one number."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (folder / "optimizer.pt").write_bytes(b"of no interest")
    if weights == "model.safetensors":
        save_file({"w": np.ones(3, np.float32)}, folder / weights)
    elif weights:
        (folder / weights).write_bytes(b"\x80\x04")
    return folder
