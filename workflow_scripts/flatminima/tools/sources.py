"""The checkpoints of an audit, and the text on which they are scored.

Checkpoints are those in the folder of a run, a single model, or revisions of a hub repository. The
text is a file, or the docstrings of a Python package.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from flatminima.errors import DamagedFile, UserError, one_line
from flatminima.files import CONFIG_FILE, read_json
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

Text = tuple[Iterable[str], str]  # documents, and a description of them
TRAINER_STATE = "trainer_state.json"
# The default text is available on every machine: docstrings of at least so many characters.
PACKAGE = "numpy"
MIN_CHARACTERS = 200
# Names of checkpoint folders: the Trainer's, Pythia's and those of other trainers, also in a
# subfolder ``checkpoints``.
NAMES = (
    *("checkpoint-{step}", "step{step}", "step_{step}", "global_step{step}"),
    *("checkpoint_{step}", "step-{step}", "global_step_{step}", "iter_{step}"),
)
RUN_PATTERNS = (*NAMES, *(f"checkpoints/{name}" for name in NAMES))

_GGUF = (
    "the weights in a GGUF file are already quantized; audit the checkpoint that it was made "
    "from (--deployed measures GGUF's formats)"
)


@dataclass(frozen=True)
class Source:
    """Checkpoints by step, in order.

    A place is a folder, or a revision of the hub repository ``repo``. ``notes`` lists what the
    folder contains but the audit does not measure.
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
        """The folder of a checkpoint and, for one from the hub, its commit and hashes.

        A checkpoint from the hub is deleted when the block ends.
        """
        if self.repo is None:
            yield Path(self.places[step]), {}
            return
        with tempfile.TemporaryDirectory() as folder:
            origin = download_checkpoint(self.repo, self.places[step], folder)
            yield Path(folder), {key: origin[key] for key in ("commit", "files")}

    def tokenizer(self, path: str | None) -> Tokenizer:
        """The tokenizer at ``path``, a file or folder, or that of the last checkpoint."""
        last_place = self.places[self.steps[-1]]
        if path is not None:
            candidates = [Path(path)]
        elif self.repo is not None:
            with tempfile.TemporaryDirectory() as folder:
                download_tokenizer(self.repo, last_place, Path(folder, TOKENIZER_FILE))
                return read_tokenizer(Path(folder, TOKENIZER_FILE))
        else:
            candidates = [Path(last_place), *Path(last_place).parents[:2]]
        for candidate in candidates:
            file = candidate if candidate.is_file() else candidate / TOKENIZER_FILE
            if file.is_file():
                return read_tokenizer(file)
        searched = ", ".join(map(str, candidates))
        raise UserError(f"no {TOKENIZER_FILE} in {searched}; name one with --tokenizer")


def open_source(target: str, revisions: Sequence[str] = ()) -> Source:
    """The checkpoints of ``target``, or only ``revisions`` of them.

    ``target`` is a folder or the name of a hub repository. Raises ``UserError`` with one line, or
    ``HubError`` for the hub, if there are none.
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
    """The checkpoints of a run, or a single model. ``--revisions .`` selects the model."""
    places, notes = _find_run(folder)
    model_folder = None
    no_model_reason = None
    try:
        model_folder = read_checkpoint(folder).folder
    except DamagedFile as error:
        no_model_reason = error

    if model_folder and (not places or list(revisions) == ["."]):
        return Source({_step_of_folder(folder): model_folder})
    if not places:
        reason = "; ".join(notes)
        if not reason and any(folder.glob("*.gguf")):
            reason = _GGUF
        if not reason:
            reason = (
                f"neither a model ({no_model_reason}) nor a run with folders like "
                "checkpoint-100, step100"
            )
            other_models = _models_of_other_names(folder, places)
            if other_models:
                reason += (
                    f"; {', '.join(other_models[:3])} contain models, but their names are not "
                    "such; rename them, or audit one of them"
                )
        raise UserError(f"{folder}: {reason}")
    other_models = _models_of_other_names(folder, places)
    if other_models:
        name_pattern = re.sub(r"\d+$", "N", Path(next(iter(places.values()))).name)
        notes.append(
            f"not measured: {', '.join(other_models)}; their names are not of the form "
            f"{name_pattern}, which is that of the checkpoints"
        )
    if model_folder:
        notes.append(
            f"{folder} itself contains a model, beside its checkpoints, that is not measured; "
            "--revisions . measures it alone"
        )
    if not revisions:
        return Source(places, notes=tuple(notes))

    # A checkpoint is selected by its step or by the name of its folder.
    step_by_name = {}
    for step, place in places.items():
        step_by_name[str(step)] = step
        step_by_name[Path(place).name] = step
    for name in revisions:
        if name not in step_by_name:
            valid = ", ".join(Path(place).name for place in places.values())
            raise UserError(f"{folder}: no checkpoint {name!r}; valid: {valid}")
    steps = sorted({step_by_name[name] for name in revisions})
    return Source({step: places[step] for step in steps}, notes=tuple(notes))


def _find_run(folder: Path) -> tuple[dict[int, str], list[str]]:
    """Folders of a run's checkpoints by step, and one note for each folder that is skipped."""
    places: dict[int, str] = {}
    notes = []
    for pattern in RUN_PATTERNS:
        run = find_checkpoints(f"{folder.as_posix()}/{pattern}")
        notes += [f"skipped: {line}" for line in run.skipped]
        if not places:  # the first pattern with checkpoints
            places = {step: checkpoint.folder for step, checkpoint in run.checkpoints.items()}
    return dict(sorted(places.items())), notes


def _models_of_other_names(folder: Path, places: dict[int, str]) -> list[str]:
    """Folders beside a run's checkpoints that contain a model but are not of the run."""
    taken = {Path(place) for place in places.values()}
    others = []
    for config in sorted(folder.glob(f"*/{CONFIG_FILE}")):
        if config.parent in taken:
            continue
        try:
            others.append(Path(read_checkpoint(config.parent).folder).name)
        except DamagedFile:  # a folder that fits the pattern is named with its reason elsewhere
            continue
    return others


def _step_of_folder(folder: Path) -> int:
    """The step in a checkpoint's folder name; 0 for a name such as opt-125m."""
    for name in NAMES:
        match = re.fullmatch(name.replace("{step}", r"(\d+)"), folder.name)
        if match:
            return int(match[1])
    return 0


def _on_hub(repo: str, revisions: Sequence[str]) -> Source:
    """Revisions of a hub repository; without names, all whose branches look like a step."""
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
    """All logged learning rates of a local run by step, and notes on what is missing.

    They come from the Trainer's log in the last checkpoint. The log may have them at other steps
    than those of the checkpoints.
    """
    state = Path(source.places[source.steps[-1]]) / TRAINER_STATE
    if source.repo is not None:
        return {}, []
    if not state.is_file():
        is_a_run = len(source.places) > 1
        return {}, [f"no learning rates: there is no {state}"] if is_a_run else []
    try:
        log = read_json(state)["log_history"]
        rates = {}
        for record in log:
            if "learning_rate" in record:
                rates[int(record["step"])] = float(record["learning_rate"])
    except (ValueError, KeyError, TypeError) as error:
        line = f"{state}: cannot be read ({one_line(error)}); learning rates are left empty"
        return {}, [line]
    if not any(rates.values()):  # a log of zeros is of no use
        return {}, [f"no learning rates: {state} has none above zero"]
    without = [step for step in source.steps if step not in rates]
    if without:
        return rates, [
            f"learning rates are logged at other steps than {len(without)} of "
            f"{len(source.steps)} checkpoints, whose rate is left empty; the figure shows the log's"
        ]
    return rates, []


def open_text(data: str | None) -> Text:
    """The documents of the file ``data``, or docstrings of ``PACKAGE``, and their description."""
    if data is None:
        version = package_versions([PACKAGE])[PACKAGE]
        docstrings = deduplicate(package_documents(PACKAGE, MIN_CHARACTERS))
        _, documents = split(docstrings, validation_fraction=1.0, seed=0)  # all, shuffled
        return documents, f"docstrings of {PACKAGE} {version}"
    try:
        return read_texts(find_file({"path": data})), data
    except ValueError as error:
        raise UserError(f"--data {data}: {error}") from error


def document_end(
    tokenizer: Tokenizer, configured: int | list[int] | None
) -> tuple[int | None, str]:
    """The token id between documents, and a description of the batches made with it.

    The id is the tokenizer's end of text. If the tokenizer has none, the id is ``configured``, of
    the model's configuration, if the tokenizer contains this id.
    """
    if isinstance(configured, list):
        configured = next(iter(configured), None)
    end = end_of_text(tokenizer)
    if end is None and configured in tokenizer.get_vocab().values():
        end = configured
    description = "nothing between documents"
    if end is not None:
        description = f"{tokenizer.id_to_token(end)} (id {end}) between documents"
        if configured not in (None, end):
            description += f" (eos_token_id of the configuration is {configured})"
    first_ids = leading_ids(tokenizer)
    if first_ids:
        first_tokens = " ".join(map(tokenizer.id_to_token, first_ids))
        description += f", {first_tokens} before each sequence"
    return end, description
