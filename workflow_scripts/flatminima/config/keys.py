"""Every key of the configuration: its meaning, unit, default and check, one class per section.

``config.loading`` reads configurations and reports the first mistake in one line.
"""

import os
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

PRINTED_SUITE = "paper"  # results/paper contains the verdicts on the paper's own tables
CONTROL = "cosine"  # the condition with which every other one is compared
PYTHIA_VOCABULARY = 50_304
MOST_REVISIONS = 10_000
MOST_BYTES = 2**40  # of one array or model in memory

# Types of values.


def _passes(check: Callable[[Any], object]) -> AfterValidator:
    """A validator that calls ``check``, which raises ``ValueError`` for a wrong value."""

    def checked(setting: Any) -> Any:
        check(setting)
        return setting

    return AfterValidator(checked)


def _check_unique(members: list) -> None:
    for number, member in enumerate(members):
        if member in members[:number]:
            raise ValueError(f"{members} has {member!r} twice")


def _check_installed(package: str) -> None:
    try:
        package_root(package)
        package_versions([package])
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error


def _check_branch_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression ({error})") from error
    if "step" not in groups:
        raise ValueError(f"{pattern!r} needs a group (?P<step>...) for the step")


Unique = _passes(_check_unique)
Text = Annotated[str, Field(min_length=1)]
# One line without markup, for titles in Markdown, LaTeX and HTML.
Label = Annotated[str, Field(pattern=r"^[^<>`$\\\n\r]+$")]


def _expanded(path: str) -> str:
    """A path in which ``~`` and variables such as ``$HOME`` are what a shell makes of them."""
    return os.path.expandvars(os.path.expanduser(path))


_Expanded = AfterValidator(_expanded)
FilePath = Annotated[str, Field(pattern=r"^[^{}\n\r]+$"), _Expanded]  # braces would be wildcards
DocumentFile = Annotated[FilePath, _passes(file_format)]
SuiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")]
Package = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$"), _passes(_check_installed)]
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
    """The members of the sorted ``steps`` just below and above ``step``, as text for messages."""
    first = max(0, bisect_left(steps, step) - 1)
    return " and ".join(map(str, steps[first : first + 2]))


def _below(place: str, mistakes: Mistakes) -> Mistakes:
    """The mistakes of a subsection, with ``place`` before their keys."""
    for name, text in mistakes:
        yield f"{place}.{name}", text


def _off_grid(place: str, chosen_steps: Sequence[int], steps: Sequence[int]) -> Mistakes:
    for step in chosen_steps:
        if step not in steps:
            yield place, f"step {step} is not on the grid; nearest: {nearest(step, steps)}"


def _too_many_probes(place: str, steps: float, every: int) -> Mistakes:
    """A mistake if a run of ``steps`` updates, probed every ``every`` ones, has too many probes."""
    n_probes = int(steps // every)
    if n_probes > MOST_REVISIONS:
        text = f"{int(steps)} steps, probed every {every}, make {n_probes} probes"
        yield place, f"{text}; at most {MOST_REVISIONS}"


class EvenGrid(Section):
    """Revisions at step 0, at powers of two from 1, then evenly spaced to the end."""

    powers_of_two: Step = key("Number of powers of two, counted from 1.")
    spacing: Count = key("Steps between the evenly spaced revisions.")
    last: Count = key("Last step. A multiple of spacing.")

    def _mistakes(self) -> Mistakes:
        n_revisions = self.last // self.spacing
        if n_revisions > MOST_REVISIONS:
            yield "", f"{n_revisions} revisions; at most {MOST_REVISIONS}"
        if self.last % self.spacing:
            yield "", f"last {self.last}: must be a multiple of spacing {self.spacing}"
        if self.powers_of_two > self.last.bit_length():
            largest_power = f"2^{self.powers_of_two - 1}"
            yield "", f"powers_of_two {self.powers_of_two}: {largest_power} is past {self.last}"

    @property
    def revisions(self) -> list[int]:
        """Steps in order: 0, 2^0 … 2^(n-1), then every ``spacing`` to ``last``."""
        powers = [2**i for i in range(self.powers_of_two)]
        return sorted({0, *powers, *range(self.spacing, self.last + 1, self.spacing)})


class ListedGrid(Section):
    """Chosen revisions of a run. Only for source hub or local."""

    steps: Steps = key("Steps of the revisions.")
    last: Count = key("Last step of the run. Default: the largest of steps.", None)

    def _mistakes(self) -> Mistakes:
        if self.last is not None and self.last < max(self.steps):
            yield "last", f"{self.last} is before step {max(self.steps)} of steps"

    @property
    def revisions(self) -> list[int]:
        """Steps in order."""
        return sorted(self.steps)


def _grid_kind(grid: Any) -> str:
    if isinstance(grid, str):
        return "discovered"
    if isinstance(grid, Mapping) and "steps" in grid:
        return "listed"
    return "even"


AnyGrid = Annotated[
    Annotated[Literal["discover"], Tag("discovered")]
    | Annotated[ListedGrid, Tag("listed")]
    | Annotated[EvenGrid, Tag("even")],
    Discriminator(_grid_kind),
]


class Integrity(Section):
    """Reaction to revisions whose weights do not match their names, by kind of finding."""

    duplicate: Severity = key("Two steps other than 0 and 1 have equal weights.", "stop")
    final_weights_early: Severity = key("An earlier step has the final weights.", "stop")
    stale_shard: Severity = key("Some tensors of a step belong to another step.", "stop")
    swapped_steps: Severity = key("Two steps are exchanged.", "stop")
    foreign_series: Severity = key("The weights belong to another training run.", "stop")
    missing: Severity = key("A revision is not available. Tables show NA.", "warn")


# The model and its text.


class Architecture(Section):
    """Shape of the model, for checks before any download and for make plan."""

    hidden_size: int = key("Width of the residual stream.", ge=4, le=LARGEST_COUNT)
    num_layers: Count = key("Transformer blocks.")
    num_heads: Count = key("Attention heads. Divides hidden_size.")
    max_length: Size = key("Longest sequence in tokens.")

    def _mistakes(self) -> Mistakes:
        if self.hidden_size % self.num_heads:
            text = f"{self.num_heads} must divide hidden_size {self.hidden_size}"
            yield "num_heads", text


class ForeignArchitecture(Architecture):
    """Shape of a model that was trained elsewhere."""

    family: Text = key("Name of the model family in transformers.", "gpt_neox")
    vocab_size: Count = key(
        "Rows of the embedding. May exceed the tokenizer's size. Default: 50304, as in Pythia. "
        "If set, token ids at or above it are refused.",
        None,
    )
    dtype: Literal["float16", "bfloat16", "float32"] = key(
        "dtype of the published weights.", "float16"
    )
    intermediate_size: Count = key("Width inside the MLP. Default: 4 times hidden_size.", None)


class PackageText(Section):
    """Text of installed packages, split by document."""

    source: Literal["packages"] = key("Text of installed packages.")
    documents: Literal["docstrings", "modules"] = key(
        "Kind of text that forms one document.", "docstrings"
    )
    packages: Packages = key("Import names of installed packages, in order.")
    min_characters: Count = key("Shortest document in characters. Shorter ones are left out.")
    validation_fraction: float = key("Fraction held out for validation.", gt=0, lt=1)
    seed: Seed = key("Seed of the shuffle and of the split.")


class TextFile(Section):
    """A local file (path) or a file of a hub dataset (repo and file).

    The name ends in .jsonl or .json (one object per line), .parquet or .txt. All but parquet may
    be compressed (.zst or .gz). In a .txt file a document is a paragraph: the lines between two
    blank lines.
    """

    path: DocumentFile = key("Local file, relative to the working directory.", None)
    repo: Repo = key("Hub dataset.", None)
    file: DocumentFile = key("File in the dataset. No other file is ever used instead.", None)
    revision: Reference = key("Branch, tag or commit of the dataset.", "main")
    field: Text = key("Field or column that contains a document's text.", "text")

    def _mistakes(self) -> Mistakes:
        location_keys = self.model_fields_set - {"field", "revision"}
        if location_keys not in ({"path"}, {"repo", "file"}):
            present = ", ".join(sorted(location_keys)) or "no file"
            yield "", f"has {present}; valid: path, or repo and file"
        if self.path and "revision" in self.model_fields_set:
            yield "revision", "goes with repo and file, not with path"


class FileText(Section):
    """Documents of named files.

    Each split has an ordered list of sources. The first available one is used. The file
    data/{split}_text.json records the choice and why earlier sources were not used. Documents of
    the validation text are left out of the training text, so both splits may name the same file.
    train is read only if the suite has batches.train.
    """

    source: Literal["files"] = key("Documents of named files.")
    validation: list[TextFile] = key("Sources. The first available one is used.", min_length=1)
    train: list[TextFile] = key("Sources. The first available one is used.", None, min_length=1)
    characters_per_token: Count = key(
        "Characters collected per token needed. Raise it if a token has more characters.", 8
    )


AnyText = Annotated[PackageText | FileText, Field(discriminator="source")]


class TrainedTokenizer(Section):
    """A byte-level BPE that is trained on the suite's text."""

    vocab_size: int = key("Entries of the byte-level BPE.", ge=257, le=LARGEST_COUNT)


class HubTokenizer(Section):
    """The tokenizer of a hub model."""

    repo: Repo = key("Hub model whose tokenizer.json is used.")
    revision: Reference = key("Branch, tag or commit of the hub model.", "main")
    end_of_text: Text = key("Token after each document. Default: <|endoftext|>.", None)


class LocalTokenizer(HubTokenizer):
    """A tokenizer from a file or a hub model. With neither key: the one beside the checkpoints."""

    repo: Repo = key("Hub model whose tokenizer.json is used.", None)
    path: FilePath = key("A tokenizer.json, or a folder that contains one.", None)

    def _mistakes(self) -> Mistakes:
        if self.repo and self.path:
            yield "", "has repo and path; valid: one of them, or neither"


class Batches(Section):
    """Fixed token sequences, cut from the documents without padding."""

    sequences: Count = key("Number of sequences.")
    length: Size = key("Tokens per sequence.")
    end_of_text: StrictBool = key("Whether an end-of-text token follows each document.", True)
    document_start: StrictBool = key(
        "true: each sequence is the start of one document, and shorter documents are left out. "
        "false: documents are joined and cut every length tokens.",
        False,
    )
    longest_document: Count = key("Longest document in tokens. Longer ones are left out.", None)
    sha256: str = key(
        "sha256 of the token file, to check it on another machine.", None, pattern="^[0-9a-f]{64}$"
    )

    def _mistakes(self) -> Mistakes:
        if self.document_start and (self.longest_document or self.length) < self.length:
            text = f"{self.longest_document} is below length {self.length}"
            yield "longest_document", f"{text}: document_start would leave no document"


class Splits(Section):
    """Fixed token sequences for measuring and for training."""

    validation: Batches = key("Sequences on which everything is measured.")
    train: Batches = key("Sequences for training and forks.", None)


# Training, probes and forks.


class Training(Section):
    """How the suite was trained. Forks continue with the same settings."""

    seed: Seed = key("Seed of initialisation and data order.")
    schedule: Literal["cosine", "cosine_neox_v1"] = key(
        "cosine: the paper's formula. cosine_neox_v1: the schedule that Pythia used."
    )
    lr_max: float = key("Highest learning rate.", gt=0, le=100)
    lr_min: float = key("Lowest learning rate after the warm-up.", ge=0)
    warmup_steps: Step = key("Steps of the linear warm-up.")
    batch_size: Count = key("Sequences per update.")
    beta1: float = key("Adam's beta1.", ge=0, lt=1)
    beta2: float = key("Adam's beta2.", ge=0, lt=1)
    eps: float = key("Adam's epsilon.", gt=0, le=1)
    weight_decay: Decay = key("Decoupled weight decay. Not applied to biases and norms.")
    clip_norm: float = key("Largest norm of the gradient.", gt=0, le=1e30)
    save_every: Count = key(
        "Updates between two saved states. A killed job continues from the last one."
    )
    jobs_end_at: Annotated[list[Count], Unique] = key(
        "Only for source pretrain: the last step of each training job. Ends with grid.last.", None
    )

    def _mistakes(self) -> Mistakes:
        if self.lr_min > self.lr_max:
            yield "lr_min", f"{self.lr_min} is above lr_max {self.lr_max}"


class Compute(Section):
    """How forks compute a gradient. Measurements always use float32 without TF32."""

    precision: Precision = key("bf16 runs the forward pass under autocast.", "float32")
    tf32: StrictBool = key("Whether training on CUDA may use TF32.", False)
    micro_batch: Count = key("Sequences per forward pass. Default: the complete batch.", None)
    attention: Literal["sdpa", "eager"] = key("Attention implementation of transformers.", "sdpa")


class Probe(Section):
    """Which quantizers are measured, and how."""

    low_bit: str = key("The quantizer whose collapse is audited.")
    high_bit: str = key("The quantizer with which low_bit is compared.")
    also: list[str] = key(
        "Further quantizers to measure. Each is a row per step whose role is its name.", []
    )
    batch_size: Count = key("Validation sequences per forward pass.")
    steps_per_job: Count = key("Revisions per job.")
    resamples: Resamples = key("Bootstrap resamples for intervals of the gap.")

    def _mistakes(self) -> Mistakes:
        if self.low_bit == self.high_bit:
            yield "", f"low_bit and high_bit are both {self.low_bit!r}; they must be two quantizers"
        for name in self.also:
            if name in (self.low_bit, self.high_bit) or self.also.count(name) > 1:
                yield "also", f"{name!r} is measured anyway; name each quantizer once"


class Kurtosis(Section):
    """Kurtosis of the weights."""

    layers: Layers = key("Which linear layers are measured.")


class Phases(Section):
    """Detection of FP32 convergence and of the onset of the INT4 collapse."""

    resamples: Resamples = key("Bootstrap resamples for intervals of steps.")


class PhaseResolved(Section):
    """Dense probes in the last cycles of OLI, for both orders of its phases."""

    cycles: Count = key("Cycles that are probed densely, at the end of the fork.")
    probe_every: Count = key("Updates between two probes.")


class Pilot(Section):
    """The paper's pilot on shorter sequences (appendix B), and arms that vary one setting each."""

    length: Size = key("Tokens per sequence.")
    steps: Count = key("Updates of each arm.")
    probe_every: Count = key("Updates between two probes.")
    rewarm_steps: Count = key("Updates in which the learning rate of rewarmed arms rises.")

    def _mistakes(self) -> Mistakes:
        if self.steps % self.probe_every:
            yield "probe_every", f"{self.probe_every} must divide pilot.steps {self.steps}"
        yield from _too_many_probes("probe_every", self.steps, self.probe_every)


class Primary(Section):
    """The one comparison that is fixed in advance. All other tests are exploratory."""

    test: Literal["paired t", "Welch t", "pairwise wins"] = key(
        "Statistical test, with the training run as the unit."
    )
    comparison: str = key("A condition and the control, such as `sgdr v cosine`.")
    unit: Literal["seed"] = key("What counts as one observation.")
    measure: Literal["cooled_gap_pct", "final_gap_pct", "mean_gap_pct"] = key(
        "Low-bit gap after the cool-down, at the last probe, or over all probes."
    )


class Fork(Section):
    """Forks: training that starts from one checkpoint of the run, with another schedule."""

    start: Step = key("Revision from which the forks start.")
    steps: Count = key("Updates of each fork.")
    probe_every: Count = key("Updates between two probes.")
    phase_resolved: PhaseResolved
    batch_size: Count = key("Sequences per update.")
    keep_checkpoints: StrictBool = key(
        "Whether weights are kept after measurement, so that another quantizer needs no training. "
        "Default: true for source pretrain, else false.",
        None,
    )
    optimizer_state: Literal["fresh", "rewarmed", "restored"] = key(
        "Adam's moments at the start of a fork. fresh: zero. rewarmed: zero, with a warm-up of the "
        "learning rate. restored: from the run's training state."
    )
    rewarm_steps: Count = key("Updates in which the learning rate of a rewarmed fork rises.", None)
    seeds: Seeds = key("Seeds. Each is one data order.")
    schedules: dict[Name, AnySchedule] = key("Schedules by name. The name is part of file names.")
    cooldown_steps: Count = key(
        "Updates of the cool-down after each fork. The rate falls linearly to lr_min, so that "
        "forks are compared at equal rates.",
        None,
    )
    primary: Primary = None
    pilot: Pilot = None
    amplitudes: Ratios = key(
        "Amplitudes of OLI (lambda), tried with its own period and with SGDR's.", None
    )
    rivals: dict[Name, AnyRival] = key("Conditions that are not in the paper, by name.", None)
    rival_seeds: Seeds = key("Seeds of all conditions outside schedules. Default: seeds.", None)

    def _mistakes(self) -> Mistakes:
        if self.steps % self.probe_every:
            yield "probe_every", f"{self.probe_every} must divide fork.steps {self.steps}"
        yield from _too_many_probes("probe_every", self.steps, self.probe_every)
        is_rewarmed = self.optimizer_state == "rewarmed"
        if is_rewarmed != (self.rewarm_steps is not None):
            state = f"optimizer_state is {self.optimizer_state}"
            yield "rewarm_steps", f"goes with optimizer_state rewarmed, and always with it; {state}"
        if getattr(self.schedules.get(CONTROL), "kind", None) != "cosine":
            yield "schedules", "lacks cosine, the control of kind cosine"
        yield from self._mistaken_cycles()
        if self.amplitudes and not self.oli:
            yield "amplitudes", "needs a schedule of kind oli in fork.schedules"
        yield from self._mistaken_primary()
        yield from self._mistaken_conditions()

    def _mistaken_cycles(self) -> Mistakes:
        """Dense probes must fit into each OLI fork and end with its last update."""
        every = self.phase_resolved.probe_every
        cycles = self.phase_resolved.cycles
        for name, kind in self.oli.items():
            span = cycles * kind.period
            if span > self.steps or span % every:
                valid = f"at most fork.steps {self.steps} and a multiple of probe_every {every}"
                text = f"{cycles} cycles of schedules.{name} are {span} steps; valid: {valid}"
                yield "phase_resolved", text
            yield from _too_many_probes("phase_resolved.probe_every", span, every)

    def _mistaken_primary(self) -> Mistakes:
        """The primary test must be one of the rows that statistics.csv will have."""
        if self.primary is None:
            return
        is_after_cooldown = self.primary.measure == "cooled_gap_pct"
        if is_after_cooldown and self.cooldown_steps is None:
            yield "primary.measure", "cooled_gap_pct needs fork.cooldown_steps"
        conditions: list[str] = []
        for name in self.schedules:
            # Probes of a schedule with phases are compared with and without its bumps. The
            # cool-down has no phases.
            if name in self.oli and not is_after_cooldown:
                conditions += [f"{name} cool", f"{name} all"]
            else:
                conditions.append(name)
        valid = [f"{name} v {CONTROL}" for name in conditions if name != CONTROL]
        if self.primary.comparison not in valid:
            hint = suggest(self.primary.comparison, valid)
            yield "primary.comparison", f"{self.primary.comparison!r} is not known; {hint}"

    def _mistaken_conditions(self) -> Mistakes:
        """Names of rivals must be free, and each schedule must fit the length of a fork."""
        for name in self.rivals or {}:
            if name in self.schedules or name.startswith(("pilot_", "oli_x")):
                yield f"rivals.{name}", "this name is taken, by a schedule, the pilot or amplitudes"
        for section in ("schedules", "rivals"):
            for name, kind in (getattr(self, section) or {}).items():
                # Averages are checked against the run's revisions, in off_the_run.
                if not isinstance(kind, AverageKind):
                    yield from _below(f"{section}.{name}", kind.mistakes(self.steps))

    @property
    def oli(self) -> dict[str, OscillatoryLockIn]:
        """Schedules of kind oli, the only ones with phases, by name."""
        return {
            name: kind
            for name, kind in self.schedules.items()
            if isinstance(kind, OscillatoryLockIn)
        }

    @property
    def stop(self) -> int:
        """Step after the last update."""
        return self.start + self.steps

    def off_the_run(self, steps: Sequence[int]) -> Mistakes:
        """Mistakes that only the revisions ``steps`` of the run show."""
        yield from _off_grid("start", [self.start], steps)
        for name, rival in (self.rivals or {}).items():
            if isinstance(rival, AverageKind):
                mistakes = rival.mistakes(steps, self.start, self.stop)
                yield from _below(f"rivals.{name}", mistakes)


# Beyond the paper.


class Measured(Section):
    """Revisions that a measurement uses."""

    every: Count = key("Every n-th revision, counted back from the last.", None)
    steps: Steps = key("List of revisions, instead of every.", None)

    def _mistakes(self) -> Mistakes:
        if (self.every is None) == (self.steps is None):
            yield "", "takes every or steps, and only one of them"
        if self.steps and self.steps != sorted(self.steps):
            yield "steps", f"{self.steps} must be in rising order"


class MeasuredInJobs(Measured):
    """A measurement on validation sequences, divided into jobs."""

    steps_per_job: Count = key("Revisions per job.")
    sequences: Size = key("Number of validation sequences.")


class Factorial(MeasuredInJobs):
    """Every combination of bits, symmetry and granularity."""

    bits: Annotated[list[Bits], Unique] = key("Bits per weight.", min_length=2)
    group_sizes: Sizes = key("Group sizes, in addition to per tensor and per channel.")
    formats: Annotated[list[Format], Unique] = key("Four-bit formats with a code book.")


class Sensitivity(MeasuredInJobs):
    """Size of the rounding noise, and the sensitivity of the loss to it."""

    draws: Step = key("Random draws of each control noise.")


class Curvature(MeasuredInJobs):
    """Largest eigenvalue and trace of the Hessian."""

    draws: Size = key("Random vectors for the estimate of the trace.")


class Activations(MeasuredInJobs):
    """Kurtosis, rounding and anisotropy of activations."""

    bits: Bits = key("Bits per activation.")


class PhaseFlips(Section):
    """Codes that flip in phases of OLI. Skipped if no schedule is of kind oli."""

    cycles: Count = key("Cycles of OLI from the fork point.")


def block_weights(width: int, layers: int) -> int:
    """Weights of the linear layers of a GPT-NeoX's blocks."""
    return 12 * width**2 * layers


class Replication(Section):
    """Small runs like the suite's own. Only for source pretrain."""

    widths: Sizes = key("Hidden sizes.", min_length=1)
    seeds: Seeds = key("Seeds. Each is one initialisation and data order.")
    weight_decays: Decays = key("Weight decays. Default: that of the suite.", None)
    spacing: Count = key("Updates between two probes.")
    last: Count = key("Updates of a run. A multiple of spacing.", None)
    tokens_per_weight: Count = key("Length of a run in tokens per weight, instead of last.", None)
    train_sequences: Count = key("Number of training sequences. Default: all.", None)
    sequences: Size = key("Number of validation sequences.")
    low_bit: str = key("Quantizer with which the runs are probed.")

    def steps_of(self, suite: "Suite", width: int) -> float:
        """Updates until a run of this width has seen ``tokens_per_weight``."""
        weights = block_weights(width, suite.architecture.num_layers)
        tokens_per_step = suite.training.batch_size * suite.batches.train.length
        return self.tokens_per_weight * weights / tokens_per_step

    def _mistakes(self) -> Mistakes:
        if (self.last is None) == (self.tokens_per_weight is None):
            yield "", "takes last or tokens_per_weight, and only one of them"
        elif self.last and self.last % self.spacing:
            yield "last", f"{self.last} must be a multiple of spacing {self.spacing}"
        if self.last:
            yield from _too_many_probes("spacing", self.last, self.spacing)


class Mechanism(Section):
    """Measurements beyond the paper (target extended). One without a section is skipped."""

    batch_size: Count = key("Validation sequences per forward pass. Divides sequences.")
    factorial: Factorial = None
    layers: MeasuredInJobs = key("Quantizes one matrix alone, and all matrices but one.", None)
    sensitivity: Sensitivity = None
    curvature: Curvature = None
    activations: Activations = None
    drift: Measured = key(
        "Positions of weights between grid points, codes that flip, and distances.", None
    )
    phase_flips: PhaseFlips = None
    replication: Replication = None
    second_arm: str = key("Another suite whose replication the target extended also builds.", None)

    def _mistakes(self) -> Mistakes:
        for measure in ("sensitivity", "curvature"):
            section = getattr(self, measure)
            if section and section.sequences % self.batch_size:
                text = f"must be a multiple of mechanism.batch_size {self.batch_size}"
                yield f"{measure}.sequences", f"{section.sequences} {text}"

    def off_the_run(self, steps: Sequence[int] | None, sequences: int) -> Mistakes:
        """Mistakes that only the run's revisions and number of validation sequences show."""
        for measure in type(self).model_fields:
            section = getattr(self, measure)
            if getattr(section, "sequences", 0) > sequences:
                text = f"{section.sequences} is more than the suite has; valid: 1 to {sequences}"
                yield f"{measure}.sequences", text
            if steps and isinstance(section, Measured):
                yield from _off_grid(f"{measure}.steps", section.steps or [], steps)


# Suites.


class Suite(Section):
    """The keys of every suite, for each source of checkpoints."""

    source: str
    label: Label = key("Name in every title and caption, without markup.")
    is_paper_model: StrictBool = key("Whether the paper's numbers describe this model.")
    device: Literal["auto", "cpu", "cuda", "mps"] = key(
        "Device for models. auto uses a GPU if there is one."
    )
    threads: int = key("CPU threads of a training or probing job.", ge=1, le=4096)
    grid: AnyGrid = key("Revisions: evenly spaced, a list, or discover (all that exist).")
    architecture: ForeignArchitecture = None
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
    tokens_per_step: Count = key(
        "Tokens per update. Needed only without training and batches.train.", None
    )
    integrity: Integrity = None

    def _mistakes(self) -> Mistakes:
        yield from self._mistaken_batches()
        for place, size in self._sizes():
            if size > MOST_BYTES:
                yield place, f"would take {size:.3g} bytes of memory; at most {MOST_BYTES:.3g}"

        # Empty if the steps are discovered. Then the same checks follow when they are known.
        steps = [] if self.grid == "discover" else self.grid.revisions
        warmup = self.training and self.training.warmup_steps
        if warmup and steps:
            last = self.grid.last or steps[-1]
            if warmup >= last:
                yield "training.warmup_steps", f"{warmup} is not below the suite's last step {last}"
        if self.fork:
            yield from _below("fork", self._mistaken_fork(self.fork, steps))
        if self.mechanism:
            mistakes = self.mechanism.off_the_run(steps, self.batches.validation.sequences)
            yield from _below("mechanism", mistakes)
        if self.fork and self.mechanism and self.mechanism.phase_flips:
            yield from self._mistaken_phase_flips(self.fork, self.mechanism.phase_flips)

    def _mistaken_batches(self) -> Mistakes:
        train = self.batches.train
        if self.fork and not (self.training and train):
            lacking = "batches.train" if self.training else "training"
            yield "", f"lacks {lacking}, needed for its forks, which continue it"
        if isinstance(self.text, FileText) and train and not self.text.train:
            yield "text", "lacks train, needed for batches.train"
        longest = self.architecture and self.architecture.max_length
        for split, batches in (("validation", self.batches.validation), ("train", train)):
            if batches and longest and batches.length > longest:
                text = f"{batches.length} is longer than architecture.max_length {longest}"
                yield f"batches.{split}.length", text

    def _mistaken_phase_flips(self, fork: Fork, flips: PhaseFlips) -> Mistakes:
        for name, kind in fork.oli.items():
            span = flips.cycles * kind.period
            if span > fork.steps:
                text = f"{flips.cycles} cycles of fork.schedules.{name} are {span} steps"
                valid = f"valid: 1 to {fork.steps // kind.period}"
                yield "mechanism.phase_flips.cycles", f"{text}; {valid}"

    def _sizes(self) -> Iterator[tuple[str, int]]:
        """Bytes of the largest arrays in memory, by the key that decides their size."""
        shape = self.architecture
        vocabulary = (
            getattr(shape, "vocab_size", None)
            or getattr(self.tokenizer, "vocab_size", None)
            or PYTHIA_VOCABULARY
        )
        validation_length = self.batches.validation.length
        # Logits of one batch in float32, which has 4 bytes.
        yield "probe.batch_size", 4 * vocabulary * self.probe.batch_size * validation_length
        if shape:
            n_block_weights = block_weights(shape.hidden_size, shape.num_layers)
            yield "architecture", 4 * (n_block_weights + 2 * vocabulary * shape.hidden_size)
        for split in ("validation", "train"):
            batches = getattr(self.batches, split)
            if batches:
                yield f"batches.{split}", 4 * batches.sequences * batches.length
        micro_batch = self.compute and self.compute.micro_batch
        for place, section in (("training", self.training), ("fork", self.fork)):
            if section and self.batches.train and not micro_batch:
                tokens_per_batch = section.batch_size * self.batches.train.length
                yield f"{place}.batch_size", 4 * vocabulary * tokens_per_batch

    def _mistaken_fork(self, fork: Fork, steps: Sequence[int]) -> Mistakes:
        if steps:
            yield from fork.off_the_run(steps)
        if fork.optimizer_state == "restored" and fork.start not in self.training_states:
            text = f"restored needs a state of the training at step {fork.start}"
            yield "optimizer_state", f"{text}; add this step to training.jobs_end_at"
        train_length = self.batches.train.length
        pilot = fork.pilot
        if pilot and (train_length % pilot.length or pilot.length == train_length):
            text = f"must divide batches.train.length {train_length} and be shorter"
            yield "pilot.length", f"{pilot.length} {text}"

    @property
    def training_states(self) -> list[int]:
        """Steps at which the suite's own training has saved its state."""
        is_trained_here = self.source in ("pretrain", "published")
        if is_trained_here and self.training and self.training.jobs_end_at:
            return self.training.jobs_end_at
        return []

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
        """Whether weights of forks are kept after they have been measured."""
        if self.fork is None or self.fork.keep_checkpoints is None:
            return self.source == "pretrain"
        return self.fork.keep_checkpoints

    def mistaken_quantizers(self, quantizers: Mapping[str, AnyQuantizer]) -> Mistakes:
        """Unknown names of quantizers, and a low_bit with more bits than high_bit."""
        names_by_key = {
            "probe.low_bit": self.probe.low_bit,
            "probe.high_bit": self.probe.high_bit,
            **{f"probe.also[{index}]": name for index, name in enumerate(self.probe.also)},
        }
        replication = self.mechanism and self.mechanism.replication
        if replication and self.source == "pretrain":
            names_by_key["mechanism.replication.low_bit"] = replication.low_bit
        for place, name in names_by_key.items():
            if name not in quantizers:
                yield place, f"{name!r} is not known; {suggest(name, quantizers)}"
        # The caller stops at the first mistake, so both names are known here.
        low_bits = quantizers[self.probe.low_bit].bits
        high_bits = quantizers[self.probe.high_bit].bits
        if low_bits > high_bits:
            text = f"low_bit must not have more bits ({low_bits}) than high_bit ({high_bits})"
            yield "probe", text


class PretrainSuite(Suite):
    """A model that is trained here."""

    source: Literal["pretrain"] = key("The workflow trains the checkpoints.")
    architecture: Architecture
    tokenizer: TrainedTokenizer = key("Trained on the suite's text, from a hub model or a file.")
    training: Training

    def _mistakes(self) -> Mistakes:
        if not isinstance(self.grid, EvenGrid):
            yield "grid", "valid with source pretrain: powers_of_two, spacing and last"
        yield from super()._mistakes()
        if self.batches.train is None:
            yield "", "lacks batches.train, needed for source pretrain"
        job_ends = self.training_states
        yield from _off_grid("training.jobs_end_at", job_ends, self.grid.revisions)
        if job_ends != sorted(job_ends) or job_ends[-1:] != [self.grid.last]:
            text = f"{job_ends} must rise and end at the last step {self.grid.last}"
            yield "training.jobs_end_at", text
        replication = self.mechanism and self.mechanism.replication
        if replication:
            yield from _below("mechanism.replication", self._mistaken_replication(replication))

    def _mistaken_replication(self, replication: Replication) -> Mistakes:
        num_heads = self.architecture.num_heads
        for width in replication.widths:
            if width % num_heads:
                yield "widths", f"num_heads {num_heads} must divide {width}"
        if replication.tokens_per_weight:
            steps = replication.steps_of(self, max(replication.widths))
            yield from _too_many_probes("tokens_per_weight", steps, replication.spacing)
        sequences = self.batches.train.sequences
        if (replication.train_sequences or 0) > sequences:
            text = f"{replication.train_sequences} is more than the suite has"
            yield "train_sequences", f"{text}; valid: 1 to {sequences}"


class PlantedScales(Section):
    """Scales that change no output of a model: a collapse that is known beforehand."""

    run: SuiteName = key("The suite whose checkpoints are scaled. Its source is pretrain.")
    channels: Count = key("Number of channels behind each normalization that are scaled.")
    start: Step = key("Last step with the scale 1.")
    largest: Factor = key("Scale at the last step. It rises in equal parts from start on.")


class PlantedSuite(Suite):
    """The checkpoints of another suite with scales that leave their functions as they are."""

    source: Literal["planted"] = key("Another suite's checkpoints, with channels scaled.")
    tokenizer: TrainedTokenizer
    scales: PlantedScales = key("Which channels are scaled, and by how much.")

    def _mistakes(self) -> Mistakes:
        if not isinstance(self.grid, EvenGrid):
            yield "grid", "valid with source planted: powers_of_two, spacing and last"
        yield from super()._mistakes()
        if self.scales.start >= self.grid.last:
            text = f"{self.scales.start} is not below the suite's last step {self.grid.last}"
            yield "scales.start", text
        width = self.architecture and self.architecture.hidden_size
        if width and self.scales.channels > width:
            text = f"{self.scales.channels} is more than architecture.hidden_size {width}"
            yield "scales.channels", text


class HubSuite(Suite):
    """A model of the Hugging Face hub."""

    source: Literal["hub"] = key("Revisions of a model of the Hugging Face hub.")
    repo: Repo = key("Hub repository.")
    revision: Annotated[Text, _passes(_check_branch_pattern)] = key(
        "Regular expression of branch names, with a group step. Default: Pythia's names.", None
    )


class LocalSuite(Suite):
    """Your own checkpoints."""

    source: Literal["local"] = key("Your own checkpoint files.")
    pattern: Annotated[Text, _Expanded, _passes(check_pattern)] = key(
        "Folders of your checkpoints, with {step} instead of the step."
    )
    tokenizer: LocalTokenizer


class PublishedTokenizer(LocalTokenizer):
    """The tokenizer of the suite whose measurements are stored."""

    vocab_size: int = key("Entries of the byte-level BPE.", None, ge=257, le=LARGEST_COUNT)


class PublishedSuite(Suite):
    """Stored measurements, without checkpoints."""

    source: Literal["published"] = key("Stored measurements, without checkpoints.")
    measurements: FilePath = key("Folder of stored measurements, written by make publish.")
    tokenizer: PublishedTokenizer


AnySuite = Annotated[
    PretrainSuite | PlantedSuite | HubSuite | LocalSuite | PublishedSuite,
    Field(discriminator="source"),
]


class Config(Section):
    """Configuration of the workflow. Unknown keys are refused at every level."""

    suite: str = key("Suite that is built if no target is named.")
    quantizers: dict[Name, AnyQuantizer] = key("Quantizers by name. Suites refer to these names.")
    suites: dict[SuiteName, AnySuite] = key(
        "Suites by name. A suite is one training run with its settings, in results/NAME/."
    )

    def _mistakes(self) -> Mistakes:
        if self.suite not in self.suites:
            yield "suite", f"{self.suite!r} is not known; {suggest(self.suite, self.suites)}"
        if FP32 in self.quantizers:
            yield f"quantizers.{FP32}", "this name is taken by full precision"
        if PRINTED_SUITE in self.suites:
            yield f"suites.{PRINTED_SUITE}", "this name is taken by the printed tables"
        for name, suite in self.suites.items():
            yield from _below(f"suites.{name}", suite.mistaken_quantizers(self.quantizers))
            yield from _below(f"suites.{name}", self._mistaken_second_arm(suite))
            yield from _below(f"suites.{name}", self._mistaken_run(suite))

    def _mistaken_run(self, suite: Suite) -> Mistakes:
        """Mistakes in the suite whose checkpoints a planted suite scales."""
        if not isinstance(suite, PlantedSuite):
            return
        place = "scales.run"
        name = suite.scales.run
        trained_suites = {
            other_name: other
            for other_name, other in self.suites.items()
            if isinstance(other, PretrainSuite)
        }
        if name not in trained_suites:
            yield (
                place,
                f"{name!r} is not a suite with source pretrain; {suggest(name, trained_suites)}",
            )
            return
        run_steps = trained_suites[name].grid.revisions
        absent_steps = [step for step in suite.grid.revisions if step not in run_steps]
        if absent_steps:
            yield place, f"suite {name!r} has no checkpoint of step {absent_steps[0]}, see grid"

    def _mistaken_second_arm(self, suite: Suite) -> Mistakes:
        arm = suite.mechanism and suite.mechanism.second_arm
        if arm is None:
            return
        place = "mechanism.second_arm"
        if arm not in self.suites:
            yield place, f"{arm!r} is not known; {suggest(arm, self.suites)}"
            return
        mechanism = self.suites[arm].mechanism
        if mechanism is None or mechanism.replication is None:
            yield place, f"suite {arm!r} lacks mechanism.replication"
