"""What a job asks a cluster for: memory in MB and time in minutes, from the suite's model.

Memory is counted in copies of the model's float32 weights, which is what most jobs hold at their
peak, and in activations. Time is counted in operations, at rates that old machines reach, and in
bytes that are read. Both are generous: a job that asks for too little is killed and starts again.
What a job really needs is measured by Snakemake (``benchmarks/``).

A rule multiplies both with the number of the attempt.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from safetensors import safe_open

from flatminima.config.keys import PYTHIA_VOCABULARY
from flatminima.config.plan import PretrainingJob, deployed_folders
from flatminima.config.plan_forks import CALIBRATION_BATCHES, average_steps, branch
from flatminima.config.plan_mechanism import (
    measure_folders,
    measured_steps,
    measurement,
    replica,
)
from flatminima.config.suites import Suite

MB = 10**6
FLOAT32, FLOAT64 = 4, 8  # bytes of a number
START_MB = 3000  # Python, torch, and what CUDA keeps in main memory
START_MINUTES = 15  # until a queue's node has imported everything, with room
SAFETY = 2.0  # of a time that is estimated

# Copies of the model's float32 weights that a job holds at its peak.
PROBE_COPIES = 2.0  # the model, its file in half precision, one quantized matrix at a time
KURTOSIS_COPIES = 2.0  # the model, its file in half precision, a part of its weights in float64
AVERAGE_COPIES = 4.0  # a model, the sums in float64, and room for the next model
DEPLOYED_COPIES = 4.0  # a model, a copy of it, and that copy in another format
TRAINING_COPIES = 6.0  # weights, gradients, two moments, SAM's way back, a state that is saved
CALIBRATION_COPIES = 8.0  # a model, gradients, their magnitudes, a training state
MECHANISM_COPIES = 6.0  # a model, gradients, and vectors as large as the model
FLIPS_COPIES = 12.0  # training, and codes and moves of two states side by side
DRIFT_COPIES = 44.0  # two states with their codes, and 17 states in float64 for distances
TENSOR_COPIES = 6.0  # of the largest tensor, while it is described

# Numbers of each token that a layer keeps, in multiples of its width.
KEPT_FOR_BACKWARD, KEPT_IN_FORWARD = 24, 16
LOGITS_KEPT = 3  # logits, their logarithms, and a gradient or another model's logits

# Operations a second, and bytes a second.
GPU_RATE, THREAD_RATE = 5e12, 5e9
DOWNLOAD_RATE, READ_RATE = 20e6, 100e6
DESCRIBED_RATE = 20e6  # weights a second that are hashed and sketched

# Operations of the probes of other measurements, in forward passes over the sequences.
FORWARDS_OF_A_PROBE = 3  # full precision, low bit, high bit
FORWARDS_OF_BACKWARD = 2


def forward_flop(multiplied: int, layers: int, width: int, *, sequences: int, length: int) -> float:
    """Operations of a forward pass over ``[sequences, length]`` tokens.

    2 for each token and each of the ``multiplied`` weights, and for attention 2 L T d for each
    token of a sequence of T, the causal half of its two products over L layers of width d.
    """
    each = 2 * multiplied + 2 * layers * length * width
    return float(sequences * length * each)


@dataclass(frozen=True)
class ModelShape:
    """What memory and time follow from."""

    parameters: int
    layers: int
    width: int
    heads: int
    vocabulary: int

    @property
    def copy_mb(self) -> float:
        """The model's weights in float32."""
        return FLOAT32 * self.parameters / MB

    @property
    def largest_tensor_mb(self) -> float:
        """The embedding or a matrix of the MLP in float32."""
        return FLOAT32 * max(self.vocabulary * self.width, 4 * self.width**2) / MB

    def forward_flop(self, sequences: int, length: int) -> float:
        """Operations of a forward pass; each token looks its embedding up."""
        multiplied = self.parameters - self.vocabulary * self.width
        return forward_flop(
            max(multiplied, 0), self.layers, self.width, sequences=sequences, length=length
        )

    def logits_mb(self, sequences: int, length: int) -> float:
        """Logits of a batch, and what is made of them."""
        return FLOAT32 * LOGITS_KEPT * sequences * length * self.vocabulary / MB

    def scoring_mb(self, sequences: int, length: int) -> float:
        """Activations of one layer at a time, and logits."""
        kept = KEPT_IN_FORWARD * self.width + self.heads * length
        return FLOAT32 * sequences * length * kept / MB + self.logits_mb(sequences, length)

    def training_mb(self, sequences: int, length: int, attention: str = "sdpa") -> float:
        """Activations of all layers, kept for the backward pass, and logits."""
        kept = KEPT_FOR_BACKWARD * self.width
        if attention == "eager":
            kept += 3 * self.heads * length
        activations = FLOAT32 * sequences * length * self.layers * kept / MB
        return activations + self.logits_mb(sequences, length)


def gpt_neox_parameters(layers: int, width: int, vocabulary: int) -> int:
    """Parameters of a GPT-NeoX model with its head untied, as all Pythias are."""
    block = 12 * width**2 + 13 * width
    return layers * block + 2 * width + 2 * vocabulary * width


@cache
def model_shape(suite: Suite) -> ModelShape:
    """The shape of a suite's model: of a local suite what its last checkpoint has.

    Where nothing is known of a hub suite's model it is taken for Pythia-160m.
    """
    if suite.source == "local":
        return _stored_shape(suite)
    shape = suite.config.architecture
    if shape is None:
        parameters = gpt_neox_parameters(12, 768, PYTHIA_VOCABULARY)
        return ModelShape(parameters, 12, 768, 12, PYTHIA_VOCABULARY)
    vocabulary = (
        getattr(shape, "vocab_size", None)
        or getattr(suite.config.tokenizer, "vocab_size", None)
        or PYTHIA_VOCABULARY
    )
    layers, width = shape.num_layers, shape.hidden_size
    parameters = gpt_neox_parameters(layers, width, vocabulary)
    if inside := getattr(shape, "intermediate_size", None):
        # Other families have three matrices in their MLP where GPT-NeoX has two of 4 widths.
        parameters += layers * width * max(0, 3 * inside - 8 * width)
    return ModelShape(parameters, layers, width, shape.num_heads, vocabulary)


def _stored_shape(suite: Suite) -> ModelShape:
    """The shape of a local suite's last checkpoint, from its headers and its configuration."""
    checkpoint = suite.checkpoint(suite.steps[-1])
    parameters = 0
    for name in checkpoint.files:
        if name.endswith(".safetensors"):
            with safe_open(Path(checkpoint.folder, name), framework="np") as stored:
                for tensor in stored.keys():  # noqa: SIM118, no mapping
                    parameters += math.prod(stored.get_slice(tensor).get_shape())
    try:
        config = json.loads(Path(checkpoint.folder, "config.json").read_text(encoding="utf-8"))
    except ValueError:  # a damaged one is named where the checkpoint is loaded
        config = {}

    def number(*names: str, otherwise: int) -> int:
        found = [config[name] for name in names if isinstance(config.get(name), int)]
        return found[0] if found else otherwise

    # The names that transformers has for the same thing in different families.
    layers = number("num_hidden_layers", "n_layer", "num_layers", otherwise=24)
    width = number(
        "hidden_size", "n_embd", "d_model", otherwise=math.isqrt(parameters // (12 * layers)) + 1
    )
    heads = number("num_attention_heads", "n_head", "num_heads", otherwise=16)
    vocabulary = number("vocab_size", otherwise=PYTHIA_VOCABULARY)
    return ModelShape(parameters, layers, width, heads, vocabulary)


# Time.


def _rate(suite: Suite) -> float:
    """Operations a second on a GPU, where the suite's device may be one, or on its threads."""
    on_gpu = suite.config.device in ("cuda", "auto")
    return GPU_RATE if on_gpu else THREAD_RATE * suite.config.threads


def _minutes(seconds: float) -> int:
    return START_MINUTES + math.ceil(SAFETY * seconds / 60)


def _loading_seconds(suite: Suite) -> float:
    return FLOAT32 * model_shape(suite).parameters / READ_RATE


def _describing_seconds(suite: Suite) -> float:
    return _loading_seconds(suite) + model_shape(suite).parameters / DESCRIBED_RATE


def _fetching_seconds(suite: Suite) -> float:
    return FLOAT32 * model_shape(suite).parameters / DOWNLOAD_RATE


def _forward_seconds(suite: Suite, sequences: int) -> float:
    flop = model_shape(suite).forward_flop(sequences, suite.config.batches.validation.length)
    return flop / _rate(suite)


def _probing_seconds(suite: Suite) -> float:
    sequences = suite.config.batches.validation.sequences
    return _loading_seconds(suite) + FORWARDS_OF_A_PROBE * _forward_seconds(suite, sequences)


def _training_seconds(suite: Suite, updates: int, sequences: int, rate: float) -> float:
    length = suite.key("batches.train.length")
    passes = 1 + FORWARDS_OF_BACKWARD
    return updates * passes * model_shape(suite).forward_flop(sequences, length) / rate


# Memory.


def _megabytes(*parts: float) -> int:
    return START_MB + math.ceil(sum(parts))


def _scoring_mb(suite: Suite, batch_size: int) -> float:
    return model_shape(suite).scoring_mb(batch_size, suite.config.batches.validation.length)


def _training_mb(suite: Suite, batch_size: int) -> float:
    compute = suite.config.compute
    at_once = min(batch_size, (compute and compute.micro_batch) or batch_size)
    attention = compute.attention if compute else "sdpa"
    length = suite.key("batches.train.length")
    return model_shape(suite).training_mb(at_once, length, attention)


# Jobs on checkpoints.


def probe_mb(suite: Suite) -> int:
    """A job that probes checkpoints one after another."""
    shape = model_shape(suite)
    scoring = _scoring_mb(suite, suite.config.probe.batch_size)
    return _megabytes(PROBE_COPIES * shape.copy_mb, scoring)


def probe_minutes(suite: Suite, steps: str) -> int:
    """The checkpoints of a range."""
    return _minutes(len(suite.steps_in(steps)) * _probing_seconds(suite))


def describe_mb(suite: Suite) -> int:
    """A job that reads one tensor after another."""
    return _megabytes(TENSOR_COPIES * model_shape(suite).largest_tensor_mb)


def describe_minutes(suite: Suite, steps: str) -> int:
    """The checkpoints of a range."""
    return _minutes(len(suite.steps_in(steps)) * _describing_seconds(suite))


def kurtosis_mb(suite: Suite) -> int:
    """A job that takes the kurtosis of checkpoints one after another."""
    return _megabytes(KURTOSIS_COPIES * model_shape(suite).copy_mb)


def kurtosis_minutes(suite: Suite, steps: str) -> int:
    """The checkpoints of a range."""
    return describe_minutes(suite, steps)


def revision_mb(suite: Suite) -> int:
    """A job that describes and probes revisions of a hub and takes their kurtosis."""
    return max(describe_mb(suite), kurtosis_mb(suite), probe_mb(suite))


def revision_minutes(suite: Suite, steps: str) -> int:
    """The revisions of a range, fetched, described, probed, their kurtosis taken."""
    each = _fetching_seconds(suite) + 2 * _describing_seconds(suite) + _probing_seconds(suite)
    return _minutes(len(suite.steps_in(steps)) * each)


def fetch_minutes(suite: Suite) -> int:
    """One revision from the hub."""
    return _minutes(_fetching_seconds(suite))


def average_mb(suite: Suite) -> int:
    """A job that averages checkpoints and probes the average."""
    scoring = _scoring_mb(suite, suite.config.probe.batch_size)
    return _megabytes(AVERAGE_COPIES * model_shape(suite).copy_mb, scoring)


def average_minutes(suite: Suite, name: str) -> int:
    """The checkpoints of one average."""
    loading = len(average_steps(suite, name)) * _loading_seconds(suite)
    return _minutes(loading + _probing_seconds(suite))


def deployed_mb(suite: Suite) -> int:
    """A job that probes checkpoints in other libraries' formats."""
    scoring = _scoring_mb(suite, suite.config.probe.batch_size)
    return _megabytes(DEPLOYED_COPIES * model_shape(suite).copy_mb, scoring)


def deployed_minutes(suite: Suite) -> int:
    """About ten formats of each checkpoint."""
    return _minutes(10 * len(deployed_folders(suite)) * _probing_seconds(suite))


# Jobs that train.


def fork_mb(suite: Suite) -> int:
    """A job that trains a fork."""
    fork = suite.key("fork")
    activations = _training_mb(suite, fork.batch_size)
    return _megabytes(TRAINING_COPIES * model_shape(suite).copy_mb, activations)


def fork_minutes(suite: Suite, series: str, condition: str) -> int:
    """One condition of a series."""
    fork = branch(suite, series, condition).condition()
    updates = fork.stop - fork.start
    sequences = fork.fork["batch_size"]
    return _minutes(_training_seconds(suite, updates, sequences, _rate(suite)))


def fork_probe_minutes(suite: Suite, series: str, condition: str) -> int:
    """The checkpoints of a fork."""
    count = len(branch(suite, series, condition).steps())
    return _minutes(count * _probing_seconds(suite))


def fork_kurtosis_minutes(suite: Suite, series: str, condition: str) -> int:
    """The checkpoints of a fork."""
    count = len(branch(suite, series, condition).steps())
    return _minutes(count * _describing_seconds(suite))


def calibration_mb(suite: Suite) -> int:
    """A job that takes gradients at the fork point."""
    activations = _training_mb(suite, suite.key("fork").batch_size)
    return _megabytes(CALIBRATION_COPIES * model_shape(suite).copy_mb, activations)


def calibration_minutes(suite: Suite) -> int:
    """The gradients of a few batches."""
    sequences = suite.key("fork").batch_size
    training = _training_seconds(suite, CALIBRATION_BATCHES, sequences, _rate(suite))
    return _minutes(_loading_seconds(suite) + training)


def pretraining_mb(job: PretrainingJob) -> int:
    """A job that trains a suite; on a CPU."""
    activations = _training_mb(job.suite, job.suite.config.training.batch_size)
    return _megabytes(TRAINING_COPIES * model_shape(job.suite).copy_mb, activations)


def pretraining_minutes(job: PretrainingJob) -> int:
    """The updates of one job."""
    suite = job.suite
    rate = THREAD_RATE * suite.config.threads
    sequences = suite.config.training.batch_size
    return _minutes(_training_seconds(suite, job.stop - job.start, sequences, rate))


# Jobs beyond the paper.


def measure_mb(suite: Suite) -> int:
    """A job of a measurement on checkpoints one after another."""
    shape, batch_size = model_shape(suite), suite.config.mechanism.batch_size
    length = suite.config.batches.validation.length
    activations = shape.training_mb(batch_size, length, "eager")
    return _megabytes(MECHANISM_COPIES * shape.copy_mb, activations)


def measure_minutes(suite: Suite, steps: str, measure: str) -> int:
    """The checkpoints of one job of a measurement."""
    entry, layers = measurement(suite, measure), model_shape(suite).layers
    forwards = {
        # Bits by symmetry by granularities (per tensor, per channel, groups), and formats.
        "factorial": lambda: (
            len(entry.bits) * 2 * (2 + len(entry.group_sizes)) + len(entry.formats)
        ),
        "layers": lambda: 2 * 4 * layers,  # each of a block's four matrices, alone and left out
        "sensitivity": lambda: 10 * (1 + entry.draws),
        "curvature": lambda: 6 * (20 + entry.draws),  # Lanczos steps, and vectors of the trace
        "activations": lambda: 10,
    }[measure]()
    each = _loading_seconds(suite) + forwards * _forward_seconds(suite, entry.sequences)
    return _minutes(len(measure_folders(suite, steps, measure)) * each)


def drift_mb(suite: Suite) -> int:
    """The job that follows the weights from checkpoint to checkpoint."""
    return _megabytes(DRIFT_COPIES * model_shape(suite).copy_mb)


def drift_minutes(suite: Suite) -> int:
    """All checkpoints of the drift."""
    return _minutes(2 * len(measured_steps(suite, "drift")) * _describing_seconds(suite))


def phase_flips_mb(suite: Suite) -> int:
    """The job that follows the codes through phases of OLI."""
    activations = _training_mb(suite, suite.key("fork").batch_size)
    return _megabytes(FLIPS_COPIES * model_shape(suite).copy_mb, activations)


def phase_flips_minutes(suite: Suite) -> int:
    """Every OLI schedule and the baseline with each seed."""
    fork, cycles = suite.key("fork"), measurement(suite, "phase_flips").cycles
    updates = 2 * len(fork.seeds) * cycles * sum(kind.period for kind in fork.oli.values())
    return _minutes(_training_seconds(suite, updates, fork.batch_size, _rate(suite)))


def _replica_shape(suite: Suite, name: str) -> ModelShape:
    own, width = model_shape(suite), replica(suite, name).width
    parameters = gpt_neox_parameters(own.layers, width, own.vocabulary)
    return ModelShape(parameters, own.layers, width, own.heads, own.vocabulary)


def replica_mb(suite: Suite, run: str) -> int:
    """A job that trains or probes one small run."""
    shape = _replica_shape(suite, run)
    batch_size = suite.config.training.batch_size
    activations = shape.training_mb(batch_size, suite.key("batches.train.length"))
    scoring = shape.scoring_mb(
        suite.config.probe.batch_size, suite.config.batches.validation.length
    )
    return _megabytes(TRAINING_COPIES * shape.copy_mb, activations, scoring)


def replica_minutes(suite: Suite, run: str) -> int:
    """Training one small run, or probing it; on a CPU."""
    shape, small_run = _replica_shape(suite, run), replica(suite, run)
    entry, validation = measurement(suite, "replication"), suite.config.batches.validation
    length = suite.key("batches.train.length")
    update = (1 + FORWARDS_OF_BACKWARD) * shape.forward_flop(
        suite.config.training.batch_size, length
    )
    probe = FORWARDS_OF_A_PROBE * shape.forward_flop(entry.sequences, validation.length)
    flop = small_run.steps[-1] * update + len(small_run.steps) * probe
    return _minutes(flop / (THREAD_RATE * suite.config.threads))
