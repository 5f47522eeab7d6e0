"""Perplexity and distance to the full-precision model on fixed batches.

Perplexity is exp of the token-weighted mean negative log-likelihood (NLL), summed
in float64. A sequence of T tokens scores T - 1 of them; documents are packed, no
padding exists, so every sequence weighs the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from workflow_scripts.lib.numerics import assert_float32
from workflow_scripts.lib.roles import FP32


@dataclass
class SequenceScores:
    """Per-sequence sums over the scored tokens, each a list with one entry per sequence.

    ``nll_nats``: negative log-likelihood. ``kl_nats``: KL divergence from the
    full-precision to this model's next-token distribution. ``top1_changed``:
    tokens whose most likely continuation differs. ``scored``: scored tokens.
    """

    nll_nats: list[float] = field(default_factory=list)
    kl_nats: list[float] = field(default_factory=list)
    top1_changed: list[float] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)

    def mean_nll(self) -> float:
        """Token-weighted mean NLL in nats per token."""
        return float(np.sum(self.nll_nats, dtype=np.float64) / np.sum(self.scored))


def batches(tokens: np.ndarray, batch_size: int, device: str) -> Iterator[Tensor]:
    """Consecutive ``[batch, length]`` int64 slices of ``[sequences, length]`` tokens."""
    for start in range(0, len(tokens), batch_size):
        yield torch.from_numpy(tokens[start : start + batch_size].astype(np.int64)).to(device)


def _log_probabilities(model: nn.Module, ids: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """``[batch, length - 1, vocabulary]`` log-probabilities of each next token."""
    arguments = {"input_ids": ids, "use_cache": False}
    logits = functional_call(model, dict(weights), (), arguments).logits[:, :-1]
    return torch.log_softmax(logits.float(), dim=-1)


def _kl_divergence(reference: Tensor, log_probabilities: Tensor) -> Tensor:
    """KL divergence in nats of each token, ``[batch, length]``, never negative.

    With p the reference and q the other distribution, d = log q - log p and both
    summing to one, KL = sum of p (e^d - 1 - d): equal to the textbook's sum of
    -p d, but every term is non-negative, and the rounding of the logarithms, larger
    than the whole divergence of a good quantizer, enters squared. Where d is large
    p e^d is taken as q, which cannot overflow.
    """
    p = reference.exp()
    d = log_probabilities - reference
    terms = torch.expm1(d).sub_(d).mul_(p)
    if (large := d >= 1.0).any():
        terms[large] = log_probabilities[large].exp() - p[large] * (1.0 + d[large])
    return terms.clamp_(min=0.0).sum(dim=-1)


def _per_sequence(values: Tensor) -> list[float]:
    return values.to(torch.float64).sum(dim=1).tolist()


@torch.inference_mode()
def score(
    model: nn.Module,
    tokens: np.ndarray,
    variants: Mapping[str, Mapping[str, Tensor]],
    *,
    batch_size: int,
    device: str = "cpu",
) -> dict[str, SequenceScores]:
    """Score the model and variants of it that differ in some weights.

    ``tokens`` is ``[sequences, length]``; ``variants`` maps a quantizer's name to
    the weights it replaces (by parameter name). All variants see each batch side by
    side, so that no batch's logits outlive it. Returns the scores by name, the
    unmodified model under ``fp32``. Raises ``FloatingPointError`` where a
    log-likelihood is not finite, and ``TypeError`` for a model that is not float32.
    """
    assert_float32(model)
    model.eval()
    scores = {name: SequenceScores() for name in (FP32, *variants)}
    for ids in batches(tokens, batch_size, device):
        targets = ids[:, 1:].unsqueeze(-1)
        reference = _log_probabilities(model, ids, {})
        best = reference.argmax(dim=-1)
        for name, record in scores.items():
            same = name == FP32
            log_probabilities = (
                reference if same else _log_probabilities(model, ids, variants[name])
            )
            nll = -log_probabilities.gather(-1, targets).squeeze(-1)
            if not torch.isfinite(nll).all():
                raise FloatingPointError(f"{name}: a log-likelihood is not finite")
            record.nll_nats += _per_sequence(nll)
            if same:
                kl = changed = torch.zeros_like(nll)
            else:
                kl = _kl_divergence(reference, log_probabilities)
                changed = log_probabilities.argmax(dim=-1) != best
            record.kl_nats += _per_sequence(kl)
            record.top1_changed += _per_sequence(changed)
            record.scored += [nll.shape[1]] * len(nll)
    return scores
