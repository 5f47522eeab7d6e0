"""A checkpoint that the hub does not have, where a rule must write one all the same.

It is a safetensors file without a single weight that says why. Nothing takes it for a
model: what reads checkpoints asks for the reason first, and no model loads from it.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_KEY = "absent"


def write_absent(weights: str | Path, reason: str) -> None:
    """Write the weights of a checkpoint that there is not; ``reason`` is one line."""
    Path(weights).parent.mkdir(parents=True, exist_ok=True)
    save_file({}, weights, metadata={_KEY: reason})


def absence(weights: str | Path) -> str | None:
    """Why there is no such checkpoint; ``None`` for the weights of one that there is.

    ``None`` too where there is no such file or a damaged one: the reader of weights says so.
    """
    try:
        with safe_open(weights, framework="np") as stored:
            return (stored.metadata() or {}).get(_KEY)
    except (OSError, SafetensorError):
        return None
