"""Training of GPT-NeoX models as Pythia was trained, in a loop that can stop anywhere.

Everything a run depends on is a pure function of the step: the learning rate
(``schedules``), the data order (``batch_rows``) and, since the models have no
dropout, nothing is drawn at random after initialisation. A state is therefore
weights, Adam's two moments and two counters, and a run that was stopped and
resumed ends bit-identical to one that was not.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flatminima.errors import DamagedFile
from flatminima.model import load_tensors, read_metadata, save_tensors
from flatminima.schedules import Schedule
from flatminima.training.gradients import (
    PLAIN,
    Compute,
    batch_gradients,
    sharpness_aware_gradients,
)
from flatminima.training.gradients import next_token_loss as next_token_loss

_COUNTERS = "state"
# Where torch has AdamW as one kernel; elsewhere it falls back on the slower one.
_FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Recipe:
    """How one update is made (section 5.1: "Adam with Pythia's original hyperparameters").

    ``weight_decay`` is decoupled (AdamW) and spares biases and layer norms. A
    ``sam_radius`` above 0 takes the gradient at the worst point that near
    (``gradients.sharpness_aware_gradients``).
    """

    batch_size: int
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    clip_norm: float
    sam_radius: float = 0.0


@dataclass(frozen=True)
class Update:
    """One finished update: the step it led to, its learning rate and its loss.

    ``loss_nats`` is the mean NLL of the batch in nats per token, before the update.
    """

    step: int
    lr: float
    loss_nats: float


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW with fresh moments; weight decay on matrices only. Fused where the device has it."""
    parameters = list(model.parameters())
    fused = all(p.device.type in _FUSED_DEVICES for p in parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=0.0, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=fused or None
    )


def batch_rows(step: int, *, sequences: int, batch_size: int, seed: int) -> np.ndarray:
    """Rows of the training tokens that the update at ``step`` sees, ``[batch_size]``.

    Every epoch is a permutation of its own, drawn from (seed, epoch); a batch may
    straddle two epochs. Depends on nothing but the arguments.
    """
    first = step * batch_size
    rows = np.arange(first, first + batch_size)
    epochs = rows // sequences
    orders = {
        epoch: np.random.default_rng([seed, int(epoch)]).permutation(sequences)
        for epoch in np.unique(epochs)
    }
    return np.array(
        [orders[epoch][row % sequences] for epoch, row in zip(epochs, rows, strict=True)]
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    tokens: np.ndarray,
    schedule: Schedule,
    recipe: Recipe,
    *,
    start: int,
    stop: int,
    seed: int,
    device: str = "cpu",
    compute: Compute = PLAIN,
) -> Iterator[Update]:
    """Train from step ``start`` to step ``stop``, yielding after each update.

    ``tokens`` is ``[sequences, length]``; ``seed`` decides the data order; ``compute``
    says how gradients are computed, on one process or on several. The caller saves,
    probes or stops between updates. Raises ``FloatingPointError`` where a loss or a
    gradient is not finite, naming the step, before any weight moves.
    """
    for step in range(start, stop):
        model.train()
        rows = batch_rows(step, sequences=len(tokens), batch_size=recipe.batch_size, seed=seed)
        ids = torch.from_numpy(tokens[rows].astype(np.int64)).to(device)
        lr = schedule(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        if recipe.sam_radius:
            value = sharpness_aware_gradients(model, ids, recipe.sam_radius, compute)
        else:
            value = batch_gradients(model, ids, compute)
        if not math.isfinite(value):
            raise FloatingPointError(f"the training loss at step {step} is {value}")
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm).item()
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient norm at step {step} is {norm}")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield Update(step + 1, lr, value)


def save_state(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    *,
    step: int,
    fingerprint: str,
    losses: list[float],
) -> None:
    """Write weights, moments and counters of a run to one safetensors file, atomically.

    ``fingerprint`` names the settings that the state belongs to; ``losses`` are the
    training losses since the job began, in nats per token. The file holds its own digest.
    """
    tensors = {"losses": torch.tensor(losses, dtype=torch.float64)}
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter.detach()
        if state := optimizer.state.get(parameter):
            tensors[f"exp_avg.{name}"] = state["exp_avg"]
            tensors[f"exp_avg_sq.{name}"] = state["exp_avg_sq"]
            tensors[f"updates.{name}"] = state["step"]
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    # Under one key: safetensors writes several in an order that differs from run to run.
    counters = {"step": step, "fingerprint": fingerprint}
    counters["sha256"] = _digest(tensors, counters)
    save_tensors(path, tensors, {_COUNTERS: json.dumps(counters)})


def _digest(tensors: dict[str, Tensor], counters: dict) -> str:
    """sha256 over the counters, and the names and bytes of all tensors."""
    digest = hashlib.sha256(f"{counters['step']} {counters['fingerprint']}".encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_state(
    path: Path, model: nn.Module, optimizer: torch.optim.AdamW
) -> tuple[int, list[float]]:
    """Restore what ``save_state`` wrote; returns the step and the losses until then.

    Raises ``DamagedFile`` where it is not what was written, before any weight moves.
    """
    tensors, metadata = load_tensors(path)
    counters = _read_counters(metadata)
    if not counters or counters["sha256"] != _digest(tensors, counters):
        raise DamagedFile(f"{path}: damaged training state; the sha256 that it holds is another")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
            if f"exp_avg.{name}" in tensors:
                optimizer.state[parameter] = {
                    "step": tensors[f"updates.{name}"].to(parameter.device),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(parameter.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(parameter.device),
                }
    return counters["step"], tensors["losses"].tolist()


def _read_counters(metadata: dict[str, str]) -> dict:
    """The counters of a saved state; empty where there are none that make sense."""
    try:
        counters = json.loads(metadata.get(_COUNTERS, "{}"))
    except json.JSONDecodeError:
        return {}
    return counters if {"step", "fingerprint", "sha256"} <= set(counters) else {}


def state_fingerprint(path: Path) -> str | None:
    """Fingerprint of a saved state; ``None`` where there is no state, or none that is whole."""
    try:
        return _read_counters(read_metadata(path)).get("fingerprint")
    except (FileNotFoundError, DamagedFile):
        return None
