"""Which checkpoints are loaded whole and which stay in their files."""

from pathlib import Path

from torch import nn

from flatminima.checkpoints import load_model
from flatminima.errors import UserError
from flatminima.jobs import log
from flatminima.streaming.memory import SHARE, available_bytes, float32_bytes
from flatminima.streaming.stored import CannotStream, StoredModel

WIDENS_TO = 4  # times the bytes of a file that float32 takes at most, for 8-bit files


def open_model(
    folder: str | Path, device: str = "cpu", stream: bool | str = "auto"
) -> nn.Module | StoredModel:
    """A checkpoint's model, or one whose weights stay in its files.

    ``stream`` is True, False or ``auto``: where the weights in float32 take more than
    ``SHARE`` of the memory that is available. A model that cannot be streamed is loaded
    whole under ``auto``. Raises ``UserError`` where it was to be streamed and cannot be,
    and what ``load_model`` does.
    """
    if stream is False or (stream == "auto" and not _may_be_large(Path(folder), device)):
        return load_model(folder, device)
    try:
        stored = StoredModel(folder, device)
    except CannotStream as reason:
        return load_whole(folder, device, stream, reason)
    if stream == "auto" and float32_bytes(stored.model) <= SHARE * available_bytes(device):
        return load_model(folder, device)
    log(f"{folder}: {float32_bytes(stored.model) / 2**30:.1f} GiB in float32, streamed")
    return stored


def load_whole(
    folder: str | Path, device: str, stream: bool | str, reason: CannotStream
) -> nn.Module:
    """The whole model in place of one that cannot be streamed, unless that was asked for."""
    if stream is True:
        raise UserError(f"probe.stream true: {reason}") from reason
    log(f"{folder}: not streamed: {reason}")
    return load_model(folder, device)


def _may_be_large(folder: Path, device: str) -> bool:
    """By the size of its files alone, which costs nothing."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return WIDENS_TO * stored > SHARE * available_bytes(device)
