"""Checkpoints of one's own run, found on disk by a pattern such as ``runs/mine/checkpoint-{step}``.

The folders that ``transformers.Trainer`` writes count as they are: ``config.json`` and
``model.safetensors``, or shards with their index; whatever lies beside them is ignored.
A folder that is no whole checkpoint is skipped, with the reason.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

PLACE = "{step}"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Incomplete(ValueError):
    """A folder that holds no whole checkpoint, and why."""


@dataclass(frozen=True)
class LocalCheckpoint:
    """A whole checkpoint: its folder, and the names of its weights and of all its files."""

    folder: str
    weights: str
    files: tuple[str, ...]


@dataclass
class Found:
    """Checkpoints by step in order, and one line for each folder that was skipped."""

    checkpoints: dict[int, LocalCheckpoint] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def check_pattern(pattern: str) -> None:
    """Raise ``ValueError`` unless the pattern has one place for the step."""
    if pattern.count(PLACE) != 1 or "*" in pattern:
        raise ValueError(f"{pattern!r} must have {PLACE} once and no *")


def _candidates(pattern: str) -> Iterator[tuple[int, Path]]:
    """Step and folder of everything that the pattern fits."""
    check_pattern(pattern)
    before, after = pattern.split(PLACE)
    fits = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
    anchor = Path(before if before.endswith("/") or not before else Path(before).parent)
    prefix = "" if before.endswith("/") else Path(before).name
    first, _, rest = after.partition("/")
    for path in anchor.glob(f"{_literal(prefix)}*{_literal(first)}"):
        folder = path / rest if rest else path
        match = fits.fullmatch(_spelled(folder, before))
        if match and folder.is_dir():
            yield int(match[1]), folder


def _literal(text: str) -> str:
    """Text that a glob takes letter by letter."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _spelled(path: Path, before: str) -> str:
    """The path as the pattern writes it: ``./runs`` and ``runs`` are one folder."""
    text = path.as_posix()
    return f"./{text}" if before.startswith("./") else text


def read_checkpoint(folder: Path) -> LocalCheckpoint:
    """What a folder holds; raises ``Incomplete`` where that is no whole checkpoint."""
    if not (folder / "config.json").is_file():
        raise Incomplete("no config.json")
    if (folder / WEIGHTS).is_file():
        weights, shards = WEIGHTS, [WEIGHTS]
    elif (folder / INDEX).is_file():
        weights, shards = INDEX, _shards(folder / INDEX)
    elif pickle := next((name for name in PICKLES if (folder / name).is_file()), None):
        raise Incomplete(
            f"weights only in {pickle}, a pickle, which could run code; "
            f"save_pretrained of transformers writes {WEIGHTS}"
        )
    else:
        raise Incomplete("no weights")
    for shard in shards:
        _check_whole(folder / shard)
    names = ["config.json", weights, *(shard for shard in shards if shard != weights)]
    return LocalCheckpoint(folder.as_posix(), weights, tuple(names))


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Incomplete(f"{index.name} cannot be read") from error


def _check_whole(path: Path) -> None:
    """Raise ``Incomplete`` unless the file is there and as long as its header says."""
    if not path.is_file():
        raise Incomplete(f"no {path.name}, which {INDEX} names")
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise Incomplete(f"{path.name} is not whole ({error})") from error


def find_checkpoints(pattern: str) -> Found:
    """All whole checkpoints of a pattern, and what was skipped.

    Raises ``ValueError`` for two folders of the same step.
    """
    found = Found()
    for step, folder in sorted(_candidates(pattern)):
        try:
            checkpoint = read_checkpoint(folder)
        except Incomplete as reason:
            found.skipped.append(f"{folder.as_posix()}: {reason}")
            continue
        if step in found.checkpoints:
            both = f"{found.checkpoints[step].folder} and {checkpoint.folder}"
            raise ValueError(f"{both} are both step {step}")
        found.checkpoints[step] = checkpoint
    return found
