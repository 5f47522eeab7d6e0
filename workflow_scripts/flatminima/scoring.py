"""Perplexity of models and their distance to the full-precision one, on fixed batches.

``score(tokens, forwards)`` is the one interface: a forward is a callable that gives the next-token
logits of a batch, whether of a model, of one with some weights replaced or rounded on the way, or
of another library's. ``Prober`` is the probe of the paper's audit.

Perplexity is exp of the token-weighted mean negative log-likelihood (NLL), summed in float64. A
sequence of T tokens scores T - 1 of them; documents are packed, so that all weigh the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flatminima.errors import Diverged, NotMeasured, one_line
from flatminima.files import describe_run, file_sha256
from flatminima.jobs import log
from flatminima.model import (
    LOGITS_AT_ONCE,
    check_causal,
    head_in_pieces,
    load_model,
    peculiarities,
    take_device,
)
from flatminima.quantizer_specs import FP32, AnyQuantizer, read_specs
from flatminima.quantizers import Quantized, coverage, coverage_line
from flatminima.text.tokens import check_ids, read_tokens

TRIED = 16  # tokens on which a model is shown to be causal
SCORED_AT_ONCE = 2**20  # logits; what is made of them stays in a processor's cache
# Next-token logits of ``[batch, length]`` ids, some positions at a time: ``model_logits``.
Forward = Callable[[Tensor], Iterator[Tensor]]


# Logits of a batch


class _OnRead(dict):
    """A module's parameters, some of which (``put``) are made when somebody reads the attribute."""

    def __init__(self, own: dict, put: Mapping[str, Callable[[], Tensor]]) -> None:
        super().__init__(own)
        self._put = put

    def __getitem__(self, attribute: str) -> Tensor | None:
        put = self._put.get(attribute)
        return put() if put else super().__getitem__(attribute)


def model_logits(model: nn.Module, ids: Tensor, at_once: int = LOGITS_AT_ONCE) -> Iterator[Tensor]:
    """Next-token logits of the positions that are scored, ``[some positions, vocabulary]`` each.

    ``ids`` is ``[batch, length]``; positions come sequence by sequence, the last of each left out.
    Where logits, for Pythia 50,304 numbers a token, would be more than ``at_once``, the head is
    applied to some positions at a time. Pieces of models with one vocabulary are equally long.
    """
    pieces = head_in_pieces(model, ids, at_once)
    if pieces is None:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        return iter(logits.split(max(1, at_once // logits.shape[-1])))
    head, states = pieces
    weight, bias = head.weight, head.bias  # read while they are replaced
    parts = states.split(max(1, at_once // head.out_features))
    return (nn.functional.linear(part, weight, bias) for part in parts)


class ModelForward:
    """The forward of a model with ``weights`` in place of some of its own, by parameter name.

    A weight is asked for whenever a module reads it, called or not, under whichever of its
    names; a mapping that makes weights then never holds more than one. ``read`` are the names
    that were read so far. Raises ``TypeError`` for a model that is not float32.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, Tensor] | None = None,
        at_once: int = LOGITS_AT_ONCE,
    ) -> None:
        for name, parameter in model.named_parameters():
            if parameter.dtype != torch.float32:
                raise TypeError(f"{name} is {parameter.dtype}; measurements need float32")
        self.model, self.weights, self.at_once = model.eval(), weights or {}, at_once
        self.read: set[str] = set()

    def __call__(self, ids: Tensor) -> Iterator[Tensor]:
        """``model_logits`` of the changed model; ``KeyError`` for a name that is no parameter's."""
        parameters, own = dict(self.model.named_parameters()), {}
        makers = {id(parameters[name]): partial(self._make, name) for name in self.weights}
        try:
            for module in self.model.modules():
                put = {a: makers[id(p)] for a, p in module._parameters.items() if id(p) in makers}
                if put:
                    own[module] = module._parameters
                    module.__dict__["_parameters"] = _OnRead(module._parameters, put)
            return model_logits(self.model, ids, self.at_once)
        finally:
            for module, before in own.items():
                module.__dict__["_parameters"] = before

    def _make(self, name: str) -> Tensor:
        self.read.add(name)
        return self.weights[name]


# Scores


@dataclass
class SequenceScores:
    """Sums over the scored tokens of each sequence, against the full-precision model."""

    nll_nats: list[float] = field(default_factory=list)
    kl_nats: list[float] = field(default_factory=list)
    top1_changed: list[float] = field(default_factory=list)  # tokens with another likeliest next
    scored: list[int] = field(default_factory=list)  # tokens

    def mean_nll(self) -> float:
        """Token-weighted mean NLL in nats per token."""
        return float(np.sum(self.nll_nats, dtype=np.float64) / np.sum(self.scored))

    def table(self, step: int, name: str, role: str) -> pd.DataFrame:
        """A row per sequence: step, quantizer, role, sequence, and the four sums."""
        named = {"step": step, "quantizer": name, "role": role,
                 "sequence": np.arange(len(self.scored), dtype=np.int32)}  # fmt: skip
        return pd.DataFrame(named | asdict(self)).astype({"scored": np.int32})


def scores_table(
    scores: Mapping[str, SequenceScores], step: int, roles: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """``SequenceScores.table`` of each; all but the model itself are a ``variant`` by default."""
    roles = roles or {FP32: FP32}
    tables = [one.table(step, name, roles.get(name, "variant")) for name, one in scores.items()]
    return pd.concat(tables, ignore_index=True)


def batches(tokens: np.ndarray, batch_size: int, device: str) -> Iterator[Tensor]:
    """Consecutive ``[batch, length]`` int64 slices of ``[sequences, length]`` tokens."""
    for start in range(0, len(tokens), batch_size):
        yield torch.from_numpy(tokens[start : start + batch_size].astype(np.int64)).to(device)


@torch.inference_mode()
def score(
    tokens: np.ndarray, forwards: Mapping[str, Forward], *, batch_size: int, device: str = "cpu"
) -> dict[str, SequenceScores]:
    """Scores by name of each forward; the first is the reference that the others are held to.

    ``tokens`` is ``[sequences, length]``. All forwards see each batch side by side, so that
    no batch's logits outlive it. Raises ``Diverged`` where a log-likelihood is not
    finite, and ``TypeError`` where TF32 is allowed.
    """
    if torch.backends.cuda.matmul.allow_tf32:
        raise TypeError("TF32 is allowed; call prepare_backend() before measuring")
    scores = {name: SequenceScores() for name in forwards}
    for ids in batches(tokens, batch_size, device):
        targets, found = ids[:, 1:].reshape(-1, 1), []
        for parts in zip(*(forward(ids) for forward in forwards.values()), strict=True):
            wanted, targets = targets[: len(parts[0])], targets[len(parts[0]) :]
            rows = max(1, SCORED_AT_ONCE // parts[0].shape[-1])
            pieces = zip(*(part.split(rows) for part in (*parts, wanted)), strict=True)
            found += [_score_positions(piece[:-1], piece[-1]) for piece in pieces]
        shape = (3, len(scores), *ids[:, 1:].shape)
        sums = torch.cat(found, dim=-1).view(shape).double().sum(dim=-1).unbind(dim=1)
        for (name, record), (nll, kl, changed) in zip(scores.items(), sums, strict=True):
            if not torch.isfinite(nll).all():
                raise Diverged(f"{name}: a log-likelihood is not finite")
            record.nll_nats += nll.tolist()
            record.kl_nats += kl.tolist()
            record.top1_changed += changed.tolist()
            record.scored += [shape[-1]] * shape[-2]
    return scores


def score_variants(
    model: nn.Module, tokens: np.ndarray, variants: Mapping[str, Mapping[str, Tensor]], **options
) -> dict[str, SequenceScores]:
    """``score`` of the model under ``fp32`` and of variants that differ in some weights.

    ``variants`` maps a name to the weights that it replaces, by parameter name; ``options``
    are those of ``score``.
    """
    changes = {FP32: {}, **variants}
    forwards = {name: ModelForward(model, weights) for name, weights in changes.items()}
    return score(tokens, forwards, **options)


def score_quantized(
    model: nn.Module, tokens: np.ndarray, specs: Mapping[str, AnyQuantizer], **options
) -> tuple[dict[str, SequenceScores], dict[str, dict]]:
    """``score`` of the model as it is and quantized, and what each of ``specs`` covers.

    Raises ``NotMeasured`` for a model that looks ahead, and where it read none of the weights
    that were to be quantized: its gap would be that of no quantizer.
    """
    embedding = model.get_input_embeddings().weight
    # First of all: a GPU that is given an id beyond its table is lost to everything else.
    check_ids(tokens, len(embedding), whose="the vocabulary")
    check_causal(model, next(batches(tokens[:1, :TRIED], 1, str(embedding.device))))
    forwards = {FP32: ModelForward(model)}
    forwards |= {name: ModelForward(model, Quantized(model, s)) for name, s in specs.items()}
    scores = score(tokens, forwards, **options)
    covered = {name: coverage(model, s, forwards[name].read) for name, s in specs.items()}
    for name, found in covered.items():
        if not found["weights"]:
            raise NotMeasured(f"{name}: no weight that the model reads can be quantized")
    return scores, covered


def _kl_divergence(reference: Tensor, log_probabilities: Tensor, p: Tensor) -> Tensor:
    """KL divergence in nats of each token, never negative; ``p`` is exp of ``reference``.

    With d = log q - log p and both summing to one it is the sum of p (e^d - 1 - d): equal to the
    textbook's sum of -p d, but every term is non-negative, and the rounding of the logarithms,
    larger than the whole divergence of a good quantizer, enters squared. Where d is large p e^d
    is taken as q, which cannot overflow.
    """
    d = log_probabilities - reference
    terms = torch.expm1(d).sub_(d).mul_(p)
    if d.amax() >= 1.0:
        large = d >= 1.0
        terms[large] = log_probabilities[large].exp() - p[large] * (1.0 + d[large])
    return terms.clamp_(min=0.0).sum(dim=-1)


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


# The probe


class Prober:
    """Scores models on one suite's validation batches, at full precision and quantized.

    ``probe`` has ``quantizers`` (definitions by name), ``roles`` (``low_bit`` or ``high_bit`` by
    the same names), ``batch_size``, ``device`` and perhaps ``sequences``, how many of the token
    file are scored. Sets torch's threads and numeric mode; takes one of several GPUs.
    """

    def __init__(self, validation: str, probe: Mapping, threads: int) -> None:
        self.device = take_device(probe["device"], threads)
        self.tokens = read_tokens(validation)[: probe.get("sequences")]
        self.specs = read_specs(probe["quantizers"])
        self.roles = {FP32: FP32, **probe["roles"]}
        self.options = {"batch_size": probe["batch_size"], "device": self.device}  # of ``score``
        self.made_by = describe_run(device=self.device, threads=threads, probe=dict(probe),
                                    validation_sha256=file_sha256(validation))  # fmt: skip

    def __call__(self, model: nn.Module, step: int) -> pd.DataFrame:
        """``scores_table`` of the model of ``step`` and of its quantized variants.

        Raises ``NotMeasured`` naming the step where the model cannot be scored, for whatever
        reason; ``Diverged`` where its numbers are not finite. Of the first model it says, and
        keeps in ``made_by``, which weights are quantized and which are not.
        """
        try:
            scores, covered = score_quantized(model.eval(), self.tokens, self.specs, **self.options)
            for name, record in scores.items():
                if not record.mean_nll() < np.log(np.finfo(np.float64).max):
                    raise Diverged(f"{name}: {record.mean_nll():g} nats, no finite perplexity")
        except Exception as error:  # whatever somebody's model raises
            kind = Diverged if isinstance(error, FloatingPointError) else NotMeasured
            raise kind(f"step {step}: {one_line(error)}") from error
        if "coverage" not in self.made_by:
            self.made_by |= {"coverage": covered, "peculiarities": peculiarities(model)}
            lines = [f"{name}: {coverage_line(found)}" for name, found in covered.items()]
            for line in (*lines, *self.made_by["peculiarities"]):
                log(line)
        return scores_table(scores, step, self.roles)

    def checkpoint(self, folder: str | Path, step: int) -> list[pd.DataFrame]:
        """The scores of a checkpoint's model; none, and a line, where it has diverged.

        ``made_by["left_out"]`` keeps the reason by step.
        """
        try:
            return [self(load_model(folder, self.device), step)]
        except Diverged as error:
            self.made_by.setdefault("left_out", {})[step] = str(error)
            log(f"not measured: {error}")
            return []
