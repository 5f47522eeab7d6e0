"""Every key of the configuration: its meaning, unit, default and check, one class a section.

``config.loading`` reads configurations and says what these classes refuse in one line.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, StrictBool, Tag

from flatminima.config_section import LARGEST_COUNT, Count, Factor, Mistakes, Section, key
from flatminima.errors import suggest
from flatminima.quantizer_specs import FP32, AnyQuantizer, Layers
from flatminima.revisions import check_pattern
from flatminima.schedules import AnyRival, AnySchedule, AverageKind, OscillatoryLockIn
from flatminima.text.corpus import file_format, package_root, package_versions

PRINTED_SUITE = "paper"  # results/paper holds the verdicts on the paper's own tables
CONTROL = "cosine"  # the condition that every other is compared with
PYTHIA_VOCABULARY = 50_304
MOST_REVISIONS = 10_000
MOST_BYTES = 2**40  # of one array or model in memory

# Types of values.


def _passes(check: Callable[[Any], object]) -> AfterValidator:
    """A value that ``check`` has nothing against; it raises ``ValueError``."""

    def checked(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(checked)


def _once(values: list) -> None:
    if twice := [value for number, value in enumerate(values) if value in values[:number]]:
        raise ValueError(f"{values} has {twice[0]!r} twice")


def _installed(package: str) -> None:
    try:
        package_root(package)
        package_versions([package])
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error


def _branches(value: str) -> None:
    try:
        groups = re.compile(value).groupindex
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression ({error})") from error
    if "step" not in groups:
        raise ValueError(f"{value!r} has no group (?P<step>...) for the step")


Unique = _passes(_once)
Text = Annotated[str, Field(min_length=1)]
# One line without markup, for titles in Markdown, LaTeX and HTML.
Label = Annotated[str, Field(pattern=r"^[^<>`$\\\n\r]+$")]
FilePath = Annotated[str, Field(pattern=r"^[^{}\n\r]+$")]  # no wildcard of a rule
DocumentFile = Annotated[FilePath, _passes(file_format)]
SuiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]
Package = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$"), _passes(_installed)]
Packages = Annotated[list[Package], Unique, Field(min_length=1)]
Repo = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?$")]
Reference = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$")]
Step = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Steps = Annotated[list[Step], Unique, Field(min_length=1)]
Size = Annotated[int, Field(ge=2, le=LARGEST_COUNT)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Seeds = Annotated[list[Seed], Unique, Field(min_length=1)]
Ratios = Annotated[list[Factor], Unique, Field(min_length=1)]
Decay = Annotated[float, Field(ge=0, le=1000)]
Decays = Annotated[list[Decay], Unique, Field(min_length=1)]
Sizes = Annotated[list[Count], Unique]
Bits = Annotated[int, Field(ge=2, le=8)]
Resamples = Annotated[int, Field(ge=20, le=100_000)]
Format = Literal["nf4", "mxfp4", "nvfp4"]
Severity = Literal["stop", "warn", "ignore"]
Precision = Literal["float32", "bf16"]


# Revisions.


def nearest(step: int, steps: Sequence[int]) -> str:
    """The one or two members of the sorted ``steps`` around ``step``, for messages."""
    first = max(0, bisect_left(steps, step) - 1)
    return " and ".join(map(str, steps[first : first + 2]))


def _below(place: str, mistakes: Mistakes) -> Mistakes:
    return ((f"{place}.{key}", text) for key, text in mistakes)


def _off_grid(place: str, wanted: Sequence[int], steps: Sequence[int]) -> Mistakes:
    for step in wanted:
        if step not in steps:
            yield place, f"step {step} is not on the grid; nearest: {nearest(step, steps)}"


def _too_many_probes(place: str, steps: float, every: int) -> Mistakes:
    """A run of so many ``steps`` that is probed ``every`` so many, where that is too often."""
    probes = int(steps // every)
    if probes > MOST_REVISIONS:
        text = f"{int(steps)} steps, probed every {every}, make {probes} probes"
        yield place, f"{text}; at most {MOST_REVISIONS}"


class EvenGrid(Section):
    """Revisions: step 0, powers of two from 1, then evenly to the end."""

    powers_of_two: Step = key("How many powers of two from 1.")
    spacing: Count = key("Steps between the even revisions.")
    last: Count = key("Last step; a multiple of spacing.")

    def _mistakes(self) -> Mistakes:
        powers, spacing, last = self.powers_of_two, self.spacing, self.last
        if (revisions := last // spacing) > MOST_REVISIONS:
            yield "", f"{revisions} revisions; at most {MOST_REVISIONS}"
        if last % spacing:
            yield "", f"last {last}: must be a multiple of spacing {spacing}"
        if powers > last.bit_length():
            yield "", f"powers_of_two {powers}: 2^{powers - 1} is past {last}"

    @property
    def revisions(self) -> list[int]:
        """Steps in order: 0, 2^0 … 2^(n-1), then every ``spacing`` to ``last``."""
        powers = [2**i for i in range(self.powers_of_two)]
        return sorted({0, *powers, *range(self.spacing, self.last + 1, self.spacing)})


class ListedGrid(Section):
    """A choice of the revisions of a run; with source hub or local."""

    steps: Steps = key("The steps.")
    last: Count = key("Last step of the run; by default the largest of steps.", None)

    def _mistakes(self) -> Mistakes:
        if self.last is not None and self.last < max(self.steps):
            yield "last", f"{self.last} is before step {max(self.steps)} of steps"

    @property
    def revisions(self) -> list[int]:
        """Steps in order."""
        return sorted(self.steps)


def _grid_kind(grid: Any) -> str:
    listed = isinstance(grid, Mapping) and "steps" in grid
    return "found" if isinstance(grid, str) else "listed" if listed else "even"


AnyGrid = Annotated[
    Annotated[Literal["discover"], Tag("found")]
    | Annotated[ListedGrid, Tag("listed")]
    | Annotated[EvenGrid, Tag("even")],
    Discriminator(_grid_kind),
]


class Integrity(Section):
    """What is done where revisions are not what their names say, by kind of finding."""

    duplicate: Severity = key("Equal weights under two steps, other than 0 and 1.", "stop")
    final_weights_early: Severity = key("Weights of the end under an earlier step.", "stop")
    stale_shard: Severity = key("Tensors of another step among those of a step.", "stop")
    swapped_steps: Severity = key("Two steps in each other's place.", "stop")
    foreign_series: Severity = key("Weights of another training run.", "stop")
    missing: Severity = key("A revision that cannot be had; tables show it as NA.", "warn")


# The model and its text.


class Architecture(Section):
    """Shape of the model; for checks before any download and for make plan."""

    hidden_size: int = key("Width of the residual stream.", ge=4, le=LARGEST_COUNT)
    num_layers: Count = key("Transformer blocks.")
    num_heads: Count = key("Attention heads; divides hidden_size.")
    max_length: Size = key("Longest sequence in tokens.")

    def _mistakes(self) -> Mistakes:
        if self.hidden_size % self.num_heads:
            yield "num_heads", f"{self.num_heads} does not divide hidden_size {self.hidden_size}"


class FoundArchitecture(Architecture):
    """Shape of a model that was trained elsewhere."""

    family: Text = key("Its name in transformers.", "gpt_neox")
    vocab_size: Count = key(
        "Rows of the embedding, which may be more than the tokenizer has entries; 50304 as Pythia "
        "has where left out. Where given, token ids at or above it are refused.", None,
    )  # fmt: skip
    dtype: Literal["float16", "bfloat16", "float32"] = key("Of the published weights.", "float16")
    intermediate_size: Count = key("Width inside the MLP; by default 4 hidden sizes.", None)


class PackageText(Section):
    """Text of installed packages, split by document."""

    source: Literal["packages"] = key("Text of installed packages.")
    documents: Literal["docstrings", "modules"] = key("What a document is.", "docstrings")
    packages: Packages = key("Import names of installed packages, in order.")
    min_characters: Count = key("Shorter documents are left out.")
    validation_fraction: float = key("Fraction held out for validation.", gt=0, lt=1)
    seed: Seed = key("Seed of shuffling and split.")


class TextFile(Section):
    """A local file (path) or a file of a hub dataset (repo and file).

    The name ends in .jsonl or .json (one object a line), .parquet or .txt; all but parquet also
    with .zst or .gz after it. In a text file a document is a paragraph, the lines between two
    blank ones.
    """

    path: DocumentFile = key("Local file; seen from the working directory.", None)
    repo: Repo = key("Hub dataset.", None)
    file: DocumentFile = key("File in it; never replaced by another.", None)
    revision: Reference = key("Branch, tag or commit of the dataset.", "main")
    field: Text = key("Field or column that holds a document's text.", "text")

    def _mistakes(self) -> Mistakes:
        given = self.model_fields_set - {"field", "revision"}
        if given not in ({"path"}, {"repo", "file"}):
            yield "", f"has {', '.join(sorted(given)) or 'no file'}; valid: path, or repo and file"
        if self.path and "revision" in self.model_fields_set:
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
    characters_per_token: Count = key(
        "Characters collected for each token needed; more where a token stands for more.", 8
    )


AnyText = Annotated[PackageText | FileText, Field(discriminator="source")]


class TrainedTokenizer(Section):
    """A byte-level BPE that is trained on the suite's text."""

    vocab_size: int = key("Entries of the byte-level BPE.", ge=257, le=LARGEST_COUNT)


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
            yield "", "has repo and path; valid: one of them, or neither"


class Batches(Section):
    """Fixed token sequences, cut from the documents without padding."""

    sequences: Count = key("Number of sequences.")
    length: Size = key("Tokens per sequence.")
    end_of_text: StrictBool = key("An end-of-text token after each document.", True)
    document_start: StrictBool = key(
        "true: each sequence is the start of one document, and shorter documents are left out. "
        "false: documents one after another, cut every length tokens.", False,
    )  # fmt: skip
    longest_document: Count = key("Documents of more tokens are left out.", None)
    sha256: str = key(
        "Of the token file, to be the same on another machine.", None, pattern="^[0-9a-f]{64}$"
    )

    def _mistakes(self) -> Mistakes:
        if self.document_start and (self.longest_document or self.length) < self.length:
            text = f"{self.longest_document} is below length {self.length}"
            yield "longest_document", f"{text}: document_start would leave no document"


class Splits(Section):
    """Sequences for measuring and for training."""

    validation: Batches = key("Sequences that every measurement is made on.")
    train: Batches = key("Sequences that training and forks are made with.", None)


# Training, probes and forks.


class Training(Section):
    """How the suite was trained; forks continue with the same numbers."""

    seed: Seed = key("Seed of initialisation and data order.")
    schedule: Literal["cosine", "cosine_neox_v1"] = key("The paper's formula, or what Pythia ran.")
    lr_max: float = key("Highest learning rate.", gt=0, le=100)
    lr_min: float = key("Lowest learning rate after the warm-up.", ge=0)
    warmup_steps: Step = key("Steps of the linear warm-up.")
    batch_size: Count = key("Sequences per update.")
    beta1: float = key("Adam's beta1.", ge=0, lt=1)
    beta2: float = key("Adam's beta2.", ge=0, lt=1)
    eps: float = key("Adam's epsilon.", gt=0, le=1)
    weight_decay: Decay = key("Decoupled; not on biases and norms.")
    clip_norm: float = key("Largest norm of the gradient.", gt=0, le=1e30)
    save_every: Count = key("Updates between two states that a killed job goes on from.")
    jobs_end_at: Annotated[list[Count], Unique] = key(
        "Where trained here: steps at which one job hands over to the next, to grid.last.", None
    )

    def _mistakes(self) -> Mistakes:
        if self.lr_min > self.lr_max:
            yield "lr_min", f"{self.lr_min} is above lr_max {self.lr_max}"


class Compute(Section):
    """How forks compute a gradient; measurements are always float32 without TF32."""

    precision: Precision = key("bf16 runs the forward pass under autocast.", "float32")
    tf32: StrictBool = key("Allow TF32 in training on CUDA.", False)
    micro_batch: Count = key("Sequences per forward pass; a batch where left out.", None)
    attention: Literal["sdpa", "eager"] = key("Attention implementation of transformers.", "sdpa")


class Probe(Section):
    """Which quantizers are measured, and how."""

    low_bit: str = key("The quantizer whose collapse is audited.")
    high_bit: str = key("The quantizer it is held against.")
    batch_size: Count = key("Validation sequences per forward pass.")
    steps_per_job: Count = key("Revisions that one job works on.")
    resamples: Resamples = key("Bootstrap resamples of gap intervals.")

    def _mistakes(self) -> Mistakes:
        if self.low_bit == self.high_bit:
            yield "", f"low_bit and high_bit are both {self.low_bit!r}; they must be two quantizers"


class Kurtosis(Section):
    """Kurtosis of the weights."""

    layers: Layers = key("Which linear layers are measured.")


class Phases(Section):
    """Steps of convergence and onset."""

    resamples: Resamples = key("Bootstrap resamples of step intervals.")


class PhaseResolved(Section):
    """Dense probes through the last cycles of OLI, for both orders of its phases."""

    cycles: Count = key("Cycles at the end of the fork.")
    probe_every: Count = key("Updates between two probes.")


class Pilot(Section):
    """The pilot of appendix B, on shorter sequences, and the arms that take it apart."""

    length: Size = key("Tokens per sequence.")
    steps: Count = key("Updates of each arm.")
    probe_every: Count = key("Updates between two probes.")
    rewarm_steps: Count = key("Updates over which the rewarmed arms' rate rises.")

    def _mistakes(self) -> Mistakes:
        if self.steps % self.probe_every:
            yield "probe_every", f"{self.probe_every} does not divide pilot.steps {self.steps}"
        yield from _too_many_probes("probe_every", self.steps, self.probe_every)


class Primary(Section):
    """The one comparison that is named beforehand; all other tests are exploratory."""

    test: Literal["paired t", "Welch t", "pairwise wins"] = key("Test, the run being the unit.")
    comparison: str = key("A condition against the control, such as `sgdr v cosine`.")
    unit: Literal["seed"] = key("What counts as one observation.")
    measure: Literal["cooled_gap_pct", "final_gap_pct", "mean_gap_pct"] = key(
        "Low-bit gap after the cool-down, at the last probe, or over all probes."
    )


class Fork(Section):
    """Training that leaves the run under another schedule."""

    start: Step = key("Revision that the forks leave from.")
    steps: Count = key("Updates of each fork.")
    probe_every: Count = key("Updates between two probes.")
    phase_resolved: PhaseResolved
    batch_size: Count = key("Sequences per update.")
    keep_checkpoints: StrictBool = key(
        "Keep weights that were measured, for another quantizer; by default where trained here.",
        None,
    )
    optimizer_state: Literal["fresh", "rewarmed", "restored"] = key("Adam's moments at the fork.")
    rewarm_steps: Count = key("Updates over which a rewarmed fork's rate rises.", None)
    seeds: Seeds = key("Each seed is one data order.")
    schedules: dict[Name, AnySchedule] = key("Conditions by name, a part of file names.")
    cooldown_steps: Count = key(
        "Updates of the line to lr_min after each fork, so that rates are equal.", None
    )
    primary: Primary = None
    pilot: Pilot = None
    amplitudes: Ratios = key("Lambdas of OLI, tried at its own cadence and at SGDR's.", None)
    rivals: dict[Name, AnyRival] = key("Conditions that the paper does not have, by name.", None)
    rival_seeds: Seeds = key("Data orders of all that is not in schedules; else seeds.", None)

    def _mistakes(self) -> Mistakes:
        if self.steps % self.probe_every:
            yield "probe_every", f"{self.probe_every} does not divide fork.steps {self.steps}"
        yield from _too_many_probes("probe_every", self.steps, self.probe_every)
        if (self.optimizer_state == "rewarmed") != (self.rewarm_steps is not None):
            given = f"optimizer_state is {self.optimizer_state}"
            yield "rewarm_steps", f"goes with optimizer_state rewarmed, and always with it; {given}"
        if getattr(self.schedules.get(CONTROL), "kind", None) != "cosine":
            yield "schedules", "lacks cosine, the control of kind cosine"
        every, cycles = self.phase_resolved.probe_every, self.phase_resolved.cycles
        for name, kind in self.oli.items():
            if (span := cycles * kind.period) > self.steps or span % every:
                valid = f"at most fork.steps {self.steps} and a multiple of probe_every {every}"
                text = f"{cycles} cycles of schedules.{name} are {span} steps; valid: {valid}"
                yield "phase_resolved", text
            yield from _too_many_probes("phase_resolved.probe_every", span, every)
        if self.amplitudes and not self.oli:
            yield "amplitudes", "needs a schedule of kind oli in fork.schedules"
        yield from self._mistaken_primary()
        for name in self.rivals or {}:
            if name in self.schedules or name.startswith(("pilot_", "oli_x")):
                yield f"rivals.{name}", "this name is taken, by a schedule, the pilot or amplitudes"
        for section in ("schedules", "rivals"):
            for name, kind in (getattr(self, section) or {}).items():
                if not isinstance(kind, AverageKind):
                    yield from _below(f"{section}.{name}", kind.mistakes(self.steps))

    def _mistaken_primary(self) -> Mistakes:
        """A primary test that statistics.csv would not have."""
        if self.primary is None:
            return
        cooled = self.primary.measure == "cooled_gap_pct"
        if cooled and self.cooldown_steps is None:
            yield "primary.measure", "cooled_gap_pct needs fork.cooldown_steps"
        conditions: list[str] = []
        for name in self.schedules:
            # Probes of a schedule with phases are compared with and without its bumps; the
            # cool-down has no phases.
            phased = name in self.oli and not cooled
            conditions += [f"{name} cool", f"{name} all"] if phased else [name]
        valid = [f"{name} v {CONTROL}" for name in conditions if name != CONTROL]
        if self.primary.comparison not in valid:
            hint = suggest(self.primary.comparison, valid)
            yield "primary.comparison", f"{self.primary.comparison!r} is not known; {hint}"

    @property
    def oli(self) -> dict[str, OscillatoryLockIn]:
        """Schedules with phases, by name."""
        return {n: k for n, k in self.schedules.items() if isinstance(k, OscillatoryLockIn)}

    @property
    def stop(self) -> int:
        """Step after the last update."""
        return self.start + self.steps

    def off_the_run(self, steps: Sequence[int]) -> Mistakes:
        """What does not go with the revisions ``steps`` of the run."""
        yield from _off_grid("start", [self.start], steps)
        for name, rival in (self.rivals or {}).items():
            if isinstance(rival, AverageKind):
                found = rival.mistakes(steps, self.start, self.stop)
                yield from _below(f"rivals.{name}", found)


# Beyond the paper.


class Measured(Section):
    """Which revisions a measurement looks at."""

    every: Count = key("Every n-th revision, counted back from the last.", None)
    steps: Steps = key("Revisions one by one, instead of every.", None)

    def _mistakes(self) -> Mistakes:
        if (self.every is None) == (self.steps is None):
            yield "", "takes every or steps; one of them"
        if self.steps and self.steps != sorted(self.steps):
            yield "steps", f"{self.steps} must rise"


class MeasuredInJobs(Measured):
    """A measurement on validation sequences, in jobs."""

    steps_per_job: Count = key("Revisions that one job works on.")
    sequences: Size = key("Validation sequences that are used.")


class Factorial(MeasuredInJobs):
    """Every combination of bits, symmetry and granularity."""

    bits: Annotated[list[Bits], Unique] = key("Bits per weight.", min_length=2)
    group_sizes: Sizes = key("Groups besides per tensor and per channel.")
    formats: Annotated[list[Format], Unique] = key("Four-bit formats with a code book.")


class Sensitivity(MeasuredInJobs):
    """Rounding noise, and what the loss makes of it."""

    draws: Step = key("Draws of each control noise.")


class Curvature(MeasuredInJobs):
    """Largest eigenvalue and trace of the Hessian."""

    draws: Size = key("Random vectors for the trace.")


class Activations(MeasuredInJobs):
    """Kurtosis and rounding of activations; anisotropy."""

    bits: Bits = key("Bits per activation.")


class PhaseFlips(Section):
    """Codes that flip in phases of OLI; not made without a schedule of kind oli."""

    cycles: Count = key("Cycles of OLI from the fork point.")


def block_weights(width: int, layers: int) -> int:
    """Weights of the linear layers of a GPT-NeoX's blocks."""
    return 12 * width**2 * layers


class Replication(Section):
    """Small runs like the suite's own; with source pretrain only."""

    widths: Sizes = key("Hidden sizes.", min_length=1)
    seeds: Seeds = key("Each is one initialisation and data order.")
    weight_decays: Decays = key("Each makes runs of its own; else the suite's own.", None)
    spacing: Count = key("Updates between two probes.")
    last: Count = key("Updates of a run; a multiple of spacing.", None)
    tokens_per_weight: Count = key("Length in tokens per weight, instead of last.", None)
    train_sequences: Count = key("The part of the text it sees; all of it by default.", None)
    sequences: Size = key("Validation sequences that are used.")
    low_bit: str = key("Quantizer that the runs are probed with.")

    def steps_of(self, suite: "Suite", width: int) -> float:
        """Updates until a run of this width has seen ``tokens_per_weight``."""
        weights = block_weights(width, suite.architecture.num_layers)
        tokens_per_step = suite.training.batch_size * suite.batches.train.length
        return self.tokens_per_weight * weights / tokens_per_step

    def _mistakes(self) -> Mistakes:
        if (self.last is None) == (self.tokens_per_weight is None):
            yield "", "takes last or tokens_per_weight; one of them"
        elif self.last and self.last % self.spacing:
            yield "last", f"{self.last} is not a multiple of spacing"
        if self.last:
            yield from _too_many_probes("spacing", self.last, self.spacing)


class Mechanism(Section):
    """Measurements beyond the paper (target extended); what is absent is not measured."""

    batch_size: Count = key("Validation sequences per pass; divides sequences.")
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
                text = f"is no multiple of mechanism.batch_size {self.batch_size}"
                yield f"{measure}.sequences", f"{entry.sequences} {text}"

    def off_the_run(self, steps: Sequence[int] | None, sequences: int) -> Mistakes:
        """What does not go with the run's revisions and its number of validation sequences."""
        for measure in type(self).model_fields:
            entry = getattr(self, measure)
            if getattr(entry, "sequences", 0) > sequences:
                yield f"{measure}.sequences", f"{entry.sequences}; the suite has {sequences}"
            if steps and isinstance(entry, Measured):
                yield from _off_grid(f"{measure}.steps", entry.steps or [], steps)


# Suites.


class Suite(Section):
    """What every suite has, wherever its checkpoints come from."""

    source: str
    label: Label = key("Name in every title and caption; no markup.")
    is_paper_model: StrictBool = key("Whether the paper's numbers are about this very model.")
    device: Literal["auto", "cpu", "cuda", "mps"] = key(
        "Where models run; auto takes what is there."
    )
    threads: int = key("CPU threads of a training or probing job.", ge=1, le=4096)
    grid: AnyGrid = key("Revisions: by formula, by list, or discover, as they are found.")
    architecture: FoundArchitecture = None
    text: AnyText = key("Where documents come from.")
    tokenizer: HubTokenizer
    batches: Splits
    training: Training = None
    compute: Compute = None
    probe: Probe
    kurtosis: Kurtosis
    fork: Fork = None
    phases: Phases
    mechanism: Mechanism = None
    tokens_per_step: Count = key("Tokens per update, where training does not say.", None)
    integrity: Integrity = None

    def _mistakes(self) -> Mistakes:
        fork, train, validation = self.fork, self.batches.train, self.batches.validation
        if fork and not (self.training and train):
            lacking = "batches.train" if self.training else "training"
            yield "", f"lacks {lacking}, needed for its forks, which continue it"
        if isinstance(self.text, FileText) and train and not self.text.train:
            yield "text", "lacks train, needed for batches.train"
        for split, batches in (("validation", validation), ("train", train)):
            longest = self.architecture and self.architecture.max_length
            if batches and longest and batches.length > longest:
                text = f"{batches.length} is longer than architecture.max_length {longest}"
                yield f"batches.{split}.length", text
        for place, size in self._sizes():
            if size > MOST_BYTES:
                yield place, f"would take {size:.3g} bytes of memory; at most {MOST_BYTES:.3g}"
        steps = [] if self.grid == "discover" else self.grid.revisions
        warmup = self.training and self.training.warmup_steps
        if warmup and steps and warmup >= (last := self.grid.last or steps[-1]):
            yield "training.warmup_steps", f"{warmup} is not below the suite's last step {last}"
        if fork:
            yield from _below("fork", self._mistaken_fork(fork, steps))
        if self.mechanism:
            found = self.mechanism.off_the_run(steps, validation.sequences)
            yield from _below("mechanism", found)
        if fork and self.mechanism and self.mechanism.phase_flips:
            cycles = self.mechanism.phase_flips.cycles
            for name, kind in fork.oli.items():
                if (span := cycles * kind.period) > fork.steps:
                    text = f"{cycles} cycles of fork.schedules.{name} are {span} steps"
                    valid = f"valid: 1 to {fork.steps // kind.period}"
                    yield "mechanism.phase_flips.cycles", f"{text}; {valid}"

    def _sizes(self) -> Iterator[tuple[str, int]]:
        """Bytes of what is held in memory at once, by the key that decides them."""
        held, shape = self.batches, self.architecture
        words = getattr(shape, "vocab_size", None) or getattr(self.tokenizer, "vocab_size", None)
        words = words or PYTHIA_VOCABULARY
        yield "probe.batch_size", 4 * words * self.probe.batch_size * held.validation.length
        if shape:
            inside = block_weights(shape.hidden_size, shape.num_layers)
            yield "architecture", 4 * (inside + 2 * words * shape.hidden_size)
        for split in ("validation", "train"):
            if batches := getattr(held, split):
                yield f"batches.{split}", 4 * batches.sequences * batches.length
        for place, section in (("training", self.training), ("fork", self.fork)):
            at_once = self.compute and self.compute.micro_batch
            if section and held.train and not at_once:
                yield f"{place}.batch_size", 4 * words * section.batch_size * held.train.length

    def _mistaken_fork(self, fork: Fork, steps: Sequence[int]) -> Mistakes:
        yield from fork.off_the_run(steps) if steps else ()
        if fork.optimizer_state == "restored" and fork.start not in self.training_states:
            text = f"restored needs a state of the training at step {fork.start}"
            yield "optimizer_state", f"{text}, with which a job of training.jobs_end_at ends"
        whole = self.batches.train.length
        if fork.pilot and (whole % fork.pilot.length or fork.pilot.length == whole):
            text = f"must divide batches.train.length {whole} and be shorter"
            yield "pilot.length", f"{fork.pilot.length} {text}"

    @property
    def training_states(self) -> list[int]:
        """Steps at which jobs of the suite's own training have left its state."""
        here = self.source in ("pretrain", "published")
        return (here and self.training and self.training.jobs_end_at) or []

    @property
    def tokenizer_source(self) -> Literal["trained", "hub", "file"]:
        """Where the tokenizer comes from: the suite's text, a hub model or a local file."""
        if getattr(self.tokenizer, "vocab_size", None):
            return "trained"
        if getattr(self.tokenizer, "repo", None):
            return "hub"
        return "file"

    @property
    def keeps_forks(self) -> bool:
        """Whether forks keep their weights once they have been measured."""
        if self.fork is None or self.fork.keep_checkpoints is None:
            return self.source == "pretrain"
        return self.fork.keep_checkpoints

    def mistaken_quantizers(self, quantizers: Mapping[str, AnyQuantizer]) -> Mistakes:
        """What is not among the quantizers of the configuration, or has more bits as low_bit."""
        roles = (self.probe.low_bit, self.probe.high_bit)
        named = dict(zip(("probe.low_bit", "probe.high_bit"), roles, strict=True))
        replication = self.mechanism and self.mechanism.replication
        if replication and self.source == "pretrain":
            named["mechanism.replication.low_bit"] = replication.low_bit
        for place, name in named.items():
            if name not in quantizers:
                yield place, f"{name!r} is not known; {suggest(name, quantizers)}"
        low, high = (quantizers[name].bits for name in roles)
        if low > high:
            yield "probe", f"low_bit must not have more bits ({low}) than high_bit ({high})"


class PretrainSuite(Suite):
    """A model that is trained here."""

    source: Literal["pretrain"] = key("Trained here.")
    architecture: Architecture
    tokenizer: TrainedTokenizer
    training: Training

    def _mistakes(self) -> Mistakes:
        if not isinstance(self.grid, EvenGrid):
            yield "grid", "valid with source pretrain: powers_of_two, spacing and last"
        yield from super()._mistakes()
        if self.batches.train is None:
            yield "", "lacks batches.train, needed for source pretrain"
        ends, last = self.training_states, self.grid.last
        yield from _off_grid("training.jobs_end_at", ends, self.grid.revisions)
        if ends != sorted(ends) or last not in ends[-1:]:
            yield "training.jobs_end_at", f"{ends} must rise and end at the last step {last}"
        if entry := self.mechanism and self.mechanism.replication:
            heads, held = self.architecture.num_heads, self.batches.train.sequences
            place = "mechanism.replication"
            for width in entry.widths:
                if width % heads:
                    yield f"{place}.widths", f"num_heads {heads} does not divide {width}"
            if entry.tokens_per_weight:
                steps = entry.steps_of(self, max(entry.widths))
                yield from _too_many_probes(f"{place}.tokens_per_weight", steps, entry.spacing)
            if (entry.train_sequences or 0) > held:
                text = f"{entry.train_sequences}; the suite has {held}"
                yield f"{place}.train_sequences", text


class HubSuite(Suite):
    """A model of the Hugging Face hub."""

    source: Literal["hub"] = key("Revisions of a model of the Hugging Face hub.")
    repo: Repo = key("Hub repository.")
    revision: Annotated[Text, _passes(_branches)] = key(
        "Regular expression of branches with a group step; by default Pythia's names.", None
    )


class LocalSuite(Suite):
    """One's own checkpoints."""

    source: Literal["local"] = key("One's own files.")
    pattern: Annotated[Text, _passes(check_pattern)] = key(
        "Folders of one's own checkpoints, {step} in place of the step."
    )
    tokenizer: LocalTokenizer


class PublishedTokenizer(LocalTokenizer):
    """The tokenizer of the suite whose measurements are frozen."""

    vocab_size: int = key("Entries of the byte-level BPE.", None, ge=257, le=LARGEST_COUNT)


class PublishedSuite(Suite):
    """Frozen measurements; without checkpoints."""

    source: Literal["published"] = key("No checkpoints, only what was measured of them.")
    measurements: FilePath = key("Folder of frozen measurements.")
    tokenizer: PublishedTokenizer


AnySuite = Annotated[
    PretrainSuite | HubSuite | LocalSuite | PublishedSuite, Field(discriminator="source")
]


class Config(Section):
    """Configuration of the workflow; closed at every level."""

    suite: str = key("Name of the suite that is built when no target is named.")
    quantizers: dict[Name, AnyQuantizer] = key("Quantizers by name; suites refer to them.")
    suites: dict[SuiteName, AnySuite] = key("Training runs by name, a folder under results/.")

    def _mistakes(self) -> Mistakes:
        if self.suite not in self.suites:
            yield "suite", f"{self.suite!r} is not known; {suggest(self.suite, list(self.suites))}"
        if FP32 in self.quantizers:
            yield f"quantizers.{FP32}", "this name is taken by full precision"
        if PRINTED_SUITE in self.suites:
            yield f"suites.{PRINTED_SUITE}", "this name is taken by the printed tables"
        for name, suite in self.suites.items():
            yield from _below(f"suites.{name}", suite.mistaken_quantizers(self.quantizers))
            yield from _below(f"suites.{name}", self._mistaken_second_arm(suite))

    def _mistaken_second_arm(self, suite: Suite) -> Mistakes:
        arm = suite.mechanism and suite.mechanism.second_arm
        if arm is None:
            return
        place = "mechanism.second_arm"
        if arm not in self.suites:
            yield place, f"{arm!r} is not known; {suggest(arm, self.suites)}"
        elif not (self.suites[arm].mechanism and self.suites[arm].mechanism.replication):
            yield place, f"suite {arm!r} lacks mechanism.replication"
