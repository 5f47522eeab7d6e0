"""Where an audit finds its checkpoints, and the text that it scores them on.

A folder of a run, one model, or a hub repository; a file of text, or docstrings of a package.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from flatminima.errors import UserError, one_line
from flatminima.hub import TOKENIZER_FILE, download_checkpoint, download_tokenizer, list_branches
from flatminima.revisions import (
    DEFAULT_PATTERN,
    Incomplete,
    find_checkpoints,
    read_checkpoint,
    step_of,
)
from flatminima.text.batches import encode_stream
from flatminima.text.corpus import deduplicate, package_documents, package_versions, split
from flatminima.text.sources import NotAvailable, TextError, find_file, read_texts
from flatminima.text.tokens import end_of_text, leading_ids

TRAINER_STATE = "trainer_state.json"
PACKAGE, MIN_CHARACTERS = "numpy", 200  # text that every machine has
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
        return Source({_step(folder): above.folder})
    if skipped:
        raise UserError(f"{folder}: no whole checkpoint; {'; '.join(skipped)}")
    if any(folder.glob("*.gguf")):
        raise UserError(f"{folder}: {_GGUF}")
    raise UserError(
        f"{folder}: neither a model ({reason}) nor a run with folders like "
        "checkpoint-100 or step100"
    )


def _step(folder: Path) -> int:
    """The step that a folder's name states; 0 for a model of another name, such as opt-125m."""
    found = (re.fullmatch(p.replace("{step}", r"(\d+)"), folder.name) for p in RUN_PATTERNS)
    return next((int(match[1]) for match in found if match), 0)


def _chosen(source: Source, target: str, revisions: Sequence[str]) -> Source:
    """Of a local run only the checkpoints that are named, by folder or by step."""
    if not revisions:
        return source
    if tuple(revisions) == (".",):
        return Source({_step(Path(target)): read_checkpoint(Path(target)).folder})
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
    places: dict[int, str] = {}  # the last number of a name is its step
    for position, name in enumerate(revisions):
        numbers = re.findall(r"\d+", name)
        step = int(numbers[-1]) if numbers else position
        if step in places:
            raise UserError(f"--revisions: {places[step]!r} and {name!r} are both step {step}")
        places[step] = name
    return Source(places, repo)


def learning_rates(source: Source) -> tuple[dict[int, float], str]:
    """Learning rate by step as the Trainer of a local run logged it, and what is wrong with it."""
    state = Path(source.places[source.steps[-1]]) / TRAINER_STATE
    if source.repo is not None or not state.is_file():
        return {}, ""
    found, odd = {}, 0
    try:
        entries = json.loads(state.read_text(encoding="utf-8"))["log_history"]
        for entry in (entry for entry in entries if "learning_rate" in entry):
            step, rate = entry.get("step"), entry["learning_rate"]
            known = isinstance(step, int) and isinstance(rate, int | float) and 0 <= rate < np.inf
            found |= {step: float(rate)} if known else {}
            odd += not known
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"{state}: cannot be read ({one_line(error)}); learning rates are left empty"
    rates = {step: found[step] for step in source.steps if step in found}
    line = f"{state}: {odd} entries without a step or a number as learning rate are left empty"
    return (rates if any(rates.values()) else {}), line if odd else ""


def open_text(data: str | None) -> tuple[Iterable[str], str]:
    """The documents of ``data``, or docstrings that every machine has, and what they are."""
    if data is None:
        version = package_versions([PACKAGE])[PACKAGE]
        found = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
        _, documents = split(found, validation_fraction=1.0, seed=0)  # all of them, shuffled
        return documents, f"docstrings of {PACKAGE} {version}"
    path = Path(data)
    if not path.is_file():
        raise UserError(f"--data {data}: {'is no file' if path.exists() else 'no such file'}")
    if not path.stat().st_size:
        raise UserError(f"--data {data}: the file is empty")
    try:
        return read_texts(find_file({"path": data})), data
    except (NotAvailable, ValueError) as error:
        raise UserError(f"--data {data}: {error}") from error


def fixed_batches(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    *,
    sequences: int,
    length: int,
    batch_size: int,
    name: str,
    configured_end: int | list[int] | None = None,
) -> tuple[np.ndarray, str]:
    """``[sequences, length]`` int32 token ids, fewer where the text is shorter, and how they are.

    Documents are concatenated, each followed by the tokenizer's end of text, or where it has
    none by the configuration's (``configured_end``) if that is an id of it. Where the
    tokenizer begins a text with a token such as ``<bos>``, so does every sequence. Raises
    ``UserError`` where there is not even one batch of ``batch_size`` sequences.
    """
    configured = configured_end
    if isinstance(configured, list):
        configured = configured[0] if configured else None
    own, before = end_of_text(tokenizer), leading_ids(tokenizer)
    fits = configured in tokenizer.get_vocab().values()
    end = own if own is not None else configured if fits else None
    taken = length - len(before)
    if taken < 2:
        raise UserError(f"--length {length}: {2 + len(before)} or more, {len(before)} of which are "
                        "the tokenizer's own at the start")  # fmt: skip
    ids: list[int] = []
    try:
        for document in encode_stream(tokenizer, texts, end, sequences * taken):
            ids += document
            if len(ids) >= sequences * taken:
                break
    except TextError as error:
        raise UserError(f"--data {error}") from error
    whole = min(len(ids) // taken, sequences)
    if whole < batch_size:
        raise UserError(
            f"{name}: {len(ids):,} tokens are fewer than one batch of {batch_size} sequences of "
            f"{length} ({batch_size * taken:,}); give more text, or a smaller --batch-size or "
            "--length"
        )
    cut = np.asarray(ids[: whole * taken], dtype=np.int32).reshape(whole, taken)
    words = "nothing between documents"
    if end is not None:
        words = f"{tokenizer.id_to_token(end)} (id {end}) between documents"
        if configured is not None and configured != end:
            words += f" (eos_token_id of the configuration is {configured})"
    if before:
        words += f", {' '.join(tokenizer.id_to_token(i) for i in before)} before each sequence"
    start = np.tile(np.asarray(before, dtype=np.int32), (whole, 1))
    return np.hstack([start, cut]), words
