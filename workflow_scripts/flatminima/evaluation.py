"""Perplexity and distance to the full-precision model on fixed batches.

Perplexity is exp of the token-weighted mean negative log-likelihood (NLL), summed
in float64. A sequence of T tokens scores T - 1 of them; documents are packed, no
padding exists, so every sequence weighs the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from flatminima.logits import next_token_logits
from flatminima.numerics import assert_float32
from flatminima.roles import FP32

SCORED_AT_ONCE = 2**20  # logits; what is made of them stays in a processor's cache


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


def _kl_divergence(reference: Tensor, log_probabilities: Tensor, p: Tensor) -> Tensor:
    """KL divergence in nats of each token, the last axis summed over, never negative.

    ``p`` is exp of ``reference``, which all variants share.

    With p the reference and q the other distribution, d = log q - log p and both
    summing to one, KL = sum of p (e^d - 1 - d): equal to the textbook's sum of
    -p d, but every term is non-negative, and the rounding of the logarithms, larger
    than the whole divergence of a good quantizer, enters squared. Where d is large
    p e^d is taken as q, which cannot overflow.
    """
    d = log_probabilities - reference
    terms = torch.expm1(d).sub_(d).mul_(p)
    if d.amax() >= 1.0:
        large = d >= 1.0
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
    side, so that no batch's logits outlive it; those of a large vocabulary are made for
    some positions at a time. Returns the scores by name, the unmodified model under
    ``fp32``. Raises ``FloatingPointError`` where a log-likelihood is not finite, and
    ``TypeError`` for a model that is not float32.
    """
    assert_float32(model)
    model.eval()
    changes = {FP32: {}, **variants}

    def logits_of(_: int, ids: Tensor) -> list[Iterator[Tensor]]:
        return [next_token_logits(model, ids, weights) for weights in changes.values()]

    return score_logits(list(changes), tokens, logits_of, batch_size=batch_size, device=device)


def score_logits(
    names: Sequence[str],
    tokens: np.ndarray,
    logits_of: Callable[[int, Tensor], Sequence[Iterator[Tensor]]],
    *,
    batch_size: int,
    device: str,
) -> dict[str, SequenceScores]:
    """Scores by name from the logits of each model, the full-precision one first.

    ``logits_of`` is given a batch's number and its ids and returns, for each of ``names``,
    what ``next_token_logits`` does. Raises ``FloatingPointError`` like ``score``.
    """
    scores = {name: SequenceScores() for name in names}
    for batch, ids in enumerate(batches(tokens, batch_size, device)):
        logits = logits_of(batch, ids)
        targets, found = ids[:, 1:].reshape(-1, 1), []
        for parts in zip(*logits, strict=True):
            first = sum(rows.shape[-1] for rows in found)
            wanted = targets[first : first + len(parts[0])]
            rows = max(1, SCORED_AT_ONCE // parts[0].shape[-1])
            pieces = zip(*(part.split(rows) for part in (*parts, wanted)), strict=True)
            found += [_score_positions(piece[:-1], piece[-1]) for piece in pieces]
        shape = (3, len(scores), *ids[:, 1:].shape)
        nll, kl, changed = torch.cat(found, dim=-1).view(shape)
        for number, (name, record) in enumerate(scores.items()):
            if not torch.isfinite(nll[number]).all():
                raise FloatingPointError(f"{name}: a log-likelihood is not finite")
            record.nll_nats += _per_sequence(nll[number])
            record.kl_nats += _per_sequence(kl[number])
            record.top1_changed += _per_sequence(changed[number])
            record.scored += [shape[-1]] * shape[-2]
    return scores


def _score_positions(logits: Sequence[Tensor], targets: Tensor) -> Tensor:
    """NLL, KL divergence and changed predictions, ``[3, variants, positions]``.

    ``logits`` has ``[positions, vocabulary]`` of the model itself and then of each variant,
    ``targets`` is ``[positions, 1]``.
    """
    found = []
    for values in logits:
        log_probabilities = torch.log_softmax(values.float(), dim=-1)
        nll = -log_probabilities.gather(-1, targets).squeeze(-1)
        if not found:
            reference, best = log_probabilities, log_probabilities.argmax(dim=-1)
            p = reference.exp() if len(logits) > 1 else reference
            kl = changed = torch.zeros_like(nll)
        else:
            kl = _kl_divergence(reference, log_probabilities, p)
            changed = (log_probabilities.argmax(dim=-1) != best).float()
        found.append(torch.stack([nll, kl, changed]))
    return torch.stack(found, dim=1)
