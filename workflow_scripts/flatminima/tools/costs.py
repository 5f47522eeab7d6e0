"""What a suite costs before it is run: downloads, disk, operations, hours on this machine.

Operations are counted as multiplications and additions of the matrix products: 2 for
each weight and token, and for attention 2 L T d for each token of a sequence of T, the
causal half of its two products over L layers of width d. Backward costs twice forward.
They are timed in float32 with TF32 off, as everything here is computed; where the whole
model is too large to be timed in seconds, fewer of its layers are, at full width.
"""

import copy
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.benchmark import Timer

from flatminima.config_keys import PYTHIA_VOCABULARY
from flatminima.errors import UserError
from flatminima.jobs import dry_run
from flatminima.layers import count_weights, linear_layers
from flatminima.model import choose_device, prepare_backend
from flatminima.plan import read_suite
from flatminima.plan_forks import keeps_forks
from flatminima.suites import Suite

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
ADAM_BYTES = 12  # of one parameter in a saved training state: weight and two moments, float32
CHECKPOINT_BYTES = 4  # of one parameter in a checkpoint that is written here
CPU_LENGTH = 128  # tokens of the one sequence that is timed on a CPU where a batch takes too long
CPU_FLOP = 1e11  # of an update that is timed on a CPU: a second or so
MOST_PARAMETERS = {"cpu": 250_000_000, "mps": 200_000_000, "cuda": 2_000_000_000}
CONNECTION_MBIT = 100  # a connection to compare downloads with; nothing is measured of it


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
        each = 2 * self.multiplied + 2 * self.layers * length * self.width
        return float(sequences * length * each)


def read_config(architecture: Mapping, *, vocab_size: int | None = None) -> object:
    """The configuration of transformers that an ``architecture`` section describes."""
    from transformers import AutoConfig

    width = architecture["hidden_size"]
    return AutoConfig.for_model(
        architecture.get("family", "gpt_neox"),
        hidden_size=width,
        num_hidden_layers=architecture["num_layers"],
        num_attention_heads=architecture["num_heads"],
        num_key_value_heads=architecture["num_heads"],
        intermediate_size=architecture.get("intermediate_size", 4 * width),
        max_position_embeddings=architecture["max_length"],
        vocab_size=vocab_size or architecture.get("vocab_size", PYTHIA_VOCABULARY),
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )


def model_config(suite: Suite) -> object:
    """The configuration of the suite's model: a local one's from its last checkpoint.

    No code that comes with it is run. Raises ``UserError`` where the suite has no architecture.
    """
    from transformers import AutoConfig

    if suite.source == "local":
        folder = suite.folder(suite.steps[-1])
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if "architecture" not in suite.section:
        key = f"config key suites.{suite.name}"
        raise UserError(f"{key} lacks architecture, which costs follow from")
    vocab_size = suite.section["tokenizer"].get("vocab_size")
    return read_config(suite.section["architecture"], vocab_size=vocab_size)


def build(config: object, device: str = "meta") -> nn.Module:
    """A model of a configuration in float32; on ``meta`` it has shapes and no memory."""
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def describe_shape(config: object, dtype: str = "float16") -> Shape:
    """Count a model; ``dtype`` is that of the published files."""
    model = build(config)
    head, parameters = model.get_output_embeddings(), count_weights(model)
    blocks = sum(layer.weight.numel() for layer in linear_layers(model).values())
    # GPT-NeoX kept one byte of mask for each pair of positions in each layer.
    masks = config.num_hidden_layers if config.model_type == "gpt_neox" else 0
    return Shape(
        parameters=parameters,
        multiplied=blocks + (head.weight.numel() if head is not None else 0),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        stored_bytes=BYTES[dtype] * parameters + masks * config.max_position_embeddings**2,
    )


@dataclass(frozen=True)
class Costs:
    """Totals of one suite. Bytes, and floating-point operations by kind of pass.

    Disk is the most that lies there at one time: checkpoints and one state of training.
    """

    revisions: int
    forks: int
    download_bytes: int
    disk_bytes: int
    audit_flop: float
    fork_probe_flop: float
    fork_training_flop: float
    pretraining_flop: float

    def hours(self, forward_rate: float, training_rate: float, side_by_side: int = 1) -> float:
        """Hours at so many operations a second without and with gradients.

        With several jobs ``side_by_side`` all is shared among them but the run itself.
        """
        shared = (self.audit_flop + self.fork_probe_flop) / forward_rate
        shared += self.fork_training_flop / training_rate
        return (shared / side_by_side + self.pretraining_flop / training_rate) / 3600


def suite_costs(section: Mapping, shape: Shape, *, revisions: int, last: int) -> Costs:
    """Costs of a suite's section of the configuration with ``revisions`` checkpoints."""
    source, fork, batches = section["source"], section.get("fork"), section["batches"]
    validation = batches["validation"]
    probe = 3 * shape.flop(validation["sequences"], validation["length"])

    def training(run: Mapping, steps: int) -> float:
        return 3 * steps * shape.flop(run["batch_size"], batches["train"]["length"])

    forks = len(fork["schedules"]) * len(fork["seeds"]) if fork else 0
    probes = fork["steps"] // fork["probe_every"] if fork else 0
    written = CHECKPOINT_BYTES * shape.parameters
    disk = ADAM_BYTES * shape.parameters * (bool(fork) or source == "pretrain")
    # Checkpoints of all forks, or those of the one that is being measured.
    disk += probes * written * (forks if keeps_forks(section) else bool(fork))
    # Those of the run: all that are trained here, for each job at work one of the hub's.
    of_run = {"pretrain": revisions * written, "hub": (1 + bool(fork)) * shape.stored_bytes}
    return Costs(
        revisions=revisions,
        forks=forks,
        download_bytes=shape.stored_bytes * (revisions + bool(fork)) * (source == "hub"),
        disk_bytes=disk + of_run.get(source, 0),
        audit_flop=revisions * probe,
        fork_probe_flop=forks * probes * probe,
        fork_training_flop=forks * training(fork, fork["steps"]) if fork else 0.0,
        pretraining_flop=training(section["training"], last) if source == "pretrain" else 0.0,
    )


@dataclass(frozen=True)
class Throughput:
    """Operations a second without and with gradients, and of what they were measured.

    ``forward`` and ``update`` are the sequences and the length of the batch that was timed;
    ``side_by_side`` is how many jobs of as many threads the processor has room for.
    """

    forward_rate: float
    training_rate: float
    device: str
    layers: int
    forward: tuple[int, int]
    update: tuple[int, int]
    side_by_side: int


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def layers_to_time(config: object, device: str) -> int:
    """How many of the model's layers are timed on ``device``; at least one."""
    whole, first = (describe_shape(c).parameters for c in (config, _with_layers(config, 1)))
    each = max(1, (whole - first) // max(1, config.num_hidden_layers - 1))
    room = MOST_PARAMETERS[device] - (first - each)
    return int(min(config.num_hidden_layers, max(1, room // each)))


def _with_layers(config: object, layers: int) -> object:
    changed = copy.deepcopy(config)
    changed.num_hidden_layers = layers
    if getattr(changed, "layer_types", None):
        changed.layer_types = changed.layer_types[:layers]
    return changed


def batches_to_time(
    section: Mapping, shape: Shape, device: str
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sequences and tokens of the suite's probes and updates, on a CPU what takes about a second.

    A batch that is much smaller than the suite's would measure the calls and not the work.
    """
    batches, source = section["batches"], section["source"]
    probe = (section["probe"]["batch_size"], batches["validation"]["length"])
    run = section.get("fork") or (section["training"] if source == "pretrain" else None)
    update = (run["batch_size"], batches["train"]["length"]) if run else probe

    def timed(size: int, length: int) -> tuple[int, int]:
        if device != "cpu" or 3 * shape.flop(size, length) <= CPU_FLOP:
            return size, length
        length = min(length, CPU_LENGTH)
        return max(1, min(size, int(CPU_FLOP / (3 * shape.flop(1, length))))), length

    return timed(*probe), timed(*update)


def measure(
    config: object, *, device: str, forward: tuple[int, int], update: tuple[int, int],
    threads: int, seconds: float,
) -> Throughput:  # fmt: skip
    """Time forward passes and updates on batches of (sequences, length), ``seconds`` each.

    On a CPU with the ``threads`` that a job has, as far as there are so many.
    """
    prepare_backend()
    cores = available_cores()
    threads = min(threads, cores)
    layers = layers_to_time(config, device)
    config = _with_layers(config, layers)
    shape, model = describe_shape(config), build(config, device)
    torch.manual_seed(0)
    probed, trained = (
        torch.randint(config.vocab_size, b, device=device) for b in (forward, update)
    )

    def score() -> None:
        with torch.inference_mode():
            logits = model(input_ids=probed, use_cache=False).logits
            torch.log_softmax(logits[:, :-1], dim=-1)

    def learn() -> None:
        model(input_ids=trained, labels=trained, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)

    def seconds_of(action: object) -> float:
        timer = Timer("action()", globals={"action": action}, num_threads=threads)
        return timer.blocked_autorange(min_run_time=seconds).mean

    name = f"{platform.processor() or platform.machine()}, {threads} threads"
    return Throughput(
        shape.flop(*forward) / seconds_of(score),
        3 * shape.flop(*update) / seconds_of(learn),
        torch.cuda.get_device_name() if device == "cuda" else f"{device} ({name})",
        layers,
        forward,
        update,
        1 if device != "cpu" else cores // threads,
    )


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:,.0f} bytes" if unit == "bytes" else f"{count:,.1f} {unit}"


def duration(hours: float) -> str:
    """Hours as minutes, hours or days."""
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:,.1f} days"


Rows = Iterator[tuple[str, str, str]]  # what, how much, and how it is known


def _rows(costs: Costs, shape: Shape) -> Rows:
    yield "model", f"{shape.parameters:,} parameters", "counted on its classes"
    yield "revisions", f"{costs.revisions:,}", "the plan"
    if costs.download_bytes:
        each = f"{size(shape.stored_bytes)} each, the larger of the published forms"
        yield "downloads", size(costs.download_bytes), f"computed: {each}"
        hours = costs.download_bytes * 8 / (CONNECTION_MBIT * 1e6) / 3600
        yield "", duration(hours), f"at {CONNECTION_MBIT} Mbit/s; the connection is not measured"
    yield "disk, at most", size(costs.disk_bytes), "computed: one job at a time"
    yield "audit", f"{costs.audit_flop:.2g} FLOP", "computed: 3 forward passes a revision"
    if costs.pretraining_flop:
        yield "training", f"{costs.pretraining_flop:.2g} FLOP", "computed"
    if costs.forks:
        yield f"{costs.forks} forks", f"{costs.fork_training_flop:.2g} FLOP", "computed: updates"
        yield "", f"{costs.fork_probe_flop:.2g} FLOP", "computed: probes on the way"


def _time_rows(costs: Costs, found: Throughput, layers: int) -> Rows:
    rates = (found.forward_rate, found.training_rate)
    part = "" if found.layers == layers else f", {found.layers} of {layers} layers"
    for name, rate, batch in zip(
        ("forward", "update"), rates, (found.forward, found.update), strict=True
    ):
        what = f"measured: {batch[0]} x {batch[1]} tokens{part}, float32, TF32 off"
        yield name, f"{rate / 1e9:.3g} GFLOP/s", what
    audit = costs.audit_flop / found.forward_rate / 3600
    each = f"{duration(audit / costs.revisions)} a revision"
    yield "time, audit", duration(audit), f"estimated from what was measured: {each}"
    if costs.fork_training_flop or costs.pretraining_flop:
        alone = duration(costs.hours(*rates))
        yield "time, all", alone, "estimated; one job at a time, no downloads"
        if found.side_by_side > 1:
            together = duration(costs.hours(*rates, found.side_by_side))
            yield "", together, f"estimated; {found.side_by_side} jobs at a time"


def _job_row(jobs: Mapping[str, int] | None) -> tuple[str, str, str]:
    if jobs is None:
        return "jobs left", "not known", "Snakemake cannot plan them, see below"
    most = sorted(jobs.items(), key=lambda item: (-item[1], item[0]))[:4]
    listed = ", ".join(f"{count} {rule}" for rule, count in most)
    if others := sum(jobs.values()) - sum(count for _, count in most):
        listed += f", {others} others"
    return "jobs left", f"{sum(jobs.values()):,}", listed or "everything is done"


def plan_suite(name: str | None, configfiles: Sequence[str], seconds: float) -> int:
    """Print what a suite costs and return Snakemake's exit code for its dry run.

    ``seconds`` are spent on each of two measurements, none where it is 0. What Snakemake
    says beside its list of jobs is printed too. Raises ``UserError`` for a mistake in the
    configuration.
    """
    suite = read_suite(name, configfiles)
    section = suite.section
    if suite.source == "published":
        print(f"{suite.name}: nothing to compute, it is measured ({section['measurements']})")
        return 0
    config = model_config(suite)
    shape = describe_shape(config, section.get("architecture", {}).get("dtype", "float16"))
    costs = suite_costs(section, shape, revisions=len(suite.steps), last=suite.last)
    rows, where = [*_rows(costs, shape)], ""
    if seconds > 0:
        device = choose_device(section["device"])
        forward, update = batches_to_time(section, shape, device)
        found = measure(config, device=device, forward=forward, update=update,
                        threads=section["threads"], seconds=seconds)  # fmt: skip
        rows += _time_rows(costs, found, shape.layers)
        where = f" on {found.device}"
    code, jobs, said = dry_run("--config", f"suite={suite.name}", configfiles=configfiles)
    table = Table("what", "how much", "how it is known", title=f"{section['label']}{where}",
                  title_justify="left")  # fmt: skip
    for row in (*rows, _job_row(jobs)):
        table.add_row(*row)
    Console().print(table)
    for line in (*suite.skipped, *said):
        print(line, file=sys.stderr if code else sys.stdout)
    return code
