"""What a suite costs before it is run: downloads, disk, operations, hours on this machine.

Operations are counted as multiplications and additions of the matrix products: 2 for
each weight and token, and for attention 2 L T d for each token of a sequence of T, the
causal half of its two products over L layers of width d. Backward costs twice forward.
They are timed in float32 with TF32 off, as everything here is computed; where the whole
model is too large to be timed in seconds, fewer of its layers are, at full width.
"""

import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.benchmark import Timer
from transformers import AutoConfig, AutoModelForCausalLM

from flatminima.config.keys import PYTHIA_VOCABULARY, ForeignArchitecture
from flatminima.config.keys import Suite as SuiteConfig
from flatminima.config.plan_requests import forward_flop
from flatminima.config.suites import read_suite
from flatminima.device import choose_device, prepare_backend
from flatminima.errors import UserError
from flatminima.jobs import dry_run
from flatminima.layers import count_weights, linear_layers

ADAM_BYTES = 12  # of one parameter in a saved training state: weight and two moments, float32
CHECKPOINT_BYTES = 4  # of one parameter in a checkpoint that is written here
# What is timed on a CPU takes a second or so: at most so many tokens of a sequence and so many
# operations of an update. Anywhere at most so many weights are.
CPU_LENGTH, CPU_FLOP = 128, 1e11
MOST_WEIGHTS = {"cpu": 250_000_000, "mps": 200_000_000, "cuda": 2_000_000_000}
CONNECTION_MBIT = 100  # a connection to compare downloads with; nothing is measured of it

Row = tuple[str, str, str]  # what, how much, and how it is known


# Counts


@dataclass(frozen=True)
class Shape:
    """Counts that costs follow from.

    ``multiplied`` are the weights that each token is multiplied with, the head's among
    them; the input embedding is looked up. ``stored_bytes`` are those of one published
    checkpoint, with the masks that GPT-NeoX kept beside its weights.
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
    """The configuration of transformers that a suite's ``architecture`` describes."""
    if suite.architecture is None:
        raise UserError(f"{suite.label}: without the key architecture no costs are known")
    # A suite that is trained here has no family; it is a GPT-NeoX of its tokenizer's size.
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
    """A model of a configuration in float32; on ``meta`` it has shapes and no memory."""
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def describe_shape(config: object, dtype: str = "float16") -> Shape:
    """Count a model; ``dtype`` is that of the published files."""
    model = build(config, "meta")
    head, parameters = model.get_output_embeddings(), count_weights(model)
    blocks = sum(layer.weight.numel() for layer in linear_layers(model).values())
    # GPT-NeoX kept one byte of mask for each pair of positions in each layer.
    masked = config.num_hidden_layers if config.model_type == "gpt_neox" else 0
    masks = masked * config.max_position_embeddings**2
    return Shape(
        parameters=parameters,
        multiplied=blocks + (head.weight.numel() if head is not None else 0),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        stored_bytes=getattr(torch, dtype).itemsize * parameters + masks,
    )


def suite_costs(suite: SuiteConfig, shape: Shape, *, revisions: int, last: int) -> dict[str, float]:
    """Costs of a suite with ``revisions`` checkpoints.

    ``downloads`` and ``disk`` in bytes; the latter is the most that lies there at one time,
    checkpoints and one state of training. Operations of the ``audit``, of ``probes`` and
    ``updates`` of ``forks`` (their number), and of the ``run`` itself.
    """
    fork, batches = suite.fork, suite.batches
    pretrained = suite.source == "pretrain"
    on_hub = suite.source == "hub"
    probe = 3 * shape.flop(batches.validation.sequences, batches.validation.length)

    def training(batch_size: int, steps: int) -> float:
        return 3 * steps * shape.flop(batch_size, batches.train.length)

    forks = len(fork.schedules) * len(fork.seeds) if fork else 0
    cooled = (fork and fork.cooldown_steps) or 0  # after each fork, probed at its end
    probes = fork.steps // fork.probe_every + bool(cooled) if fork else 0
    # Checkpoints of the run, and of all forks or of the one that is being measured.
    written = revisions * pretrained + probes * (forks if suite.keeps_forks else bool(fork))
    disk = CHECKPOINT_BYTES * written + ADAM_BYTES * (bool(fork) or pretrained)
    return {
        "forks": forks,
        # The forks' start is fetched once more; of the hub's one lies there for a job at work.
        "downloads": on_hub * (revisions + bool(fork)) * shape.stored_bytes,
        "disk": disk * shape.parameters + on_hub * (1 + bool(fork)) * shape.stored_bytes,
        "audit": revisions * probe,
        "probes": forks * probes * probe,
        "updates": forks * training(fork.batch_size, fork.steps + cooled) if fork else 0.0,
        "run": training(suite.training.batch_size, last) if pretrained else 0.0,
    }


def hours(costs: Mapping, forward_rate: float, training_rate: float, jobs: int = 1) -> float:
    """Hours at so many operations a second; ``jobs`` at a time share all but the run itself."""
    shared = (costs["audit"] + costs["probes"]) / forward_rate + costs["updates"] / training_rate
    return (shared / jobs + costs["run"] / training_rate) / 3600


# Measurement


def part_to_time(
    suite: SuiteConfig, shape: Shape, device: str
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """How many layers, and sequences and tokens of a probe and of an update, are timed.

    A batch that is much smaller than the suite's would measure the calls and not the work.
    """
    layers = min(shape.layers, MOST_WEIGHTS[device] * shape.layers // shape.multiplied)
    probe = (suite.probe.batch_size, suite.batches.validation.length)
    run = suite.fork or (suite.training if suite.source == "pretrain" else None)
    update = (run.batch_size, suite.batches.train.length) if run else probe

    def timed(sequences: int, length: int) -> tuple[int, int]:
        if device != "cpu":
            return sequences, length
        length = min(length, CPU_LENGTH)
        return max(1, min(sequences, int(CPU_FLOP / (3 * shape.flop(1, length))))), length

    return max(1, layers), timed(*probe), timed(*update)


def measure(
    model: nn.Module, probe: tuple[int, int], update: tuple[int, int], threads: int, seconds: float
) -> tuple[float, float]:
    """Seconds of a forward pass and of an update on batches of (sequences, length) tokens.

    ``seconds`` are spent on each.
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
    """Hours on this machine, from what part of the suite's model takes here.

    On a CPU with the ``threads`` that a job of the suite has, as far as there are so many.
    """
    device, whole = choose_device(suite.device), describe_shape(config)
    layers, *batches = part_to_time(suite, whole, device)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    shape, model = describe_shape(config), build(config, device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = min(suite.threads, cores)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    yield "timed on", f"{device}, {name}", f"{threads} of {cores} threads, float32, TF32 off"
    taken, rates = measure(model, *batches, threads, seconds), []
    part = "" if layers == whole.layers else f", {layers} of {whole.layers} layers"
    passes = {"forward": 1, "update": 3}  # backward costs twice forward
    for (what, times), batch, each in zip(passes.items(), batches, taken, strict=True):
        rates.append(times * shape.flop(*batch) / each)
        words = f"measured: {batch[0]} x {batch[1]} tokens{part}"
        yield what, f"{rates[-1] / 1e9:.3g} GFLOP/s", words
    audit = costs["audit"] / rates[0] / 3600
    each = f"{duration(audit / revisions)} a revision"
    yield "time, audit", duration(audit), f"estimated from what was measured: {each}"
    if costs["updates"] or costs["run"]:
        yield "time, all", duration(hours(costs, *rates)), "estimated; one job at a time"
        if device == "cpu" and (jobs := cores // threads) > 1:
            yield "", duration(hours(costs, *rates, jobs)), f"estimated; {jobs} jobs at a time"


# The table


def size(count: float) -> str:
    """Bytes in MB, or in GB from one on."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(hours: float) -> str:
    """Hours as minutes, hours or days."""
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:,.1f} days"


def count_rows(costs: Mapping, shape: Shape, revisions: int) -> Iterator[Row]:
    """What follows from the configuration alone."""
    yield "model", f"{shape.parameters:,} parameters", "counted on its classes"
    yield "revisions", f"{revisions:,}", "the plan"
    if costs["downloads"]:
        each = f"{size(shape.stored_bytes)} each, the larger of the published forms"
        yield "downloads", size(costs["downloads"]), f"computed: {each}"
        taken = costs["downloads"] * 8 / (CONNECTION_MBIT * 1e6) / 3600
        yield "", duration(taken), f"at {CONNECTION_MBIT} Mbit/s; the connection is not measured"
    yield "disk, at most", size(costs["disk"]), "computed: one job at a time"
    yield "audit", f"{costs['audit']:.2g} FLOP", "computed: 3 forward passes a revision"
    if costs["run"]:
        yield "training", f"{costs['run']:.2g} FLOP", "computed"
    if costs["forks"]:
        known = "computed: updates, to the end of the cool-down"
        yield f"{costs['forks']} forks", f"{costs['updates']:.2g} FLOP", known
        yield "", f"{costs['probes']:.2g} FLOP", "computed: probes on the way"


def plan_suite(name: str | None, configfiles: Sequence[str], seconds: float) -> int:
    """Print what a suite costs and return Snakemake's exit code for its dry run.

    ``seconds`` are spent on each of two measurements, none where it is 0. Raises ``UserError``
    for a mistake in the configuration.
    """
    suite = read_suite(name, configfiles)
    revisions = len(suite.steps)
    if suite.source == "published":
        folder = suite.config.measurements
        print(f"{suite.name}: nothing to compute, it is measured ({folder})")
        return 0
    if suite.source == "local":  # no code that comes with it is run
        config = AutoConfig.from_pretrained(suite.folder(suite.last), trust_remote_code=False)
    else:
        config = read_config(suite.config)
    shape = describe_shape(config, getattr(suite.config.architecture, "dtype", "float16"))
    costs = suite_costs(suite.config, shape, revisions=revisions, last=suite.last)
    rows = [*count_rows(costs, shape, revisions)]
    if seconds > 0:
        rows += time_rows(suite.config, config, costs, revisions, seconds)
    code, jobs, said = dry_run("--config", f"suite={suite.name}", configfiles=configfiles)
    what = "everything is done" if jobs == {} else "Snakemake cannot plan them, see below"
    if jobs:
        what = ", ".join(f"{n} {rule}" for rule, n in Counter(jobs).most_common(4))
        what += ", …" * (len(jobs) > 4)
    left = "not known" if jobs is None else f"{sum(jobs.values()):,}"
    rows.append(("jobs left", left, what))
    headings = ("what", "how much", "how it is known")
    print(suite.config.label, tabulate(rows, headings, disable_numparse=True), sep="\n")
    for line in (*suite.skipped, *said):
        print(line, file=sys.stderr if code else sys.stdout)
    return code
