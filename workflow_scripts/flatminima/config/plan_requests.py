"""Memory (MB) and time (minutes) that a job requests from a cluster, from the suite's model.

Memory is counted in copies of the model's float32 weights, the largest part of most jobs, and in
activations. Time is counted in operations and in bytes that are read, at the rates of old machines.
Both estimates are generous: a job that requests too little is killed and starts again. Snakemake
measures what jobs really need (``benchmarks/``).

Rules multiply both with the number of the attempt.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from safetensors import safe_open

from flatminima.config.keys import PYTHIA_VOCABULARY
from flatminima.config.plan import PlantingJob, PretrainingJob, deployed_folders
from flatminima.config.plan_forks import CALIBRATION_BATCHES, average_steps, branch
from flatminima.config.plan_mechanism import (
    measure_folders,
    measured_steps,
    measurement,
    replica,
)
from flatminima.config.suites import Suite

MB = 10**6
FLOAT32 = 4  # bytes of a number
START_MB = 3000  # Python, torch, and CUDA's part of the main memory
START_MINUTES = 15  # to import everything on a slow file system, with a margin
SAFETY = 2.0  # factor on estimated times

# Copies of the model's float32 weights in memory at the peak of a job.
# The model, its file in half precision, one quantized matrix at a time. A probe keeps quantized
# copies only where memory is left (``scoring.score_quantized``).
PROBE_COPIES = 2.0
KURTOSIS_COPIES = 2.0  # the model, its file in half precision, a part of its weights in float64
AVERAGE_COPIES = 4.0  # a model, the sums in float64, and the next model
DEPLOYED_COPIES = 4.0  # a model, a copy of it, and that copy in another format
TRAINING_COPIES = 6.0  # weights, gradients, two moments, SAM's saved weights, a state that is saved
CALIBRATION_COPIES = 8.0  # a model, gradients, their magnitudes, a training state
MECHANISM_COPIES = 6.0  # a model, gradients, and vectors as large as the model
FLIPS_COPIES = 12.0  # training, and the codes and changes of two states
DRIFT_COPIES = 44.0  # two states with their codes, and 17 states in float64 for distances
TENSOR_COPIES = 6.0  # of the largest tensor, while it is described

# Numbers that a layer keeps per token, in multiples of its width.
KEPT_FOR_BACKWARD = 24
KEPT_IN_FORWARD = 16
LOGITS_KEPT = 3  # logits, their logarithms, and gradients or logits of another model

# Operations per second.
GPU_RATE = 5e12
THREAD_RATE = 5e9
# Bytes per second.
DOWNLOAD_RATE = 20e6
READ_RATE = 100e6
DESCRIBED_RATE = 20e6  # weights per second that are hashed and sketched

# Operations, in forward passes over the same sequences.
FORWARDS_OF_A_PROBE = 3  # full precision, low bit, high bit
FORWARDS_OF_BACKWARD = 2


def forward_flop(multiplied: int, layers: int, width: int, *, sequences: int, length: int) -> float:
    """Operations of a forward pass over ``[sequences, length]`` tokens.

    A token needs 2 operations for each of the ``multiplied`` weights. Attention adds 2 L T d
    per token of a sequence of T tokens: the causal half of two products, in L layers of width d.
    """
    operations_per_token = 2 * multiplied + 2 * layers * length * width
    return float(sequences * length * operations_per_token)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that decide the memory and time of its jobs."""

    parameters: int
    layers: int
    width: int
    heads: int
    vocabulary: int

    @property
    def copy_mb(self) -> float:
        """Size of the model's weights in float32."""
        return FLOAT32 * self.parameters / MB

    @property
    def largest_tensor_mb(self) -> float:
        """Size of the embedding or of a matrix of the MLP in float32."""
        return FLOAT32 * max(self.vocabulary * self.width, 4 * self.width**2) / MB

    def forward_flop(self, sequences: int, length: int) -> float:
        """Operations of a forward pass."""
        # The embedding is looked up, not multiplied.
        multiplied = self.parameters - self.vocabulary * self.width
        return forward_flop(
            max(multiplied, 0), self.layers, self.width, sequences=sequences, length=length
        )

    def logits_mb(self, sequences: int, length: int) -> float:
        """Memory for the logits of a batch and for arrays derived from them."""
        return FLOAT32 * LOGITS_KEPT * sequences * length * self.vocabulary / MB

    def scoring_mb(self, sequences: int, length: int) -> float:
        """Memory for the activations of one layer at a time, and for logits."""
        kept = KEPT_IN_FORWARD * self.width + self.heads * length
        return FLOAT32 * sequences * length * kept / MB + self.logits_mb(sequences, length)

    def training_mb(self, sequences: int, length: int, attention: str = "sdpa") -> float:
        """Memory for the activations of all layers (for the backward pass) and for logits."""
        kept = KEPT_FOR_BACKWARD * self.width
        if attention == "eager":
            kept += 3 * self.heads * length
        activations = FLOAT32 * sequences * length * self.layers * kept / MB
        return activations + self.logits_mb(sequences, length)


def gpt_neox_parameters(layers: int, width: int, vocabulary: int) -> int:
    """Parameters of a GPT-NeoX model with an untied output head, such as all Pythias."""
    block = 12 * width**2 + 13 * width
    return layers * block + 2 * width + 2 * vocabulary * width


@cache
def model_shape(suite: Suite) -> ModelShape:
    """The shape of a suite's model.

    For a local suite it is read from the last checkpoint. A hub suite without the section
    ``architecture`` is assumed to be as large as Pythia-160m.
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
    layers = shape.num_layers
    width = shape.hidden_size
    parameters = gpt_neox_parameters(layers, width, vocabulary)
    mlp_width = getattr(shape, "intermediate_size", None)
    if mlp_width:
        # GPT-NeoX has two matrices in its MLP, 4 * width wide. Other families have three.
        parameters += layers * width * max(0, 3 * mlp_width - 8 * width)
    return ModelShape(parameters, layers, width, shape.num_heads, vocabulary)


def _stored_shape(suite: Suite) -> ModelShape:
    """The shape of a local suite's last checkpoint, from its headers and its configuration."""
    checkpoint = suite.checkpoint(suite.steps[-1])
    parameters = 0
    for name in checkpoint.files:
        if name.endswith(".safetensors"):
            parameters += _count_parameters(Path(checkpoint.folder, name))
    try:
        config = json.loads(Path(checkpoint.folder, "config.json").read_text(encoding="utf-8"))
    except ValueError:  # a damaged file is reported when the checkpoint is loaded
        config = {}

    def number(*names: str, default: int) -> int:
        """The first of these keys that is a whole number."""
        for name in names:
            if isinstance(config.get(name), int):
                return config[name]
        return default

    # Families of transformers have different names for the same size.
    layers = number("num_hidden_layers", "n_layer", "num_layers", default=24)
    width = number(
        "hidden_size", "n_embd", "d_model", default=math.isqrt(parameters // (12 * layers)) + 1
    )
    heads = number("num_attention_heads", "n_head", "num_heads", default=16)
    vocabulary = number("vocab_size", default=PYTHIA_VOCABULARY)
    return ModelShape(parameters, layers, width, heads, vocabulary)


def _count_parameters(file: Path) -> int:
    """Number of parameters in a safetensors file, from its header."""
    count = 0
    with safe_open(file, framework="np") as stored:
        for tensor in stored.keys():  # noqa: SIM118, ``stored`` is not a mapping
            count += math.prod(stored.get_slice(tensor).get_shape())
    return count


# Time.


def _rate(suite: Suite) -> float:
    """Operations per second: of a GPU if the suite's device may be one, else of its threads."""
    # "auto" plans for the GPU: a cluster that has none is told so by ``device: cpu``.
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
    forwards = FORWARDS_OF_A_PROBE + len(suite.config.probe.also)
    return _loading_seconds(suite) + forwards * _forward_seconds(suite, sequences)


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
    # Gradients are accumulated over micro-batches, so only one of them is in memory.
    micro_batch = (compute and compute.micro_batch) or batch_size
    attention = compute.attention if compute else "sdpa"
    length = suite.key("batches.train.length")
    return model_shape(suite).training_mb(min(batch_size, micro_batch), length, attention)


# Jobs on checkpoints.


def probe_mb(suite: Suite) -> int:
    """Memory of a job that probes checkpoints, one after another."""
    shape = model_shape(suite)
    scoring = _scoring_mb(suite, suite.config.probe.batch_size)
    return _megabytes(PROBE_COPIES * shape.copy_mb, scoring)


def probe_minutes(suite: Suite, steps: str) -> int:
    """Time for the checkpoints of a range."""
    return _minutes(len(suite.steps_in(steps)) * _probing_seconds(suite))


def describe_mb(suite: Suite) -> int:
    """Memory of a job that describes checkpoints, one tensor after another."""
    return _megabytes(TENSOR_COPIES * model_shape(suite).largest_tensor_mb)


def describe_minutes(suite: Suite, steps: str) -> int:
    """Time for the checkpoints of a range."""
    return _minutes(len(suite.steps_in(steps)) * _describing_seconds(suite))


def kurtosis_mb(suite: Suite) -> int:
    """Memory of a job that measures the kurtosis of checkpoints, one after another."""
    return _megabytes(KURTOSIS_COPIES * model_shape(suite).copy_mb)


def kurtosis_minutes(suite: Suite, steps: str) -> int:
    """Time for the checkpoints of a range."""
    return describe_minutes(suite, steps)


def revision_mb(suite: Suite) -> int:
    """Memory of a job that describes and probes hub revisions and measures their kurtosis."""
    return max(describe_mb(suite), kurtosis_mb(suite), probe_mb(suite))


def revision_minutes(suite: Suite, steps: str) -> int:
    """Time to fetch, describe and probe the revisions of a range, with their kurtosis."""
    # The kurtosis takes as long as the description.
    measuring_seconds = 2 * _describing_seconds(suite) + _probing_seconds(suite)
    seconds_per_revision = _fetching_seconds(suite) + measuring_seconds
    return _minutes(len(suite.steps_in(steps)) * seconds_per_revision)


def fetch_minutes(suite: Suite) -> int:
    """Time to fetch one revision from the hub."""
    return _minutes(_fetching_seconds(suite))


def average_mb(suite: Suite) -> int:
    """Memory of a job that averages checkpoints and probes the average."""
    scoring = _scoring_mb(suite, suite.config.probe.batch_size)
    return _megabytes(AVERAGE_COPIES * model_shape(suite).copy_mb, scoring)


def average_minutes(suite: Suite, name: str) -> int:
    """Time to make and probe one average."""
    loading = len(average_steps(suite, name)) * _loading_seconds(suite)
    return _minutes(loading + _probing_seconds(suite))


def deployed_mb(suite: Suite) -> int:
    """Memory of a job that probes checkpoints in formats of other libraries."""
    scoring = _scoring_mb(suite, suite.config.probe.batch_size)
    return _megabytes(DEPLOYED_COPIES * model_shape(suite).copy_mb, scoring)


def deployed_minutes(suite: Suite) -> int:
    """Time to probe each checkpoint in about ten formats."""
    return _minutes(10 * len(deployed_folders(suite)) * _probing_seconds(suite))


# Jobs that train.


def fork_mb(suite: Suite) -> int:
    """Memory of a job that trains a fork."""
    fork = suite.key("fork")
    activations = _training_mb(suite, fork.batch_size)
    return _megabytes(TRAINING_COPIES * model_shape(suite).copy_mb, activations)


def fork_minutes(suite: Suite, series: str, condition: str) -> int:
    """Time to train one condition of a series with one seed."""
    settings = branch(suite, series, condition).condition()
    updates = settings.stop - settings.start
    sequences = settings.fork["batch_size"]
    return _minutes(_training_seconds(suite, updates, sequences, _rate(suite)))


def fork_probe_minutes(suite: Suite, series: str, condition: str) -> int:
    """Time to probe the checkpoints of a fork."""
    count = len(branch(suite, series, condition).steps())
    return _minutes(count * _probing_seconds(suite))


def fork_kurtosis_minutes(suite: Suite, series: str, condition: str) -> int:
    """Time for the kurtosis of the checkpoints of a fork."""
    count = len(branch(suite, series, condition).steps())
    return _minutes(count * _describing_seconds(suite))


def calibration_mb(suite: Suite) -> int:
    """Memory of a job that computes gradients at the start of the forks."""
    activations = _training_mb(suite, suite.key("fork").batch_size)
    return _megabytes(CALIBRATION_COPIES * model_shape(suite).copy_mb, activations)


def calibration_minutes(suite: Suite) -> int:
    """Time for the gradients of a few batches."""
    sequences = suite.key("fork").batch_size
    training = _training_seconds(suite, CALIBRATION_BATCHES, sequences, _rate(suite))
    return _minutes(_loading_seconds(suite) + training)


def pretraining_mb(job: PretrainingJob) -> int:
    """Memory of a job that trains a suite on a CPU."""
    activations = _training_mb(job.suite, job.suite.config.training.batch_size)
    return _megabytes(TRAINING_COPIES * model_shape(job.suite).copy_mb, activations)


def pretraining_minutes(job: PretrainingJob) -> int:
    """Time for the updates of one job."""
    suite = job.suite
    rate = THREAD_RATE * suite.config.threads
    sequences = suite.config.training.batch_size
    return _minutes(_training_seconds(suite, job.stop - job.start, sequences, rate))


def planting_mb(job: PlantingJob) -> int:
    """Memory of the job that scales channels of checkpoints, one after another."""
    return _megabytes(TENSOR_COPIES * model_shape(job.suite).copy_mb)


def planting_minutes(job: PlantingJob) -> int:
    """Time to read, scale and write all checkpoints of a planted suite."""
    return _minutes(2 * len(job.folders) * _loading_seconds(job.suite))


# Jobs beyond the paper.


def measure_mb(suite: Suite) -> int:
    """Memory of a job that measures checkpoints beyond the paper, one after another."""
    shape = model_shape(suite)
    batch_size = suite.config.mechanism.batch_size
    length = suite.config.batches.validation.length
    activations = shape.training_mb(batch_size, length, "eager")
    return _megabytes(MECHANISM_COPIES * shape.copy_mb, activations)


def measure_minutes(suite: Suite, steps: str, measure: str) -> int:
    """Time for the checkpoints of one job of a measurement."""
    section = measurement(suite, measure)
    n_checkpoints = len(measure_folders(suite, steps, measure))
    passes_seconds = _forwards_of(suite, measure) * _forward_seconds(suite, section.sequences)
    return _minutes(n_checkpoints * (_loading_seconds(suite) + passes_seconds))


def _forwards_of(suite: Suite, measure: str) -> int:
    """Cost of a measurement on one checkpoint, in forward passes over its sequences."""
    section = measurement(suite, measure)
    if measure == "factorial":
        granularities = 2 + len(section.group_sizes)  # per tensor, per channel, groups
        symmetries = 2
        return len(section.bits) * symmetries * granularities + len(section.formats)
    if measure == "layers":
        return 2 * 4 * model_shape(suite).layers  # four matrices of a block, alone and left out
    if measure == "sensitivity":
        return 10 * (1 + section.draws)
    if measure == "curvature":
        return 6 * (20 + section.draws)  # Lanczos steps, and random vectors for the trace
    return 10  # activations


def drift_mb(suite: Suite) -> int:
    """Memory of the job that compares the weights of successive checkpoints."""
    return _megabytes(DRIFT_COPIES * model_shape(suite).copy_mb)


def drift_minutes(suite: Suite) -> int:
    """Time to compare all checkpoints of the drift."""
    return _minutes(2 * len(measured_steps(suite, "drift")) * _describing_seconds(suite))


def phase_flips_mb(suite: Suite) -> int:
    """Memory of the job that follows the codes through the phases of OLI."""
    activations = _training_mb(suite, suite.key("fork").batch_size)
    return _megabytes(FLIPS_COPIES * model_shape(suite).copy_mb, activations)


def phase_flips_minutes(suite: Suite) -> int:
    """Time to train each OLI schedule and the control with each seed."""
    fork = suite.key("fork")
    cycles = measurement(suite, "phase_flips").cycles
    # Twice, since the control is trained over the steps of each OLI schedule.
    updates = 2 * len(fork.seeds) * cycles * sum(kind.period for kind in fork.oli.values())
    return _minutes(_training_seconds(suite, updates, fork.batch_size, _rate(suite)))


def _replica_shape(suite: Suite, name: str) -> ModelShape:
    shape = model_shape(suite)
    width = replica(suite, name).width
    parameters = gpt_neox_parameters(shape.layers, width, shape.vocabulary)
    return dataclasses.replace(shape, parameters=parameters, width=width)


def replica_mb(suite: Suite, run: str) -> int:
    """Memory of a job that trains or probes one small run."""
    shape = _replica_shape(suite, run)
    batch_size = suite.config.training.batch_size
    activations = shape.training_mb(batch_size, suite.key("batches.train.length"))
    scoring = shape.scoring_mb(
        suite.config.probe.batch_size, suite.config.batches.validation.length
    )
    return _megabytes(TRAINING_COPIES * shape.copy_mb, activations, scoring)


def replica_minutes(suite: Suite, run: str) -> int:
    """Time to train and probe one small run on a CPU."""
    shape = _replica_shape(suite, run)
    batches = suite.config.batches
    batch_size = suite.config.training.batch_size
    sequences = measurement(suite, "replication").sequences

    update_forward = shape.forward_flop(batch_size, suite.key("batches.train.length"))
    update_flop = (1 + FORWARDS_OF_BACKWARD) * update_forward
    probe_flop = FORWARDS_OF_A_PROBE * shape.forward_flop(sequences, batches.validation.length)
    steps = replica(suite, run).steps
    flop = steps[-1] * update_flop + len(steps) * probe_flop
    return _minutes(flop / (THREAD_RATE * suite.config.threads))
