"""How many floating-point operations a second this machine makes of a model's shape.

Float32 with TF32 off, as everything here is computed. Where the whole model is too large
to be timed in seconds, fewer of its layers are, at full width.
"""

import copy
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workflow_scripts.lib.costs.shapes import build, describe_shape
from workflow_scripts.lib.costs.totals import forward_flop, training_flop
from workflow_scripts.lib.numerics import prepare_backend

CPU_LENGTH = 128  # tokens that are timed on a CPU
MOST_PARAMETERS = {"cpu": 250_000_000, "mps": 200_000_000, "cuda": 2_000_000_000}


@dataclass(frozen=True)
class Throughput:
    """Operations a second without and with gradients, and of what they were measured."""

    forward_rate: float
    training_rate: float
    device: str
    layers: int
    sequences: int
    length: int


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


def measure(
    config: object, *, device: str, sequences: int, length: int, seconds: float
) -> Throughput:
    """Time forward passes and updates of ``[sequences, length]`` tokens, ``seconds`` each."""
    prepare_backend()
    layers = layers_to_time(config, device)
    config = _with_layers(config, layers)
    shape = describe_shape(config)
    torch.manual_seed(0)
    model = build(config, device)
    ids = torch.randint(config.vocab_size, (sequences, length), device=device)

    def forward() -> None:
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits
            torch.log_softmax(logits[:, :-1], dim=-1)

    def update() -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)

    return Throughput(
        forward_flop(shape, sequences, length) * _per_second(forward, seconds, device),
        training_flop(shape, sequences, length) * _per_second(update, seconds, device),
        name_device(device),
        layers,
        sequences,
        length,
    )


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


def timed_batch(batch_size: int, length: int, device: str) -> tuple[int, int]:
    """Sequences and length to time: the suite's own batch on a GPU, one short sequence on a CPU."""
    return (batch_size, length) if device != "cpu" else (1, min(length, CPU_LENGTH))
