"""Every key of the configuration: its meaning, unit, default and check, one class a section.

``flatminima.config`` reads configurations and says what these classes refuse in one line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PositiveInt,
    StrictBool,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flatminima.errors import suggest
from flatminima.quantizer_specs import FP32, AnyQuantizer, Layers
from flatminima.revisions import check_pattern
from flatminima.schedules import AnyRival, AnySchedule, AverageKind
from flatminima.suites import nearest, revision_steps
from flatminima.text.corpus import file_format, package_root, package_versions

PRINTED_SUITE = "paper"  # results/paper holds the verdicts on the paper's own tables
MOST_REVISIONS = 100_000
MOST_BYTES = 2**40  # of one array or model in memory
PYTHIA_VOCABULARY = 50_304

_REPO = re.compile(r"(?!.*(\.\.|--))\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_REFERENCE = re.compile(r"(?!.*(\.\.|//))\w[\w./-]*", re.ASCII)
_LABEL = re.compile(r"[^<>`$\\\x00-\x1f]+")
Mistakes = Iterator[tuple[str, str]]  # key below the section, and what is wrong with it


def key(description: str, default: Any = ..., **limits: Any) -> Any:
    """A key of the configuration; one without a default is needed.

    A default of ``None`` says that the key may be left out, not that it may be null.
    """
    return Field(default, description=description, **limits)


class Section(BaseModel):
    """A mapping of the configuration. Numbers are not converted: 2.0 is no whole number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def _mistakes(self) -> Mistakes:
        """Keys that do not go with each other."""
        yield from ()

    @model_validator(mode="after")
    def _without_mistakes(self) -> Self:
        for place, text in self._mistakes():
            # Given as a value of the context, since text may have braces.
            raise PydanticCustomError("mistake", "{text}", {"key": place, "text": text})
        return self


def one_of(name: str, *classes: type[BaseModel]) -> Any:
    """Type of a section that is one of ``classes``, by the value of its key ``name``."""
    kinds = {
        value: Annotated[each, Tag(TAG + value)]
        for each in classes
        for value in each.model_fields[name].annotation.__args__
    }

    def tag(section: Any) -> str | None:
        value = section.get(name) if isinstance(section, Mapping) else ""
        return None if value is None else f"{TAG}{value}"

    return Annotated[Union[tuple(kinds.values())], Discriminator(tag)]  # noqa: UP007


TAG = "="  # before the name of a union's member, which pydantic puts between the keys


# Types of values.


def _unique(values: list) -> list:
    if twice := [value for number, value in enumerate(values) if value in values[:number]]:
        raise ValueError(f"{values} has {twice[0]!r} twice")
    return values


def _fits(pattern: re.Pattern, valid: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value[:80]!r} is not valid; valid: {valid}")
        return value

    return AfterValidator(check)


def _installed(package: str) -> str:
    try:
        package_root(package)
        package_versions([package])
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    return package


def _path(value: str) -> str:
    if set("{}\n\r\0") & set(value):
        raise ValueError(f"{value!r} has a brace or a line break, which no rule can name")
    return value


def _inside(value: str) -> str:
    if value.startswith("/") or ".." in value.split("/"):
        raise ValueError(f"{value!r} leads out of the repository; valid: a path in it without ..")
    return value


def _ending(value: str) -> str:
    file_format(value)
    return value


def _pattern(value: str) -> str:
    check_pattern(value)
    _path(value.replace("{step}", ""))
    return value


def _branches(value: str) -> str:
    try:
        groups = re.compile(value).groupindex
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression ({error})") from error
    if "step" not in groups:
        raise ValueError(f"{value!r} has no group (?P<step>...) for the step")
    return value


Text = Annotated[str, Field(min_length=1)]
FilePath = Annotated[Text, AfterValidator(_path)]
SuiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]
Repo = Annotated[Text, _fits(_REPO, "owner/name of letters, digits, . _ -")]
Reference = Annotated[
    Text, _fits(_REFERENCE, "a branch, tag or commit of letters, digits, . _ / -")
]
Step = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Resamples = Annotated[int, Field(ge=20, le=100_000)]
Severity = Literal["stop", "warn", "ignore"]


# Revisions.


class EvenGrid(Section):
    """Revisions: step 0, powers of two from 1, then evenly to the end."""

    powers_of_two: Step = key("How many powers of two from 1.")
    spacing: PositiveInt = key("Steps between the even revisions.")
    last: PositiveInt = key("Last step; a multiple of spacing.")

    def _mistakes(self) -> Mistakes:
        if (revisions := self.last // self.spacing) > MOST_REVISIONS:
            yield "", f"{revisions} revisions; at most {MOST_REVISIONS}"
            return
        try:
            self.steps_of_run()
        except ValueError as error:
            yield "", str(error)

    def steps_of_run(self) -> list[int]:
        """The steps, in order."""
        return revision_steps(**self.model_dump())


class ListedGrid(Section):
    """A choice of the revisions of a run; with source hub or local."""

    steps: Annotated[list[Step], AfterValidator(_unique)] = key("The steps.", min_length=1)
    last: PositiveInt = key(
        "Last step of the run, for its learning rate; by default the largest of steps.", None
    )

    def _mistakes(self) -> Mistakes:
        if self.last is not None and self.last < max(self.steps):
            yield "last", f"{self.last} is before step {max(self.steps)} of steps"

    def steps_of_run(self) -> list[int]:
        """The steps, in order."""
        return sorted(self.steps)


def _grid_kind(grid: Any) -> str:
    listed = isinstance(grid, Mapping) and "steps" in grid
    return TAG + ("found" if isinstance(grid, str) else "listed" if listed else "even")


AnyGrid = Annotated[
    Annotated[Literal["discover"], Tag(TAG + "found")]
    | Annotated[ListedGrid, Tag(TAG + "listed")]
    | Annotated[EvenGrid, Tag(TAG + "even")],
    Discriminator(_grid_kind),
]


class Integrity(Section):
    """What is done where revisions are not what their names say, by kind of finding."""

    duplicate: Severity = key("Equal weights under two steps, other than 0 and 1.", "stop")
    final_weights_early: Severity = key(
        "Weights of the end of training under an earlier step.", "stop"
    )
    stale_shard: Severity = key("Tensors of another step among those of a step.", "stop")
    swapped_steps: Severity = key("Two steps in each other's place.", "stop")
    foreign_series: Severity = key("Weights of another training run.", "stop")
    missing: Severity = key("A revision that cannot be had; tables show it as NA.", "warn")


# The model and its text.


class Architecture(Section):
    """Shape of the model; for checks before any download and for make plan."""

    hidden_size: int = key("Width of the residual stream.", ge=4)
    num_layers: PositiveInt = key("Transformer blocks.")
    num_heads: PositiveInt = key("Attention heads; divides hidden_size.")
    max_length: int = key("Longest sequence in tokens.", ge=2)

    def _mistakes(self) -> Mistakes:
        if self.hidden_size % self.num_heads:
            yield "num_heads", f"{self.num_heads} does not divide hidden_size {self.hidden_size}"


class FoundArchitecture(Architecture):
    """Shape of a model that was trained elsewhere."""

    family: Text = key("Its name in transformers.", "gpt_neox")
    vocab_size: PositiveInt = key(
        "Rows of the embedding, which may be more than the tokenizer has entries; 50304 as Pythia "
        "has where left out. Where given, token ids at or above it are refused.", None,
    )  # fmt: skip
    dtype: Literal["float16", "bfloat16", "float32"] = key(
        "Of the published weights, which their size follows from.", "float16"
    )
    intermediate_size: PositiveInt = key("Width inside the MLP; by default 4 hidden sizes.", None)


class PackageText(Section):
    """Text of installed packages, split by document."""

    source: Literal["packages"] = key("Text of installed packages.")
    documents: Literal["docstrings", "modules"] = key(
        "What a document is: a docstring, or the whole source of a module.", "docstrings"
    )
    packages: Annotated[
        list[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_installed)]],
        AfterValidator(_unique),
    ] = key("Import names of installed packages, in order.", min_length=1)
    min_characters: PositiveInt = key("Shorter documents are left out.")
    validation_fraction: float = key(
        "Fraction of the documents held out for validation.", gt=0, lt=1
    )
    seed: Seed = key("Seed of shuffling and split.")


class TextFile(Section):
    """A local file (path) or a file of a hub dataset (repo and file).

    The name ends in .jsonl or .json (one object a line), .parquet or .txt; all but parquet also
    with .zst or .gz after it. In a text file a document is a paragraph, the lines between two
    blank ones.
    """

    path: Annotated[FilePath, AfterValidator(_ending)] = key(
        "Local file; seen from the working directory.", None
    )
    repo: Repo = key("Hub dataset.", None)
    file: Annotated[FilePath, AfterValidator(_inside), AfterValidator(_ending)] = key(
        "File in it; never replaced by another.", None
    )
    revision: Reference = key("Branch, tag or commit of the dataset.", "main")
    field: Text = key("Field or column that holds a document's text.", "text")

    def _mistakes(self) -> Mistakes:
        given = self.model_fields_set - {"field", "revision"}
        if given not in ({"path"}, {"repo", "file"}):
            has = ", ".join(sorted(given)) or "no file"
            yield "", f"has {has}; valid: path, or repo and file"
        if "path" in given and "revision" in self.model_fields_set:
            yield "revision", "goes with repo and file, not with path"


class FileText(Section):
    """Documents of named files.

    Each split has an ordered list of sources, and the first that can be had is taken;
    data/text.json says which, and why others were not. Training leaves out every document that
    validation holds, so both may name the same file. train is read only where the suite has
    batches for it.
    """

    source: Literal["files"] = key("Documents of named files.")
    validation: list[TextFile] = key("Sources, the first that can be had.", min_length=1)
    train: list[TextFile] = key("Sources, the first that can be had.", None, min_length=1)
    characters_per_token: PositiveInt = key(
        "Characters that are collected for each token that the batches need. Text in which a "
        "token stands for more needs a higher number.", 8,
    )  # fmt: skip


class TrainedTokenizer(Section):
    """A byte-level BPE that is trained on the suite's text."""

    vocab_size: int = key("Entries of the byte-level BPE.", ge=257)


class HubTokenizer(Section):
    """A hub model's tokenizer."""

    repo: Repo = key("Hub model whose tokenizer.json is used.")
    revision: Reference = key("Its branch, tag or commit.", "main")
    end_of_text: Text = key("Token after each document; <|endoftext|> where left out.", None)


class LocalTokenizer(HubTokenizer):
    """A file's tokenizer or a hub model's; without path or repo the one beside the checkpoints."""

    repo: Repo = key("Hub model whose tokenizer.json is used.", None)
    path: FilePath = key("A tokenizer.json, or a folder that has one.", None)

    def _mistakes(self) -> Mistakes:
        if self.repo and self.path:
            yield "", "has repo, path; valid with source local: no key or repo or path"


class Batches(Section):
    """Fixed token sequences, cut from the documents without padding."""

    sequences: PositiveInt = key("Number of sequences.")
    length: int = key("Tokens per sequence.", ge=2)
    end_of_text: StrictBool = key("An end-of-text token after each document.", True)
    document_start: StrictBool = key(
        "true: each sequence is the start of one document, and shorter documents are left out. "
        "false: documents one after another, cut every length tokens.", False,
    )  # fmt: skip
    longest_document: PositiveInt = key("Documents of more tokens are left out.", None)
    sha256: str = key(
        "sha256 of the token file, by which the same data is known on another machine; another "
        "one is an error.", None, pattern="^[0-9a-f]{64}$",
    )  # fmt: skip

    def _mistakes(self) -> Mistakes:
        longest = self.longest_document
        if self.document_start and longest is not None and longest < self.length:
            yield (
                "longest_document",
                f"{longest} is below length {self.length}: document_start would leave no document",
            )


class Splits(Section):
    """Sequences for measuring and for training."""

    validation: Batches = key("Sequences that every measurement is made on.")
    train: Batches = key("Sequences that training and forks are made with.", None)


# Training, probes and forks.


class Training(Section):
    """How the suite was trained; forks continue with the same numbers."""

    seed: Seed = key("Seed of initialisation and data order.")
    schedule: Literal["cosine", "cosine_neox_v1"] = key(
        "cosine is the paper's formula; cosine_neox_v1 is what Pythia really ran."
    )
    lr_max: float = key("Highest learning rate.", gt=0)
    lr_min: float = key("Lowest learning rate after the warm-up.", ge=0)
    warmup_steps: Step = key("Steps of the linear warm-up.")
    batch_size: PositiveInt = key("Sequences per update.")
    beta1: float = key("Adam's beta1.", ge=0, lt=1)
    beta2: float = key("Adam's beta2.", ge=0, lt=1)
    eps: float = key("Adam's epsilon.", gt=0)
    weight_decay: float = key("Decoupled; not on biases and norms.", ge=0)
    clip_norm: float = key("Largest norm of the gradient.", gt=0)
    save_every: PositiveInt = key(
        "Updates between two saved states, from which a killed job goes on."
    )

    def _mistakes(self) -> Mistakes:
        if self.lr_min > self.lr_max:
            yield "lr_min", f"{self.lr_min} is above lr_max {self.lr_max}"


_Ends = Annotated[list[PositiveInt], AfterValidator(_unique), Field(min_length=1)]
_ENDS = "Steps at which one training job hands over to the next; the last is grid.last."


class TrainingHere(Training):
    """How the suite is trained here; forks continue with the same numbers."""

    jobs_end_at: _Ends = key(_ENDS)


class TrainingOnce(Training):
    """How a published suite was trained."""

    jobs_end_at: _Ends = key(_ENDS, None)


class Compute(Section):
    """How forks compute a gradient; measurements are always float32 without TF32."""

    precision: Literal["float32", "bf16"] = key(
        "bf16 runs the forward pass under autocast.", "float32"
    )
    tf32: StrictBool = key("Allow TF32 in training on CUDA.", False)
    micro_batch: PositiveInt = key(
        "Sequences per forward pass, for less memory; all of a batch where left out.", None
    )
    attention: Literal["sdpa", "eager"] = key("Attention implementation of transformers.", "sdpa")


class Probe(Section):
    """Which quantizers are measured, and how."""

    low_bit: str = key("The quantizer whose collapse is audited.")
    high_bit: str = key("The quantizer it is held against.")
    batch_size: PositiveInt = key("Validation sequences per forward pass.")
    steps_per_job: PositiveInt = key("Revisions that one job works on.")
    resamples: Resamples = key("Bootstrap resamples of gap intervals.")

    def _mistakes(self) -> Mistakes:
        if self.low_bit == self.high_bit:
            yield (
                "",
                f"low_bit and high_bit are both {self.low_bit!r}; they must be two quantizers",
            )


class Kurtosis(Section):
    """Kurtosis of the weights."""

    layers: Layers = key("Which linear layers are measured.")


class Phases(Section):
    """Steps of convergence and onset."""

    resamples: Resamples = key("Bootstrap resamples of step intervals.")


class PhaseResolved(Section):
    """Dense probes through the last cycles of OLI, for both orders of its phases."""

    cycles: PositiveInt = key("Cycles at the end of the fork.")
    probe_every: PositiveInt = key("Updates between two probes.")


class Pilot(Section):
    """The pilot of appendix B, on shorter sequences, and the arms that take it apart."""

    length: int = key("Tokens per sequence.", ge=2)
    steps: PositiveInt = key("Updates of each arm.")
    probe_every: PositiveInt = key("Updates between two probes.")
    rewarm_steps: PositiveInt = key("Updates over which the rewarmed arms' rate rises.")

    def _mistakes(self) -> Mistakes:
        if self.steps % self.probe_every:
            yield "probe_every", f"{self.probe_every} does not divide pilot.steps {self.steps}"


_Seeds = Annotated[list[Seed], AfterValidator(_unique), Field(min_length=1)]


class Primary(Section):
    """The one comparison that is named beforehand; all other tests are exploratory."""

    test: Literal["paired t", "Welch t", "pairwise wins"] = key("Test, the run being the unit.")
    comparison: str = key("A condition against the control, such as `sgdr v cosine`.")
    unit: Literal["seed"] = key("What counts as one observation.")
    measure: Literal["cooled_gap_pct", "final_gap_pct", "mean_gap_pct"] = key(
        "Low-bit gap in percent: after the cool-down, at the last probe, or over all probes."
    )


class Fork(Section):
    """Training that leaves the run under another schedule."""

    start: Step = key("Revision that the forks leave from.")
    steps: PositiveInt = key("Updates of each fork.")
    probe_every: PositiveInt = key("Updates between two probes.")
    phase_resolved: PhaseResolved
    batch_size: PositiveInt = key("Sequences per update.")
    keep_checkpoints: StrictBool = key(
        "Whether weights of forks stay on disk once they are measured, so that another quantizer "
        "needs no training; by default with source pretrain only.",
        None,
    )
    optimizer_state: Literal["fresh", "rewarmed", "restored"] = key(
        "Adam's moments at the fork; restored needs a state of the run at start."
    )
    rewarm_steps: PositiveInt = key(
        "Updates over which the rate rises from zero; with optimizer_state rewarmed.", None
    )
    seeds: _Seeds = key("Each seed is one data order.")
    schedules: dict[Name, AnySchedule] = key(
        "Conditions by name; the name is part of the fork's file name.", min_length=1
    )
    cooldown_steps: PositiveInt = key(
        "Updates of the branch that every fork gets after its end, a straight line from the "
        "run's rate there to its lr_min, so that forks are compared at equal rates.",
        None,
    )
    primary: Primary = None
    pilot: Pilot = None
    amplitudes: Annotated[list[Annotated[float, Field(gt=0)]], AfterValidator(_unique)] = key(
        "Lambdas of OLI that are tried at its own cadence and at SGDR's.", None, min_length=1
    )
    rivals: dict[Name, AnyRival] = key("Conditions that the paper does not have, by name.", None)
    rival_seeds: _Seeds = key(
        "Data orders of rivals, amplitudes and pilot; seeds where left out.", None
    )

    def _mistakes(self) -> Mistakes:
        if self.steps % self.probe_every:
            yield "probe_every", f"{self.probe_every} does not divide fork.steps {self.steps}"
        if (probes := self.steps // self.probe_every) > MOST_REVISIONS:
            yield "probe_every", f"{probes} probes of a fork; at most {MOST_REVISIONS}"
        if (self.optimizer_state == "rewarmed") != (self.rewarm_steps is not None):
            yield (
                "rewarm_steps",
                "goes with optimizer_state rewarmed, and always with it; optimizer_state is "
                f"{self.optimizer_state}",
            )
        control = self.schedules.get("cosine")
        if control is None:
            yield "schedules", "lacks cosine, the control that others are held against"
        elif control.kind != "cosine":
            yield (
                "schedules.cosine.kind",
                f"{control.kind!r} is not valid for the control that others are held against; "
                "valid: cosine",
            )
        with_phases = {n: s for n, s in self.schedules.items() if s.kind == "oli"}
        for name, schedule in with_phases.items():
            yield from self._unresolved(name, self.phase_resolved.cycles * schedule.period)
        if self.amplitudes and not with_phases:
            yield "amplitudes", "needs a schedule of kind oli in fork.schedules"
        yield from self._mistaken_conditions()

    def _unresolved(self, name: str, span: int) -> Mistakes:
        resolved = self.phase_resolved
        if span > self.steps or span % resolved.probe_every:
            yield (
                "phase_resolved",
                f"{resolved.cycles} cycles of schedules.{name} are {span} steps; that must be at "
                f"most fork.steps {self.steps} and a multiple of probe_every "
                f"{resolved.probe_every}",
            )

    def _mistaken_conditions(self) -> Mistakes:
        for section in ("schedules", "rivals"):
            for name, condition in (getattr(self, section) or {}).items():
                if section == "rivals" and (
                    name in self.schedules or name.startswith(("pilot_", "oli_x"))
                ):
                    yield (
                        f"rivals.{name}",
                        "this name is taken; valid: a name that is not in fork.schedules and "
                        "begins neither with pilot_ nor with oli_x",
                    )
                if not isinstance(condition, AverageKind):
                    for below, text in condition.mistakes(self.steps):
                        yield f"{section}.{name}.{below}", text

    def off_the_run(self, steps: Sequence[int]) -> Mistakes:
        """What does not go with the revisions ``steps`` of the run."""
        yield from _off_grid("start", [self.start], steps)
        for name, rival in (self.rivals or {}).items():
            if isinstance(rival, AverageKind):
                for below, text in rival.mistakes(steps, self.start, self.start + self.steps):
                    yield f"rivals.{name}.{below}", text


# Beyond the paper.


class Measured(Section):
    """Which revisions a measurement looks at."""

    every: PositiveInt = key("Every n-th revision, counted back from the last.", None)
    steps: Annotated[list[Step], AfterValidator(_unique)] = key(
        "Revisions one by one, instead of every.", None, min_length=1
    )

    def _mistakes(self) -> Mistakes:
        if (self.every is None) == (self.steps is None):
            yield "", "takes every or steps; one of them"
        if self.steps and self.steps != sorted(self.steps):
            yield "steps", f"{self.steps} must rise"


class MeasuredInJobs(Measured):
    """A measurement on validation sequences, in jobs."""

    steps_per_job: PositiveInt = key("Revisions that one job works on.")
    sequences: int = key("Validation sequences that are used.", ge=2)


_Bits = Annotated[int, Field(ge=2, le=8)]


class Factorial(MeasuredInJobs):
    """Every combination of bits, symmetry and granularity."""

    bits: Annotated[list[_Bits], AfterValidator(_unique)] = key("Bits per weight.", min_length=2)
    group_sizes: Annotated[list[PositiveInt], AfterValidator(_unique)] = key(
        "Groups besides per tensor and per channel."
    )
    formats: Annotated[list[Literal["nf4", "mxfp4", "nvfp4"]], AfterValidator(_unique)] = key(
        "Four-bit formats with a code book."
    )


class Sensitivity(MeasuredInJobs):
    """Rounding noise, and what the loss makes of it."""

    draws: Step = key("Draws of each control noise.")


class Curvature(MeasuredInJobs):
    """Largest eigenvalue and trace of the Hessian."""

    draws: int = key("Random vectors for the trace.", ge=2)


class Activations(MeasuredInJobs):
    """Kurtosis and rounding of activations; anisotropy."""

    bits: _Bits = key("Bits per activation.")


class PhaseFlips(Section):
    """Codes that flip in phases of OLI; not made without a schedule of kind oli."""

    cycles: PositiveInt = key("Cycles of OLI from the fork point.")


class Replication(Section):
    """Small runs like the suite's own; with source pretrain only."""

    widths: Annotated[list[Annotated[int, Field(ge=4)]], AfterValidator(_unique)] = key(
        "Hidden sizes.", min_length=1
    )
    seeds: _Seeds = key("Each is one initialisation and data order.")
    weight_decays: Annotated[list[Annotated[float, Field(ge=0)]], AfterValidator(_unique)] = key(
        "Each makes runs of its own; the suite's own where left out.", None,
        min_length=1,
    )  # fmt: skip
    spacing: PositiveInt = key("Updates between two probes.")
    last: PositiveInt = key("Updates of a run; a multiple of spacing.", None)
    tokens_per_weight: PositiveInt = key(
        "Length of a run in tokens per weight of its blocks, instead of last.", None
    )
    train_sequences: PositiveInt = key("The part of the text it sees; all of it by default.", None)
    sequences: int = key("Validation sequences that are used.", ge=2)
    low_bit: str = key("Quantizer that the runs are probed with.")

    def _mistakes(self) -> Mistakes:
        if (self.last is None) == (self.tokens_per_weight is None):
            yield "", "takes last or tokens_per_weight; one of them"
        elif self.last and self.last % self.spacing:
            yield "last", f"{self.last} is no multiple of spacing"


class Mechanism(Section):
    """Measurements beyond the paper (target extended); what is absent is not measured."""

    batch_size: PositiveInt = key("Validation sequences per pass; divides sequences.")
    factorial: Factorial = None
    layers: MeasuredInJobs = key("One matrix alone, and all but one.", None)
    sensitivity: Sensitivity = None
    curvature: Curvature = None
    activations: Activations = None
    drift: Measured = key("Positions in the grid, codes that flip, distances.", None)
    phase_flips: PhaseFlips = None
    replication: Replication = None
    second_arm: str = key("Suite whose replication the target extended makes as well.", None)

    def _mistakes(self) -> Mistakes:
        for measure in ("sensitivity", "curvature"):
            entry = getattr(self, measure)
            if entry and entry.sequences % self.batch_size:
                yield (
                    f"{measure}.sequences",
                    f"{entry.sequences} is no multiple of mechanism.batch_size {self.batch_size}",
                )

    def off_the_run(self, steps: Sequence[int] | None, sequences: int) -> Mistakes:
        """What does not go with the run's revisions and its number of validation sequences."""
        for measure in type(self).model_fields:
            entry = getattr(self, measure)
            if getattr(entry, "sequences", 0) > sequences:
                yield f"{measure}.sequences", f"{entry.sequences}; the suite has {sequences}"
            if steps and isinstance(entry, Measured):
                yield from _off_grid(f"{measure}.steps", entry.steps or [], steps)


def _off_grid(place: str, wanted: Sequence[int], steps: Sequence[int]) -> Mistakes:
    for step in wanted:
        if step not in steps:
            around = " and ".join(str(s) for s in nearest(step, steps))
            yield place, f"step {step} is not on the grid; nearest: {around}"


# Suites.


class Suite(Section):
    """What every suite has, wherever its checkpoints come from."""

    label: Annotated[str, _fits(_LABEL, "text without line breaks and < > ` $ \\")] = key(
        "Name in every title and caption; no markup."
    )
    is_paper_model: StrictBool = key("Whether the paper's numbers are about this very model.")
    device: Literal["auto", "cpu", "cuda", "mps"] = key(
        "Where models run; auto takes the first of cuda, mps and cpu that is there."
    )
    threads: PositiveInt = key("CPU threads of a training or probing job.")
    grid: AnyGrid = key(
        "Which revisions there are: by formula, by list, or discover, as they are found."
    )
    architecture: FoundArchitecture = None
    text: one_of("source", PackageText, FileText) = key("Where documents come from.")
    tokenizer: HubTokenizer
    batches: Splits
    training: Training = None
    compute: Compute = None
    probe: Probe
    kurtosis: Kurtosis
    fork: Fork = None
    phases: Phases
    mechanism: Mechanism = None
    tokens_per_step: PositiveInt = key("Tokens per update, where training does not say.", None)
    integrity: Integrity = None

    states: ClassVar[bool] = False  # whether training states are left at training.jobs_end_at

    @property
    def steps(self) -> list[int] | None:
        """Revisions in order; ``None`` where they are to be found."""
        return None if self.grid == "discover" else self.grid.steps_of_run()

    @property
    def last(self) -> int | None:
        """Last step of the run, where it is known."""
        return None if self.grid == "discover" else self.grid.last or max(self.grid.steps)

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        rows = getattr(self.architecture, "vocab_size", None)
        return rows or getattr(self.tokenizer, "vocab_size", PYTHIA_VOCABULARY)

    def _mistakes(self) -> Mistakes:
        if self.fork:
            why = "needed for its forks, which continue it"
            if self.training is None:
                yield "", f"lacks training, {why}"
            if self.batches.train is None:
                yield "", f"lacks batches.train, {why}"
        if isinstance(self.text, FileText) and self.batches.train and not self.text.train:
            yield "text", "lacks train, needed for batches.train"
        yield from self._mistaken_sizes()
        if self.training and self.last and self.training.warmup_steps >= self.last:
            yield (
                "training.warmup_steps",
                f"{self.training.warmup_steps} is not below the suite's last step {self.last}",
            )
        if self.fork:
            yield from self._mistaken_fork()
        if self.mechanism:
            held = self.batches.validation.sequences
            for place, text in self.mechanism.off_the_run(self.steps, held):
                yield f"mechanism.{place}", text

    def _mistaken_sizes(self) -> Mistakes:
        splits = {"validation": self.batches.validation, "train": self.batches.train}
        for split, batches in splits.items():
            longest = self.architecture and self.architecture.max_length
            if batches and longest and batches.length > longest:
                yield (
                    f"batches.{split}.length",
                    f"{batches.length} is longer than architecture.max_length {longest}",
                )
        for place, what, size in self._sizes():
            if size > MOST_BYTES:
                yield (
                    place,
                    f"{what} would take {size:.3g} bytes of memory; at most {MOST_BYTES:.3g}",
                )

    def _sizes(self) -> Iterator[tuple[str, str, int]]:
        """Key, name and bytes of what is held in memory at once."""
        rows, validation, train = self.vocabulary, self.batches.validation, self.batches.train
        for split, batches in (("validation", validation), ("train", train)):
            if batches:
                yield f"batches.{split}", "its tokens", 4 * batches.sequences * batches.length
        logits = 4 * rows * validation.length
        yield "probe.batch_size", "logits of a batch", logits * self.probe.batch_size
        if shape := self.architecture:
            width = shape.hidden_size
            weights = 12 * shape.num_layers * width**2 + 2 * rows * width
            yield "architecture", "weights in float32", 4 * weights
        if self.fork and train:
            at_once = (self.compute and self.compute.micro_batch) or self.fork.batch_size
            logits = 4 * rows * train.length * min(at_once, self.fork.batch_size)
            yield "fork.batch_size", "logits of a batch", logits

    def _mistaken_fork(self) -> Mistakes:
        fork, steps = self.fork, self.steps
        for place, text in fork.off_the_run(steps) if steps else ():
            yield f"fork.{place}", text
        ends = getattr(self.training, "jobs_end_at", None) or []
        if fork.optimizer_state == "restored" and fork.start not in ends:
            needs = f"restored needs a training state at step {fork.start}"
            if self.states:
                more = "add it to training.jobs_end_at or use fresh"
            else:
                more = (
                    f"which a suite with source {self.source} does not have; valid: fresh, rewarmed"
                )
            yield "fork.optimizer_state", f"{needs}{';' if self.states else ','} {more}"
        if pilot := fork.pilot:
            whole = self.batches.train.length
            if whole % pilot.length or pilot.length == whole:
                yield (
                    "fork.pilot.length",
                    f"{pilot.length} must divide batches.train.length {whole} and be shorter",
                )

    def mistaken_quantizers(self, quantizers: Mapping[str, Any]) -> Mistakes:
        """What is not among the quantizers of the configuration, or has more bits as low_bit."""
        probe = self.probe
        for role in ("low_bit", "high_bit"):
            name = getattr(probe, role)
            if name not in quantizers:
                yield f"probe.{role}", f"{name!r} is not known; {suggest(name, list(quantizers))}"
                return
        low, high = (getattr(quantizers[n], "bits", 4) for n in (probe.low_bit, probe.high_bit))
        if low > high:
            yield (
                "probe",
                f"low_bit {probe.low_bit!r} has {low} bits, high_bit {probe.high_bit!r} {high}; "
                "low_bit must not have more",
            )


class PretrainSuite(Suite):
    """A model that is trained here."""

    source: Literal["pretrain"] = key("Trained here.")
    architecture: Architecture
    tokenizer: TrainedTokenizer
    training: TrainingHere

    states: ClassVar[bool] = True

    def _mistakes(self) -> Mistakes:
        if not isinstance(self.grid, EvenGrid):
            kind = "discover" if self.grid == "discover" else "steps"
            yield "grid", f"{kind} goes with source hub or local"
        yield from super()._mistakes()
        if self.batches.train is None:
            yield "", "lacks batches.train, needed for source pretrain"
        ends, last = self.training.jobs_end_at, self.grid.last
        yield from _off_grid("training.jobs_end_at", ends, self.steps)
        if ends != sorted(ends) or ends[-1] != last:
            yield "training.jobs_end_at", f"{ends} must rise and end at the last step {last}"
        if self.mechanism and self.mechanism.replication:
            yield from self._mistaken_replication(self.mechanism.replication)

    def _mistaken_replication(self, entry: Replication) -> Mistakes:
        heads, held = self.architecture.num_heads, self.batches.train.sequences
        for width in entry.widths:
            if width % heads:
                yield "mechanism.replication.widths", f"num_heads {heads} does not divide {width}"
        if (entry.train_sequences or 0) > held:
            yield (
                "mechanism.replication.train_sequences",
                f"{entry.train_sequences}; the suite has {held}",
            )

    def _sizes(self) -> Iterator[tuple[str, str, int]]:
        yield from super()._sizes()
        length = self.batches.train.length if self.batches.train else 0
        logits = 4 * self.vocabulary * length * self.training.batch_size
        yield "training.batch_size", "logits of a batch", logits

    def mistaken_quantizers(self, quantizers: Mapping[str, Any]) -> Mistakes:  # noqa: D102
        yield from super().mistaken_quantizers(quantizers)
        if entry := self.mechanism and self.mechanism.replication:
            place = "mechanism.replication"
            if (name := entry.low_bit) not in quantizers:
                hint = suggest(name, list(quantizers))
                yield f"{place}.low_bit", f"{name!r} is not known; {hint}"
                return
            size = getattr(quantizers[name], "group_size", None) or 1
            if (width := min(entry.widths)) < size:
                yield f"{place}.widths", f"{width} is below the group size {size} of low_bit"


class HubSuite(Suite):
    """A model of the Hugging Face hub."""

    source: Literal["hub"] = key("Revisions of a model of the Hugging Face hub.")
    repo: Repo = key("Hub repository.")
    revision: Annotated[Text, AfterValidator(_branches)] = key(
        "Regular expression of branches with a group step; by default Pythia's names.", None
    )


class LocalSuite(Suite):
    """One's own checkpoints."""

    source: Literal["local"] = key("One's own files.")
    pattern: Annotated[Text, AfterValidator(_pattern)] = key(
        "Folders of one's own checkpoints, {step} in place of the step."
    )
    tokenizer: LocalTokenizer


class PublishedTokenizer(LocalTokenizer):
    """The tokenizer of the suite whose measurements are frozen."""

    vocab_size: int = key("Entries of the byte-level BPE.", None, ge=257)


class PublishedSuite(Suite):
    """Frozen measurements; without checkpoints."""

    source: Literal["published"] = key("No checkpoints, only what was measured of them.")
    measurements: FilePath = key("Folder of frozen measurements.")
    tokenizer: PublishedTokenizer
    training: TrainingOnce = None


SUITES = (PretrainSuite, HubSuite, LocalSuite, PublishedSuite)


class Config(Section):
    """Configuration of the workflow; closed at every level."""

    suite: str = key("Name of the suite that is built when no target is named.")
    quantizers: dict[Name, AnyQuantizer] = key(
        "Quantizers by name; suites refer to them.", min_length=1
    )
    suites: dict[SuiteName, one_of("source", *SUITES)] = key(
        "Training runs by name; the name is a folder under results/.", min_length=1
    )

    def _mistakes(self) -> Mistakes:
        if self.suite not in self.suites:
            yield "suite", f"{self.suite!r} is not known; {suggest(self.suite, list(self.suites))}"
        if FP32 in self.quantizers:
            yield f"quantizers.{FP32}", "this name is taken by full precision"
        if PRINTED_SUITE in self.suites:
            yield f"suites.{PRINTED_SUITE}", "this name is taken by the printed tables"
        for name, suite in self.suites.items():
            for place, text in suite.mistaken_quantizers(self.quantizers):
                yield f"suites.{name}.{place}", text
