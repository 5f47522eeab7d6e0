"""Where an audit finds its checkpoints, and the text that it scores them on.

A folder of a run, one model, or a hub repository; a file of text, or docstrings of a package.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from flatminima.errors import DamagedFile, UserError, one_line
from flatminima.files import read_json
from flatminima.hub import TOKENIZER_FILE, download_checkpoint, download_tokenizer, list_branches
from flatminima.revisions import (
    DEFAULT_PATTERN,
    find_checkpoints,
    read_checkpoint,
    table_of_branches,
)
from flatminima.text.corpus import deduplicate, package_documents, package_versions, split
from flatminima.text.sources import find_file, read_texts
from flatminima.text.tokens import end_of_text, leading_ids, read_tokenizer

Text = tuple[Iterable[str], str]  # documents, and what they are called
TRAINER_STATE = "trainer_state.json"
PACKAGE, MIN_CHARACTERS = "numpy", 200  # text that every machine has
# How runs name their checkpoints: the Trainer's way, Pythia's, and both a folder below.
NAMES = ("checkpoint-{step}", "step{step}", "step_{step}", "global_step{step}")
RUN_PATTERNS = (*NAMES, *(f"checkpoints/{name}" for name in NAMES))

_GGUF = (
    "a GGUF file holds weights that are already quantized, in groups and types of its own; audit "
    "the checkpoint that it was made from (--deployed measures what GGUF would make of it)"
)


@dataclass(frozen=True)
class Source:
    """Checkpoints by step, in order: a folder of each, or a revision of ``repo``.

    ``notes`` says what lies there and is not measured.
    """

    places: dict[int, str]
    repo: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> list[int]:
        """Steps in order."""
        return list(self.places)

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

    def tokenizer(self, given: str | None) -> Tokenizer:
        """The tokenizer in ``given``, or the one that belongs to the last checkpoint."""
        last = self.places[self.steps[-1]]
        if given is None and self.repo is not None:
            with tempfile.TemporaryDirectory() as folder:
                download_tokenizer(self.repo, last, Path(folder, TOKENIZER_FILE))
                return read_tokenizer(Path(folder, TOKENIZER_FILE))
        folders = [Path(given)] if given else [Path(last), *Path(last).parents[:2]]
        for path in (f if f.is_file() else f / TOKENIZER_FILE for f in folders):
            if path.is_file():
                return read_tokenizer(path)
        where = ", ".join(map(str, folders))
        raise UserError(f"no {TOKENIZER_FILE} in {where}; name one with --tokenizer")


def open_source(target: str, revisions: Sequence[str] = ()) -> Source:
    """What ``target`` holds, of that only ``revisions`` where any are named.

    Raises ``UserError`` (``HubError`` for the hub) with one line where there is nothing.
    """
    path = Path(target)
    if path.suffix == ".gguf":
        raise UserError(f"{target}: {_GGUF}")
    if path.is_dir():
        return _local(path, revisions)
    if path.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", target):
        raise UserError(f"{target}: neither a folder nor the name of a hub repository")
    if path.parent.is_dir():
        raise UserError(
            f"{target}: no such folder; {path.parent} is one, so this is not taken for the name "
            "of a hub repository"
        )
    return _on_hub(target, revisions)


def _local(folder: Path, revisions: Sequence[str]) -> Source:
    """A run, or one model, whose step is the number in its name (0 for one like opt-125m)."""
    runs = [find_checkpoints(f"{folder.as_posix()}/{pattern}") for pattern in RUN_PATTERNS]
    skipped = [f"skipped: {line}" for run in runs for line in run.skipped]
    found = next((run.checkpoints for run in runs if run.checkpoints), {})
    places = {step: checkpoint.folder for step, checkpoint in found.items()}
    try:
        model, reason = read_checkpoint(folder).folder, None
    except DamagedFile as error:
        model, reason = None, error
    if model and (not places or list(revisions) == ["."]):
        fits = (re.fullmatch(name.replace("{step}", r"(\d+)"), folder.name) for name in NAMES)
        return Source({next((int(match[1]) for match in fits if match), 0): model})
    if not places:
        nothing = f"neither a model ({reason}) nor a run with folders like checkpoint-100, step100"
        gguf = _GGUF if any(folder.glob("*.gguf")) else ""
        raise UserError(f"{folder}: {'; '.join(skipped) or gguf or nothing}")
    if model:
        above = f"{folder} itself holds a model, above its checkpoints, that is not measured"
        skipped.append(f"{above}; --revisions . measures it alone")
    names = {name: step for step, p in places.items() for name in (str(step), Path(p).name)}
    if unknown := [name for name in revisions if name not in names]:
        there = ", ".join(Path(place).name for place in places.values())
        raise UserError(f"{folder}: no checkpoint {unknown[0]!r}; there are {there}")
    steps = sorted({names[name] for name in revisions} or places)
    return Source({step: places[step] for step in steps}, notes=tuple(skipped))


def _on_hub(repo: str, revisions: Sequence[str]) -> Source:
    if not revisions:
        branches = list_branches(repo)
        try:
            table = table_of_branches(DEFAULT_PATTERN, branches)
        except ValueError as error:
            raise UserError(f"{repo}: {error}; name some, such as --revisions main") from error
        return Source(table.set_index("step")["branch"].to_dict(), repo)
    places: dict[int, str] = {}
    for position, name in enumerate(revisions):
        step = step_in_name(name, default=position)
        if step in places:
            raise UserError(f"--revisions: {places[step]!r} and {name!r} are both step {step}")
        places[step] = name
    return Source(dict(sorted(places.items())), repo)


def step_in_name(name: str, default: int) -> int:
    """The number after ``step`` in a revision's name, else its last number, else ``default``.

    ``stage1-step1000-tokens3B`` is step 1,000.
    """
    after_step = re.findall(r"step[-_]?(\d+)", name)
    numbers = after_step or re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else default


def learning_rates(source: Source) -> tuple[dict[int, float], list[str]]:
    """Learning rate by step as the Trainer of a local run logged it, or why there is none."""
    state = Path(source.places[source.steps[-1]]) / TRAINER_STATE
    if source.repo is not None or not state.is_file():
        return {}, []
    try:
        log = read_json(state)["log_history"]
        found = {e["step"]: float(e["learning_rate"]) for e in log if "learning_rate" in e}
    except (ValueError, KeyError, TypeError) as error:
        line = f"{state}: cannot be read ({one_line(error)}); learning rates are left empty"
        return {}, [line]
    rates = {step: found[step] for step in source.steps if step in found}
    return (rates if any(rates.values()) else {}), []


def open_text(data: str | None) -> Text:
    """The documents of ``data``, or docstrings that every machine has, and what they are."""
    if data is None:
        version = package_versions([PACKAGE])[PACKAGE]
        found = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
        _, documents = split(found, validation_fraction=1.0, seed=0)  # all of them, shuffled
        return documents, f"docstrings of {PACKAGE} {version}"
    try:
        return read_texts(find_file({"path": data})), data
    except ValueError as error:
        raise UserError(f"--data {data}: {error}") from error


def document_end(
    tokenizer: Tokenizer, configured: int | list[int] | None
) -> tuple[int | None, str]:
    """Id that is to follow each document, and in words how batches are made of them.

    It is the tokenizer's end of text, or where it has none the configuration's (``configured``)
    if that is an id of the tokenizer.
    """
    if isinstance(configured, list):
        configured = next(iter(configured), None)
    end = end_of_text(tokenizer)
    if end is None and configured in tokenizer.get_vocab().values():
        end = configured
    words = "nothing between documents"
    if end is not None:
        words = f"{tokenizer.id_to_token(end)} (id {end}) between documents"
        if configured not in (None, end):
            words += f" (eos_token_id of the configuration is {configured})"
    if before := leading_ids(tokenizer):
        words += f", {' '.join(map(tokenizer.id_to_token, before))} before each sequence"
    return end, words
