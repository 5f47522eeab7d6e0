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
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from flatminima.jobs import jobs_left
from flatminima.layers import count_weights, linear_layers
from flatminima.model import choose_device, prepare_backend
from flatminima.plan import read_suite
from flatminima.plan_forks import keeps_forks
from flatminima.suites import Suite

PYTHIA_ROWS = 50304  # rows of Pythia's embedding
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
ADAM_BYTES = 12  # of one parameter in a saved training state: weight and two moments, float32
CHECKPOINT_BYTES = 4  # of one parameter in a checkpoint that is written here
CPU_LENGTH = 128  # tokens of the one sequence that is timed on a CPU where a batch takes too long
CPU_FLOP = 1e11  # of an update that is timed on a CPU: a second or so
MOST_PARAMETERS = {"cpu": 250_000_000, "mps": 200_000_000, "cuda": 2_000_000_000}
CONNECTION_MBIT = 100  # a connection to compare downloads with; nothing is measured of it
# What Snakemake says of every run.
SAID_ALWAYS = ("Config file", "Assuming unrestricted", "Building DAG", "Using workflow specific")
UNITS = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]


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
        vocab_size=vocab_size or architecture.get("vocab_size", PYTHIA_ROWS),
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )


def read_local_config(folder: str | Path) -> object:
    """The configuration beside a checkpoint; no code that comes with it is run."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def build(config: object, device: str = "meta") -> nn.Module:
    """A model of a configuration in float32; on ``meta`` it has shapes and no memory."""
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def describe_shape(config: object, dtype: str = "float16") -> Shape:
    """Count a model; ``dtype`` is that of the published files."""
    model = build(config)
    blocks = sum(layer.weight.numel() for layer in linear_layers(model).values())
    head = model.get_output_embeddings()
    parameters = count_weights(model)
    # One byte of mask for each pair of positions in each layer.
    masks = config.model_type == "gpt_neox"
    mask_bytes = masks * config.num_hidden_layers * config.max_position_embeddings**2
    return Shape(
        parameters=parameters,
        multiplied=blocks + (head.weight.numel() if head is not None else 0),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        stored_bytes=BYTES[dtype] * parameters + mask_bytes,
    )


def forward_flop(shape: Shape, sequences: int, length: int) -> float:
    """Operations of one forward pass over ``[sequences, length]`` tokens."""
    each = 2 * shape.multiplied + 2 * shape.layers * length * shape.width
    return float(sequences * length * each)


def training_flop(shape: Shape, sequences: int, length: int) -> float:
    """Operations of forward and backward passes over ``[sequences, length]`` tokens."""
    return 3 * forward_flop(shape, sequences, length)


@dataclass(frozen=True)
class Costs:
    """Totals of one suite. Bytes, and floating-point operations by kind of pass."""

    revisions: int
    forks: int
    download_bytes: int
    disk_bytes: int
    audit_flop: float
    fork_probe_flop: float
    fork_training_flop: float
    pretraining_flop: float

    @property
    def forward_flop(self) -> float:
        """All passes without gradients."""
        return self.audit_flop + self.fork_probe_flop

    @property
    def training_flop(self) -> float:
        """All passes with gradients."""
        return self.fork_training_flop + self.pretraining_flop

    def hours(self, forward_rate: float, training_rate: float, side_by_side: int = 1) -> float:
        """Hours at so many operations a second without and with gradients.

        With several jobs ``side_by_side`` all is shared among them but the run itself.
        """
        shared = self.forward_flop / forward_rate + self.fork_training_flop / training_rate
        return (shared / side_by_side + self.pretraining_flop / training_rate) / 3600


def batch_shapes(section: Mapping) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sequences and tokens of a batch of the suite's probes and of its updates."""
    batches = section["batches"]
    probe = (section["probe"]["batch_size"], batches["validation"]["length"])
    run = section.get("fork") or (section["training"] if section["source"] == "pretrain" else None)
    return probe, (run["batch_size"], batches["train"]["length"]) if run else probe


def suite_costs(section: Mapping, shape: Shape, *, revisions: int, last: int) -> Costs:
    """Costs of a suite's section of the configuration with ``revisions`` checkpoints.

    Disk is the most that lies there at one time: checkpoints and one state of training.
    """
    source, fork = section["source"], section.get("fork")
    validation = section["batches"]["validation"]
    probe = 3 * forward_flop(shape, validation["sequences"], validation["length"])
    forks = len(fork["schedules"]) * len(fork["seeds"]) if fork else 0
    fork_probes = forks * (fork["steps"] // fork["probe_every"]) if fork else 0
    return Costs(
        revisions=revisions,
        forks=forks,
        download_bytes=shape.stored_bytes * (revisions + bool(fork)) * (source == "hub"),
        disk_bytes=_disk_bytes(section, shape, revisions),
        audit_flop=revisions * probe,
        fork_probe_flop=fork_probes * probe,
        fork_training_flop=forks * _run_flop(section, shape, fork, fork["steps"]) if fork else 0.0,
        pretraining_flop=(
            _run_flop(section, shape, section["training"], last) if source == "pretrain" else 0.0
        ),
    )


def _run_flop(section: Mapping, shape: Shape, run: Mapping, steps: int) -> float:
    """Operations of ``steps`` updates with the batch size of ``run``."""
    return steps * training_flop(shape, run["batch_size"], section["batches"]["train"]["length"])


def _disk_bytes(section: Mapping, shape: Shape, revisions: int) -> int:
    state = ADAM_BYTES * shape.parameters * ("fork" in section or section["source"] == "pretrain")
    if fork := section.get("fork"):  # all of them, or those of the one that is being measured
        forks = len(fork["schedules"]) * len(fork["seeds"]) if keeps_forks(section) else 1
        probes = forks * (fork["steps"] // fork["probe_every"])
        state += probes * CHECKPOINT_BYTES * shape.parameters
    if section["source"] == "pretrain":
        return revisions * CHECKPOINT_BYTES * shape.parameters + state
    if section["source"] == "local":
        return state
    return (1 + ("fork" in section)) * shape.stored_bytes + state  # for each job at work


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


def layers_to_time(config: object, device: str) -> int:
    """How many of the model's layers are timed on ``device``; at least one."""
    whole = describe_shape(config)
    none = describe_shape(_with_layers(config, 1)).parameters
    each = max(1, (whole.parameters - none) // max(1, whole.layers - 1))
    room = MOST_PARAMETERS[device] - (none - each)
    return int(min(whole.layers, max(1, room // each)))


def _with_layers(config: object, layers: int) -> object:
    changed = copy.deepcopy(config)
    changed.num_hidden_layers = layers
    if getattr(changed, "layer_types", None):
        changed.layer_types = changed.layer_types[:layers]
    return changed


def name_device(device: str) -> str:
    """What ``device`` is, as a person knows it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    processor = platform.processor() or platform.machine()
    return f"{device} ({processor}, {torch.get_num_threads()} threads)"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    shape = describe_shape(config)
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = build(config, device)

        def score() -> None:
            with torch.inference_mode():
                logits = model(input_ids=probed, use_cache=False).logits
                torch.log_softmax(logits[:, :-1], dim=-1)

        def learn() -> None:
            model(input_ids=trained, labels=trained, use_cache=False).loss.backward()
            model.zero_grad(set_to_none=True)

        probed, trained = (
            torch.randint(config.vocab_size, batch, device=device) for batch in (forward, update)
        )
        return Throughput(
            forward_flop(shape, *forward) * _per_second(score, seconds, device),
            training_flop(shape, *update) * _per_second(learn, seconds, device),
            name_device(device),
            layers,
            forward,
            update,
            1 if device != "cpu" else cores // threads,
        )
    finally:
        torch.set_num_threads(before)


def _per_second(action: Callable[[], None], seconds: float, device: str) -> float:
    """Runs a second, after one that does not count."""
    action()
    _wait(device)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        action()
        _wait(device)
        count += 1
    return count / (time.perf_counter() - started)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def timed_batch(shape: Shape, batch_size: int, length: int, device: str) -> tuple[int, int]:
    """Sequences and length to time: the suite's own batch, on a CPU what takes about a second.

    A batch that is much smaller than the suite's would measure the calls and not the work.
    """
    if device != "cpu" or training_flop(shape, batch_size, length) <= CPU_FLOP:
        return batch_size, length
    length = min(length, CPU_LENGTH)
    return max(1, min(batch_size, int(CPU_FLOP / training_flop(shape, 1, length)))), length


def model_config(suite: Suite) -> object:
    """The configuration of the suite's model: a local one's from its last checkpoint.

    Raises ``ValueError`` where the suite says no architecture.
    """
    if suite.source == "local":
        return read_local_config(suite.folder(suite.steps[-1]))
    if "architecture" not in suite.section:
        raise ValueError(
            f"config key suites.{suite.name} lacks architecture, which costs follow from"
        )
    return read_config(
        suite.section["architecture"], vocab_size=suite.section["tokenizer"].get("vocab_size")
    )


def model_shape(suite: Suite, config: object) -> Shape:
    """What the suite's model is made of."""
    dtype = suite.section.get("architecture", {}).get("dtype", "float16")
    return describe_shape(config, dtype)


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    factor, unit = next(((f, u) for f, u in UNITS if count >= f), (1, "bytes"))
    return f"{count / factor:,.1f} {unit}" if factor > 1 else f"{count:.0f} {unit}"


def duration(hours: float) -> str:
    """Hours as minutes, hours or days."""
    if hours < 1:
        return f"{60 * hours:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:,.1f} days"


def _rows(costs: Costs, shape: Shape, source: str) -> Iterator[tuple[str, str, str]]:
    """What, how much, and how it is known."""
    yield "model", f"{shape.parameters:,} parameters", "counted on its classes"
    yield "revisions", f"{costs.revisions:,}", "the plan"
    if source == "hub":
        each = f"{size(shape.stored_bytes)} each, the larger of the published forms"
        yield "downloads", size(costs.download_bytes), f"computed: {each}"
        hours = costs.download_bytes * 8 / (CONNECTION_MBIT * 1e6) / 3600
        yield "", duration(hours), f"at {CONNECTION_MBIT} Mbit/s; the connection is not measured"
    yield "disk, at most", size(costs.disk_bytes), "computed: checkpoints and training state"
    yield "audit", f"{costs.audit_flop:.2g} FLOP", "computed: 3 forward passes a revision"
    if costs.pretraining_flop:
        yield "training", f"{costs.pretraining_flop:.2g} FLOP", "computed"
    if costs.forks:
        yield f"{costs.forks} forks", f"{costs.fork_training_flop:.2g} FLOP", "computed: updates"
        yield "", f"{costs.fork_probe_flop:.2g} FLOP", "computed: probes on the way"


def _time_rows(costs: Costs, found: Throughput, whole: int) -> Iterator[tuple[str, str, str]]:
    part = "" if found.layers == whole else f", {found.layers} of {whole} layers"
    for name, rate, batch in (
        ("forward", found.forward_rate, found.forward),
        ("update", found.training_rate, found.update),
    ):
        what = f"measured: {batch[0]} x {batch[1]} tokens{part}, float32, TF32 off"
        yield name, f"{rate / 1e9:.3g} GFLOP/s", what
    audit = costs.audit_flop / found.forward_rate / 3600
    yield "time, audit", duration(audit), "estimated from what was measured"
    if costs.training_flop:
        total = costs.hours(found.forward_rate, found.training_rate)
        yield "time, all", duration(total), "estimated; one job at a time, no downloads"
        if found.side_by_side > 1:
            total = costs.hours(found.forward_rate, found.training_rate, found.side_by_side)
            yield "", duration(total), f"estimated; {found.side_by_side} jobs at a time"


def report(
    suite: Suite,
    costs: Costs,
    shape: Shape,
    *,
    jobs: Mapping[str, int] | None,
    throughput: Throughput | None,
) -> Table:
    """The plan as a table; ``jobs`` are those left by rule, ``None`` where it cannot be told."""
    where = f" on {throughput.device}" if throughput else ""
    table = Table(title=f"{suite.section['label']}{where}", title_justify="left")
    for heading in ("what", "how much", "how it is known"):
        table.add_column(heading)
    rows = [*_rows(costs, shape, suite.source)]
    if throughput:
        rows += [*_time_rows(costs, throughput, shape.layers)]
    if jobs is None:
        rows.append(("jobs left", "not known", "Snakemake cannot plan them, see below"))
    else:
        most = sorted(jobs.items(), key=lambda item: (-item[1], item[0]))[:4]
        listed = ", ".join(f"{count} {rule}" for rule, count in most)
        rows.append(("jobs left", f"{sum(jobs.values()):,}", listed or "everything is done"))
    for row in rows:
        table.add_row(*row)
    return table


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
    shape, throughput = model_shape(suite, config), None
    if seconds > 0:
        device = choose_device(section["device"])
        forward, update = (timed_batch(shape, *b, device) for b in batch_shapes(section))
        timed = {"forward": forward, "update": update, "threads": section["threads"]}
        throughput = measure(config, device=device, seconds=seconds, **timed)
    costs = suite_costs(section, shape, revisions=len(suite.steps), last=suite.last)
    code, jobs, said = dry_run(suite.name, configfiles)
    Console().print(report(suite, costs, shape, jobs=jobs, throughput=throughput))
    for line in (*suite.skipped, *said):
        print(line, file=sys.stderr if code else sys.stdout)
    return code


def dry_run(suite: str, configfiles: Sequence[str]) -> tuple[int, dict[str, int] | None, list[str]]:
    """Snakemake's exit code, the jobs left by rule (``None`` where it failed), its messages."""
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "host", "rules"]
    command += ["--config", f"suite={suite}"]
    command += ["--configfile", *configfiles] if configfiles else []
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    said = run.stdout if run.returncode else re.split("Job stats:|Nothing to be", run.stdout)[0]
    lines = [line for line in (said + run.stderr).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(SAID_ALWAYS)]
    return run.returncode, None if run.returncode else jobs_left(run.stdout), lines
