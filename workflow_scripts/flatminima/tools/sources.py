"""Where an audit finds its checkpoints: a folder of a run, one model, or a hub repository."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flatminima.downloads import download_checkpoint
from flatminima.errors import UserError
from flatminima.hub import TOKENIZER_FILE, download_tokenizer, list_branches
from flatminima.revisions import (
    DEFAULT_PATTERN,
    Incomplete,
    find_checkpoints,
    read_checkpoint,
    step_of,
)

# How runs name their checkpoints: the Trainer's way, Pythia's, and both a folder below.
RUN_PATTERNS = ("checkpoint-{step}", "step{step}", "step_{step}", "global_step{step}")
RUN_FOLDERS = ("", "checkpoints/")
_GGUF = (
    "a GGUF file holds weights that are already quantized, in groups and types of its own; audit "
    "the checkpoint that it was made from (--deployed measures what GGUF would make of it)"
)


@dataclass(frozen=True)
class Source:
    """Checkpoints by step: a folder of each, or a revision of ``repo``.

    ``skipped`` says of each folder that is no whole checkpoint why, ``notes`` what else lies
    there and is not measured.
    """

    places: dict[int, str]
    repo: str | None = None
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> list[int]:
        """Steps in order."""
        return sorted(self.places)

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[tuple[Path, dict]]:
        """The folder of one checkpoint, and its commit and hashes where it is from the hub.

        One from the hub is deleted when the block ends.
        """
        if self.repo is None:
            yield Path(self.places[step]), {}
            return
        with tempfile.TemporaryDirectory() as folder:
            origin = download_checkpoint(self.repo, self.places[step], folder)
            yield Path(folder), {key: origin[key] for key in ("commit", "files")}

    @contextmanager
    def tokenizer(self, given: str | None) -> Iterator[Path]:
        """The file of the tokenizer: ``given``, or the one that belongs to the last checkpoint."""
        last = self.places[self.steps[-1]]
        if given is None and self.repo is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / TOKENIZER_FILE
                download_tokenizer(self.repo, last, path)
                yield path
            return
        here = Path(last)
        folders = [Path(given)] if given else [here, *here.parents[:2]]
        looked = [f if f.is_file() else f / TOKENIZER_FILE for f in folders]
        found = next((path for path in looked if path.is_file()), None)
        if found is None:
            where = ", ".join(map(str, folders))
            raise UserError(f"no {TOKENIZER_FILE} in {where}; name one with --tokenizer")
        yield found


def open_source(target: str, revisions: Sequence[str] = ()) -> Source:
    """What ``target`` holds, of that only ``revisions`` where any are named.

    Raises ``UserError`` (``HubError`` for the hub) with one line where there is nothing.
    """
    path = Path(target)
    if path.suffix == ".gguf":
        raise UserError(f"{target}: {_GGUF}")
    if path.is_dir():
        return _chosen(_local(path), target, revisions)
    if path.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", target):
        raise UserError(f"{target}: neither a folder nor the name of a hub repository")
    if path.parent.is_dir():
        raise UserError(
            f"{target}: no such folder; {path.parent} is one, so this is not taken for the name "
            "of a hub repository"
        )
    return _on_hub(target, revisions)


def _local(folder: Path) -> Source:
    skipped: list[str] = []
    try:
        above, reason = read_checkpoint(folder), None
    except Incomplete as error:
        above, reason = None, error
    for below in RUN_FOLDERS:
        for pattern in RUN_PATTERNS:
            found = find_checkpoints(f"{folder.as_posix()}/{below}{pattern}")
            skipped += found.skipped
            if found.checkpoints:
                places = {step: c.folder for step, c in found.checkpoints.items()}
                notes = (
                    f"{folder} itself holds a model, above its checkpoints, that is not measured; "
                    "--revisions . measures it alone",
                ) * (above is not None)
                return Source(places, skipped=tuple(skipped), notes=notes)
    if above is not None:
        return Source({_number(folder.name) or 0: above.folder})
    if skipped:
        raise UserError(f"{folder}: no whole checkpoint; {'; '.join(skipped)}")
    if any(folder.glob("*.gguf")):
        raise UserError(f"{folder}: {_GGUF}")
    raise UserError(
        f"{folder}: neither a model ({reason}) nor a run with folders like "
        "checkpoint-100 or step100"
    )


def _number(name: str) -> int | None:
    """The last number in a name, which is its step."""
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def _chosen(source: Source, target: str, revisions: Sequence[str]) -> Source:
    """Of a local run only the checkpoints that are named, by folder or by step."""
    if not revisions:
        return source
    if tuple(revisions) == (".",):
        return Source({_number(Path(target).name) or 0: read_checkpoint(Path(target)).folder})
    names = {Path(place).name: step for step, place in source.places.items()}
    names |= {str(step): step for step in source.places}
    unknown = [name for name in revisions if name not in names]
    if unknown:
        there = ", ".join(Path(source.places[step]).name for step in source.steps)
        raise UserError(f"{target}: no checkpoint {unknown[0]!r}; there are {there}")
    places = {names[name]: source.places[names[name]] for name in revisions}
    return Source(places, skipped=source.skipped)


def _on_hub(repo: str, revisions: Sequence[str]) -> Source:
    if not revisions:
        found = {step_of(DEFAULT_PATTERN, name): name for name in list_branches(repo)}
        found.pop(None, None)
        if not found:
            raise UserError(
                f"{repo}: no branch is named like step1000; name revisions, such as "
                "--revisions main"
            )
        return Source(found, repo)
    places: dict[int, str] = {}
    for position, name in enumerate(revisions):
        number = _number(name)
        step = position if number is None else number
        if step in places:
            raise UserError(f"--revisions: {places[step]!r} and {name!r} are both step {step}")
        places[step] = name
    return Source(places, repo)
