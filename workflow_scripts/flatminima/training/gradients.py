"""Gradients of one batch: their precision, and in how many pieces they are computed."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from flatminima.errors import UserError, one_line
from flatminima.model import head_in_pieces

PIECE = 2**24  # logits at a time, if not all at once: 64 MiB, and as much for their gradients


@dataclass(frozen=True)
class Compute:
    """How the gradient of a batch is computed. Measurements do not depend on it.

    - ``precision``: ``bf16`` runs the forward pass under autocast. Weights, gradients, Adam's
      moments and the loss stay float32.
    - ``tf32``: allow TensorFloat-32 in matrix products on CUDA during training.
    - ``micro_batch``: sequences per forward pass, ``None`` for the entire batch. Gradients are
      added up, so this changes the memory but not the update.
    - ``attention``: the implementation of transformers.
    """

    precision: Literal["float32", "bf16"] = "float32"
    tf32: bool = False
    micro_batch: int | None = None
    attention: Literal["sdpa", "eager"] = "sdpa"


PLAIN = Compute()


def set_attention(model: nn.Module, attention: str) -> None:
    """Select the attention implementation of a transformers model.

    Raises ``UserError`` if the model does not have this implementation.
    """
    try:
        model.set_attn_implementation(attention)
        reason = f"the model uses {model.config._attn_implementation!r}"
    except (ValueError, ImportError) as error:  # transformers raises either if it is missing
        reason = one_line(error)
    if model.config._attn_implementation != attention:
        raise UserError(f"compute.attention: {attention!r} is not available; {reason}")


def next_token_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean NLL in nats per token of ``[batch, length]`` token ids, T - 1 scored of T."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def _loss(model: nn.Module, ids: Tensor, precision: str) -> Tensor:
    """``next_token_loss`` in float32 or bfloat16. Large logits are processed in pieces."""
    # The loss in pieces below takes the head's own output.
    pieces = None if precision == "bf16" else head_in_pieces(model, ids, only_plain=True)
    if pieces is None:
        # Autocast keeps the loss in float32.
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=precision == "bf16"):
            return next_token_loss(model, ids)
    head, states, _ = pieces
    targets = ids[:, 1:].flatten()
    rows = max(1, PIECE // head.out_features)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)
    return nn.functional.linear_cross_entropy(
        states, head.weight, targets, linear_bias=head.bias, options=options
    )


def batch_gradients(model: nn.Module, ids: Tensor, compute: Compute = PLAIN) -> float:
    """Add the gradient of the mean loss of ``[batch, length]`` ids to each parameter's ``grad``.

    Returns the loss in nats per token, which may not be finite.
    """
    matmul = torch.backends.cuda.matmul
    tf32_before = matmul.allow_tf32
    matmul.allow_tf32 = tf32_before or compute.tf32
    batch_loss = 0.0
    try:
        for micro_batch in ids.split(compute.micro_batch or len(ids)):
            # Sequences have equal lengths, so the mean weighs each part by its sequences.
            weight = len(micro_batch) / len(ids)
            loss = _loss(model, micro_batch, compute.precision)
            (loss * weight).backward()
            batch_loss += weight * loss.item()
    finally:
        matmul.allow_tf32 = tf32_before
    return batch_loss


def sharpness_aware_gradients(
    model: nn.Module, ids: Tensor, radius: float, compute: Compute = PLAIN
) -> float:
    """The gradient at the worst point within ``radius`` of the weights, to first order.

    Sharpness-aware minimization (Foret et al., arXiv 2010.01412, equation 2). With g the gradient
    of the batch, the weights move by ``radius * g / |g|``. The gradient is computed there, and the
    weights are restored exactly. Returns the loss before the move, in nats per token.
    """
    loss = batch_gradients(model, ids, compute)
    parameters = [p for p in model.parameters() if p.grad is not None]
    originals = [p.detach().clone() for p in parameters]
    # 1e-12 keeps a zero gradient from dividing by zero.
    scale = radius / (nn.utils.get_total_norm([p.grad for p in parameters]) + 1e-12)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(parameter.grad * scale)
            parameter.grad = None
    batch_gradients(model, ids, compute)
    with torch.no_grad():
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.copy_(original)
    return loss
