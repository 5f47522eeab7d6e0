"""Gradients of one batch: in which precision, in how many pieces."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from flatminima.errors import UserError, one_line
from flatminima.model import head_in_pieces

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

    precision: Literal["float32", "bf16"] = "float32"
    tf32: bool = False
    micro_batch: int | None = None
    attention: Literal["sdpa", "eager"] = "sdpa"


PLAIN = Compute()


def set_attention(model: nn.Module, attention: str) -> None:
    """Make a transformers model use one attention implementation.

    Raises ``UserError`` for an implementation that the model does not have.
    """
    try:
        model.set_attn_implementation(attention)
        reason = f"the model uses {model.config._attn_implementation!r}"
    except (ValueError, ImportError) as error:  # what transformers raises for a missing one
        reason = one_line(error)
    if model.config._attn_implementation != attention:
        raise UserError(f"compute.attention: {attention!r} is not available; {reason}")


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean NLL in nats per token of ``[batch, length]`` token ids, T - 1 scored of T."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def _loss(model: nn.Module, ids: Tensor, precision: str) -> Tensor:
    """The same in bfloat16, or where the logits are large made and differentiated in pieces."""
    # The forward pass alone: autocast keeps the loss in float32.
    pieces = None if precision == "bf16" else head_in_pieces(model, ids)
    if pieces is None:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=precision == "bf16"):
            return next_token_loss(model, ids)
    (head, states), targets = pieces, ids[:, 1:].flatten()
    rows = max(1, PIECE // head.out_features)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)
    return nn.functional.linear_cross_entropy(
        states, head.weight, targets, linear_bias=head.bias, options=options
    )


def batch_gradients(model: nn.Module, ids: Tensor, compute: Compute = PLAIN) -> float:
    """Add the gradient of the mean loss of ``[batch, length]`` ids to each parameter's ``grad``.

    Returns the loss in nats per token, which may not be finite.
    """
    backend, total = torch.backends.cuda.matmul, 0.0
    before = backend.allow_tf32
    backend.allow_tf32 = before or compute.tf32
    try:
        for part in ids.split(compute.micro_batch or len(ids)):
            # Sequences are equally long, so that the batch's mean weighs parts by their rows.
            weight = len(part) / len(ids)
            loss = _loss(model, part, compute.precision)
            (loss * weight).backward()
            total += weight * loss.item()
    finally:
        backend.allow_tf32 = before
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
    before = [p.detach().clone() for p in parameters]
    scale = radius / (nn.utils.get_total_norm([p.grad for p in parameters]) + 1e-12)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(parameter.grad * scale)
            parameter.grad = None
    batch_gradients(model, ids, compute)
    with torch.no_grad():
        for parameter, original in zip(parameters, before, strict=True):
            parameter.copy_(original)
    return value
