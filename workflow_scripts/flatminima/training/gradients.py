"""Gradients of one batch: in which precision, in how many pieces."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from flatminima.model import head_in_pieces

Precision = Literal["float32", "bf16"]
Attention = Literal["sdpa", "eager"]
PIECE = 2**24  # logits at a time where they are not made at once; 64 MiB, and as much of gradients


@dataclass(frozen=True)
class Compute:
    """How the gradient of a batch is computed; never how a model is measured.

    ``precision``: ``bf16`` runs the forward pass under autocast; weights, gradients and
    Adam's moments stay float32, and so does the loss. ``tf32``: allow TensorFloat-32 in
    matrix products on CUDA while training. ``micro_batch``: sequences per forward pass,
    ``None`` for the whole batch at once; gradients add up, so that memory and not the
    update depends on it. ``attention``: which implementation of transformers is used.
    """

    precision: Precision = "float32"
    tf32: bool = False
    micro_batch: int | None = None
    attention: Attention = "sdpa"

    def __post_init__(self) -> None:
        for name, kind in (("precision", Precision), ("attention", Attention)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name} {getattr(self, name)!r}: valid: {', '.join(get_args(kind))}"
                )


PLAIN = Compute()


def read_compute(section: Mapping) -> Compute:
    """The ``compute`` section of a suite; keys that are left out have their defaults."""
    return Compute(**section)


def set_attention(model: nn.Module, attention: Attention) -> None:
    """Make a transformers model use one attention implementation, and check that it does.

    Raises ``ValueError`` where the model keeps another one.
    """
    model.set_attn_implementation(attention)
    used = model.config._attn_implementation
    if used != attention:
        raise ValueError(f"attention {attention!r} was asked for, the model uses {used!r}")


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean NLL in nats per token of ``[batch, length]`` token ids, T - 1 scored of T."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return _mean_nll(logits, ids)


def _mean_nll(logits: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def _loss_in_pieces(model: nn.Module, head: nn.Linear, ids: Tensor) -> Tensor:
    """The same where the logits are large: made, scored and differentiated in pieces."""
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    options = nn.LinearCrossEntropyOptions(
        batch_chunk_size=max(1, PIECE // head.out_features), chunking_method=None
    )
    return nn.functional.linear_cross_entropy(
        states.flatten(0, 1),
        head.weight,
        ids[:, 1:].flatten(),
        linear_bias=head.bias,
        options=options,
    )


def _float32_loss(model: nn.Module, ids: Tensor) -> Tensor:
    head = head_in_pieces(model, ids)
    return next_token_loss(model, ids) if head is None else _loss_in_pieces(model, head, ids)


def _autocast_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """The same with the forward pass in bfloat16 and the loss in float32."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return _mean_nll(logits.float(), ids)


@contextmanager
def _tf32_allowed() -> Iterator[None]:
    """TensorFloat-32 in matrix products while the block runs; as it was before after it."""
    backend = torch.backends.cuda.matmul
    before = backend.allow_tf32
    backend.allow_tf32 = True
    try:
        yield
    finally:
        backend.allow_tf32 = before


def batch_gradients(model: nn.Module, ids: Tensor, compute: Compute = PLAIN) -> float:
    """Add the gradient of the mean loss of ``[batch, length]`` ids to each parameter's ``grad``.

    Returns the loss in nats per token, which may not be finite.
    """
    parts = ids.split(compute.micro_batch or len(ids))
    loss_of = _autocast_loss if compute.precision == "bf16" else _float32_loss
    total = 0.0
    with _tf32_allowed() if compute.tf32 else nullcontext():
        for part in parts:
            # Sequences are equally long, so that the batch's mean weighs parts by their rows.
            weight = len(part) / len(ids)
            loss = loss_of(model, part)
            (loss * weight).backward()
            total += weight * loss.item()
    return total


def sharpness_aware_gradients(
    model: nn.Module, ids: Tensor, radius: float, compute: Compute = PLAIN
) -> float:
    """The gradient at the worst point within ``radius``, to first order, of the weights.

    Sharpness-aware minimization (Foret et al., arXiv 2010.01412, equation 2): weights
    move by ``radius * g / |g|`` with g the gradient of the batch, the gradient there is
    taken, and the weights return to the bit. Returns the loss before the move.
    """
    value = batch_gradients(model, ids, compute)
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(p.grad) for p in parameters])
    )
    before = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(parameter.grad * (radius / (norm + 1e-12)))
            parameter.grad = None
    batch_gradients(model, ids, compute)
    with torch.no_grad():
        for parameter, original in zip(parameters, before, strict=True):
            parameter.copy_(original)
    return value
