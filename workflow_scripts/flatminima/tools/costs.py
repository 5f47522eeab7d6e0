"""Costs of a suite before it is run: downloads, disk, operations, hours on this machine.

Operations are the multiplications and additions of matrix products. There are 2 per weight and
token. Attention has 2 L T d per token of a sequence of T tokens: the causal half of its two
products, over L layers of width d. A backward pass costs twice a forward pass.

Operations are timed in float32 with TF32 off, as in all measurements of the workflow. If the model
is too large to be timed within seconds, fewer of its layers are timed, at full width.
"""

import math
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.benchmark import Timer
from transformers import AutoConfig, AutoModelForCausalLM

from flatminima.config.keys import PYTHIA_VOCABULARY, ForeignArchitecture
from flatminima.config.keys import Suite as SuiteConfig
from flatminima.config.plan import split_text
from flatminima.config.plan_requests import forward_flop
from flatminima.config.suites import Suite, read_suite
from flatminima.device import choose_device, prepare_backend
from flatminima.errors import UserError
from flatminima.jobs import dry_run
from flatminima.layers import count_weights, linear_layers

# Bytes per parameter: in a saved training state (weight and two moments in float32), and in a
# checkpoint that the workflow writes.
ADAM_BYTES = 12
CHECKPOINT_BYTES = 4
# On a CPU, one timed pass takes about a second: at most so many tokens per sequence, and so many
# operations per update.
CPU_LENGTH = 128
CPU_FLOP = 1e11
# Largest model that is timed, in weights.
MOST_WEIGHTS = {"cpu": 250_000_000, "mps": 200_000_000, "cuda": 2_000_000_000}
CONNECTION_MBIT = 100  # assumed for the duration of downloads; the connection is not measured

Row = tuple[str, str, str]  # cost, amount, and how the amount is known


# Counts


@dataclass(frozen=True)
class Shape:
    """Counts of a model that its costs follow from.

    ``multiplied`` counts the weights that each token is multiplied with. This includes the output
    head but not the input embedding, which is looked up. ``stored_bytes`` is the size of a
    published checkpoint, with the masks that GPT-NeoX stored beside its weights.
    """

    parameters: int
    multiplied: int
    layers: int
    width: int
    stored_bytes: int

    def flop(self, sequences: int, length: int) -> float:
        """Operations of one forward pass over ``[sequences, length]`` tokens."""
        return forward_flop(
            self.multiplied, self.layers, self.width, sequences=sequences, length=length
        )


def read_config(suite: SuiteConfig) -> object:
    """The transformers configuration that a suite's ``architecture`` describes."""
    if suite.architecture is None:
        raise UserError(f"{suite.label}: cannot estimate costs: add `architecture` to the suite")
    # A suite that is trained here is a GPT-NeoX with a vocabulary of its tokenizer's size.
    shape = ForeignArchitecture(**suite.architecture.dump())
    trained_vocabulary = getattr(suite.tokenizer, "vocab_size", None)
    return AutoConfig.for_model(
        shape.family,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        intermediate_size=shape.intermediate_size or 4 * shape.hidden_size,
        max_position_embeddings=shape.max_length,
        vocab_size=trained_vocabulary or shape.vocab_size or PYTHIA_VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )


def build(config: object, device: str) -> nn.Module:
    """A model with this configuration in float32. On the device ``meta`` it takes no memory."""
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def describe_shape(config: object, dtype: str = "float16") -> Shape:
    """Count the weights of a model. ``dtype`` is that of the published files."""
    model = build(config, "meta")
    parameters = count_weights(model)
    multiplied = sum(layer.weight.numel() for layer in linear_layers(model).values())
    head = model.get_output_embeddings()
    if head is not None:
        multiplied += head.weight.numel()
    # GPT-NeoX stored one byte of mask for each pair of positions in each layer.
    mask_bytes = 0
    if config.model_type == "gpt_neox":
        mask_bytes = config.num_hidden_layers * config.max_position_embeddings**2
    return Shape(
        parameters=parameters,
        multiplied=multiplied,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        stored_bytes=getattr(torch, dtype).itemsize * parameters + mask_bytes,
    )


def forwards_of_a_probe(suite: SuiteConfig) -> int:
    """Forward passes of a probe: FP32, low bit, high bit, and one of each further quantizer."""
    return 3 + len(suite.probe.also)


def suite_costs(suite: SuiteConfig, shape: Shape, *, revisions: int, last: int) -> dict[str, float]:
    """Costs of a suite with ``revisions`` checkpoints, whose last step is ``last``.

    - ``downloads``: bytes
    - ``disk``: largest number of bytes at one time, for checkpoints and one training state
    - ``forks``: number of forks
    - ``audit``, ``probes`` and ``updates`` of forks, and the ``run`` itself: operations
    """
    fork = suite.fork
    batches = suite.batches
    is_pretrained = suite.source == "pretrain"
    is_on_hub = suite.source == "hub"
    probe = forwards_of_a_probe(suite) * shape.flop(
        batches.validation.sequences, batches.validation.length
    )

    def training(batch_size: int, steps: int) -> float:
        """Operations of updates, each a forward pass and a backward pass of twice its cost."""
        return 3 * steps * shape.flop(batch_size, batches.train.length)

    forks = 0
    probes_per_fork = 0
    updates = 0.0
    if fork:
        forks = len(fork.schedules) * len(fork.seeds)
        cooldown_steps = fork.cooldown_steps or 0  # after each fork, probed once, at the end
        probes_per_fork = fork.steps // fork.probe_every + bool(cooldown_steps)
        updates = forks * training(fork.batch_size, fork.steps + cooldown_steps)

    # Unless the suite keeps the weights of forks, those of one fork exist at a time.
    written_checkpoints = revisions if is_pretrained else 0
    if fork:
        written_checkpoints += probes_per_fork * (forks if suite.keeps_forks else 1)
    bytes_per_parameter = CHECKPOINT_BYTES * written_checkpoints
    if fork or is_pretrained:
        bytes_per_parameter += ADAM_BYTES

    # The forks' first checkpoint is downloaded once more and stays on disk. Of the others, one
    # is on disk per job.
    downloaded_checkpoints = 0
    stored_downloads = 0
    if is_on_hub:
        downloaded_checkpoints = revisions + bool(fork)
        stored_downloads = 1 + bool(fork)
    return {
        "forks": forks,
        "downloads": downloaded_checkpoints * shape.stored_bytes,
        "disk": bytes_per_parameter * shape.parameters + stored_downloads * shape.stored_bytes,
        "audit": revisions * probe,
        "probes": forks * probes_per_fork * probe,
        "updates": updates,
        "run": training(suite.training.batch_size, last) if is_pretrained else 0.0,
    }


def hours(costs: Mapping, forward_rate: float, training_rate: float, jobs: int = 1) -> float:
    """Hours of all computations, at these rates in operations per second.

    ``jobs`` at a time share everything but the run itself.
    """
    shared = (costs["audit"] + costs["probes"]) / forward_rate + costs["updates"] / training_rate
    return (shared / jobs + costs["run"] / training_rate) / 3600


# Measurement


class TimedPart(NamedTuple):
    """The part of a suite that is timed; batches are (sequences, tokens per sequence)."""

    layers: int
    probe: tuple[int, int]
    update: tuple[int, int]


def part_to_time(suite: SuiteConfig, shape: Shape, device: str) -> TimedPart:
    """The layers and batches that can be timed on ``device`` within seconds.

    Batches are as near to the suite's as possible: with a much smaller batch, the time would be
    that of the calls and not of the work.
    """
    # As many layers as have at most so many weights, and never more than the model has.
    layers = min(shape.layers, MOST_WEIGHTS[device] * shape.layers // shape.multiplied)
    probe = (suite.probe.batch_size, suite.batches.validation.length)
    training = suite.fork or (suite.training if suite.source == "pretrain" else None)
    update = (training.batch_size, suite.batches.train.length) if training else probe

    def shortened(batch: tuple[int, int]) -> tuple[int, int]:
        if device != "cpu":
            return batch
        sequences = batch[0]
        length = min(batch[1], CPU_LENGTH)
        most_sequences = int(CPU_FLOP / (3 * shape.flop(1, length)))
        return max(1, min(sequences, most_sequences)), length

    return TimedPart(max(1, layers), shortened(probe), shortened(update))


def measure(
    model: nn.Module, probe: tuple[int, int], update: tuple[int, int], threads: int, seconds: float
) -> tuple[float, float]:
    """Seconds of a forward pass and of an update on batches of (sequences, length) tokens.

    Each is repeated for about ``seconds``.
    """
    prepare_backend()

    @torch.inference_mode()
    def score(ids: Tensor) -> None:
        logits = model(input_ids=ids, use_cache=False).logits
        torch.log_softmax(logits[:, :-1], dim=-1)

    def learn(ids: Tensor) -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)

    def seconds_of(work: Callable[[Tensor], None], batch: tuple[int, int]) -> float:
        ids = torch.randint(model.config.vocab_size, batch, device=model.device)
        timer = Timer("work(ids)", globals={"work": work, "ids": ids}, num_threads=threads)
        return timer.blocked_autorange(min_run_time=seconds).mean

    return seconds_of(score, probe), seconds_of(learn, update)


def time_rows(
    suite: SuiteConfig, config: object, costs: Mapping, revisions: int, seconds: float
) -> Iterator[Row]:
    """Hours on this machine, estimated from the time of a part of the suite's model.

    On a CPU, the part uses as many threads as a job of the suite, or all cores if there are fewer.
    """
    device = choose_device(suite.device)
    shape = describe_shape(config)
    part = part_to_time(suite, shape, device)
    config.num_hidden_layers = part.layers
    # Some families list the kind of every layer. The list must be as long as the model.
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: part.layers]
    part_shape = describe_shape(config)
    model = build(config, device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = min(suite.threads, cores)
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    yield "timed on", f"{device}, {machine}", f"{threads} of {cores} threads, float32, TF32 off"
    load = os.getloadavg()[0]
    yield (
        "load",
        f"{load:.1f}",
        "before the timing; on a busy machine the rates are too low",
    )

    forward_seconds, update_seconds = measure(model, part.probe, part.update, threads, seconds)
    forward_rate = part_shape.flop(*part.probe) / forward_seconds
    update_rate = 3 * part_shape.flop(*part.update) / update_seconds  # backward: twice forward
    layers_note = ""
    if part.layers != shape.layers:
        layers_note = f", {part.layers} of {shape.layers} layers"
    for work, batch, rate in (
        ("forward", part.probe, forward_rate),
        ("update", part.update, update_rate),
    ):
        note = f"measured: {batch[0]} x {batch[1]} tokens{layers_note}"
        yield work, f"{rate / 1e9:.3g} GFLOP/s", note

    audit_hours = costs["audit"] / forward_rate / 3600
    per_revision = duration(audit_hours / revisions)
    yield (
        "time, audit",
        duration(audit_hours),
        f"estimated from the measured rates: {per_revision} per revision",
    )
    if costs["updates"] or costs["run"]:
        all_hours = hours(costs, forward_rate, update_rate)
        yield "time, all", duration(all_hours), "estimated; one job at a time"
        # Jobs run side by side with their own threads; the rate of one is assumed to stay.
        jobs = cores // threads
        if device == "cpu" and jobs > 1:
            all_hours = hours(costs, forward_rate, update_rate, jobs)
            yield "", duration(all_hours), f"estimated; {jobs} jobs at a time"


# The table


def size(count: float) -> str:
    """Bytes in MB, or in GB from 1 GB on."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(hours: float) -> str:
    """Hours as minutes, hours or days."""
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:,.1f} days"


def count_rows(costs: Mapping, shape: Shape, revisions: int, forwards: int) -> Iterator[Row]:
    """Costs that follow from the configuration alone."""
    yield "model", f"{shape.parameters:,} parameters", "counted on its classes"
    yield "revisions", f"{revisions:,}", "the plan"
    if costs["downloads"]:
        note = f"computed: {size(shape.stored_bytes)} each, the larger of the published forms"
        yield "downloads", size(costs["downloads"]), note
        download_hours = costs["downloads"] * 8 / (CONNECTION_MBIT * 1e6) / 3600
        note = f"at {CONNECTION_MBIT} Mbit/s; the connection is not measured"
        yield "", duration(download_hours), note
    yield "disk, at most", size(costs["disk"]), "computed: one job at a time"
    yield "audit", f"{costs['audit']:.2g} FLOP", f"computed: {forwards} forward passes per revision"
    if costs["run"]:
        yield "training", f"{costs['run']:.2g} FLOP", "computed"
    if costs["forks"]:
        note = "computed: updates, to the end of the cool-down"
        yield f"{costs['forks']} forks", f"{costs['updates']:.2g} FLOP", note
        yield "", f"{costs['probes']:.2g} FLOP", "computed: probes on the way"


def assumed_rows(costs: Mapping, tflops: float) -> Iterator[Row]:
    """Hours at a sustained rate of ``tflops`` TFLOP/s, such as that of a GPU."""
    rate = tflops * 1e12
    note = f"computed at a sustained {tflops:g} TFLOP/s in float32; nothing is timed"
    yield "time, audit", duration(costs["audit"] / rate / 3600), note
    if costs["updates"] or costs["run"]:
        yield "time, all", duration(hours(costs, rate, rate)), "computed; one job at a time"


def text_row(suite: Suite, split: str) -> Row:
    """How much text of one split is read, for text from files."""
    wanted = split_text(suite, split)["wanted"]
    characters = wanted["amount"] * wanted.get("document_of", 1)
    note = "computed: at most, of the first source that is available; read as a stream"
    return f"{split} text", f"{size(characters)} of characters", note


def plan_suite(
    name: str | None, configfiles: Sequence[str], seconds: float, tflops: float | None = None
) -> int:
    """Print the costs of a suite and return Snakemake's exit code for its dry run.

    Two measurements take ``seconds`` each; with 0 there are none. With ``tflops`` hours are
    computed for this rate instead. Raises ``UserError`` for a mistake in the configuration.
    """
    if tflops is not None and not 0.0 < tflops < math.inf:
        raise UserError(f"--tflops {tflops:g} is not valid; valid: a number above 0")
    suite = read_suite(name, configfiles)
    if suite.source == "published":
        folder = suite.config.measurements
        print(f"{suite.name}: nothing to compute, it is measured ({folder})")
        return 0

    if suite.source == "local":  # code that comes with the checkpoint is not run
        config = AutoConfig.from_pretrained(suite.folder(suite.last), trust_remote_code=False)
    else:
        config = read_config(suite.config)
    shape = describe_shape(config, getattr(suite.config.architecture, "dtype", "float16"))
    revisions = len(suite.steps)
    costs = suite_costs(suite.config, shape, revisions=revisions, last=suite.last)
    rows = list(count_rows(costs, shape, revisions, forwards_of_a_probe(suite.config)))
    if suite.config.text.source == "files":
        rows.append(text_row(suite, "validation"))
        if suite.config.fork:
            rows.append(text_row(suite, "train"))
    if tflops is not None:
        rows += assumed_rows(costs, tflops)
    elif seconds > 0:
        rows += time_rows(suite.config, config, costs, revisions, seconds)
    plan = dry_run("--config", f"suite={suite.name}", configfiles=configfiles)
    rows.append(jobs_row(plan.jobs))

    headings = ("what", "how much", "how it is known")
    print(suite.config.label)
    print(tabulate(rows, headings, disable_numparse=True))
    for line in (*suite.skipped, *plan.messages):
        print(line, file=sys.stderr if plan.exit_code else sys.stdout)
    return plan.exit_code


def jobs_row(jobs: Mapping[str, int] | None) -> Row:
    """How many jobs remain, and the commonest rules; ``None`` if Snakemake cannot plan them."""
    if jobs is None:
        return "jobs left", "not known", "Snakemake cannot plan them, see below"
    if not jobs:
        return "jobs left", "0", "everything is done"
    commonest = [f"{count} {rule}" for rule, count in Counter(jobs).most_common(4)]
    if len(jobs) > len(commonest):
        commonest.append("…")
    return "jobs left", f"{sum(jobs.values()):,}", ", ".join(commonest)
