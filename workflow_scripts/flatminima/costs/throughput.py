"""How many floating-point operations a second this machine makes of a model's shape.

Float32 with TF32 off, as everything here is computed. Where the whole model is too large
to be timed in seconds, fewer of its layers are, at full width.
"""

import copy
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flatminima.costs.shapes import Shape, build, describe_shape
from flatminima.costs.totals import forward_flop, training_flop
from flatminima.numerics import prepare_backend

CPU_LENGTH = 128  # tokens of the one sequence that is timed on a CPU where a batch takes too long
CPU_FLOP = 1e11  # of an update that is timed on a CPU: a second or so
MOST_PARAMETERS = {"cpu": 250_000_000, "mps": 200_000_000, "cuda": 2_000_000_000}


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
