"""Perplexity of models and their distance to the full-precision one, on fixed batches.

``score(tokens, forwards)`` is the one interface: a forward is a callable that gives the next-token
logits of a batch, whether of a model, of one with some weights replaced or rounded on the way, or
of another library's. ``Prober`` is the probe of the paper's audit.

Perplexity is exp of the token-weighted mean negative log-likelihood (NLL), summed in float64. A
sequence of T tokens scores T - 1 of them; documents are packed, so that all weigh the same.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flatminima.device import take_device
from flatminima.errors import Diverged, NotMeasured, UserError, one_line
from flatminima.files import describe_run, file_sha256
from flatminima.model import (
    LOGITS_AT_ONCE,
    check_causal,
    head_in_pieces,
    load_model,
    model_failures_named,
    peculiarities,
)
from flatminima.quantizer_specs import FP32, AnyQuantizer, read_specs
from flatminima.quantizers import Quantized, coverage, coverage_line
from flatminima.text.tokens import check_ids, read_tokens

logger = logging.getLogger(__name__)

TRIED = 16  # tokens on which a model is shown to be causal
SCORED_AT_ONCE = 2**20  # logits; what is made of them stays in a processor's cache
# Next-token logits of ``[batch, length]`` ids, some positions at a time: ``model_logits``.
Forward = Callable[[Tensor], Iterator[Tensor]]


# Logits of a batch


class _OnRead(dict):
    """A module's parameters, of which some are replaced at the moment they are read.

    ``nn.Module`` looks its parameters up in this dictionary by ``__getitem__`` each time its code
    reads an attribute such as ``self.weight``. So a replacement is found whether the layer is
    called or its weight is read directly, and it exists only while somebody uses it.
    """

    def __init__(self, parameters: dict, replacements: Mapping[str, Callable[[], Tensor]]) -> None:
        super().__init__(parameters)
        self._replacements = replacements

    def __getitem__(self, attribute: str) -> Tensor | None:
        make_replacement = self._replacements.get(attribute)
        return make_replacement() if make_replacement else super().__getitem__(attribute)


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

    Replacements are looked up lazily, each time a module reads the parameter. A mapping that
    quantizes on access therefore keeps at most one quantized weight in memory. ``read`` are the
    names that were read so far. Raises ``TypeError`` for a model that is not float32.
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
        self.model = model.eval()
        self.weights = weights or {}
        self.at_once = at_once
        self.read: set[str] = set()
        self._weights_error: Exception | None = None

    def __call__(self, ids: Tensor) -> Iterator[Tensor]:
        """``model_logits`` of the changed model.

        Raises ``KeyError`` for a weight that is not a parameter of the model, and ``NotMeasured``
        for whatever the model's own code raises. Errors of ``weights`` are raised unchanged.
        """
        parameters = dict(self.model.named_parameters())
        makers = {id(parameters[name]): partial(self._replacement, name) for name in self.weights}
        parameters_before = {}
        try:
            for module in self.model.modules():
                replacements = {
                    attribute: makers[id(parameter)]
                    for attribute, parameter in module._parameters.items()
                    if id(parameter) in makers
                }
                if replacements:
                    parameters_before[module] = module._parameters
                    module.__dict__["_parameters"] = _OnRead(module._parameters, replacements)
            with model_failures_named(but=lambda error: error is self._weights_error):
                return model_logits(self.model, ids, self.at_once)
        finally:
            for module, module_parameters in parameters_before.items():
                module.__dict__["_parameters"] = module_parameters

    def _replacement(self, name: str) -> Tensor:
        self.read.add(name)
        try:
            return self.weights[name]
        except Exception as error:
            self._weights_error = error
            raise


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
    with model_failures_named():
        embedding = model.get_input_embeddings().weight
    # Before any forward: a GPU that gets an id beyond the embedding fails for all later work.
    check_ids(tokens, len(embedding), whose="the vocabulary")
    with model_failures_named():
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

        Raises ``NotMeasured`` naming the step where the model cannot be scored, and ``Diverged``
        where its numbers are not finite. Which weights of the first model are quantized, and
        which are not, is logged and kept in ``made_by``.
        """
        try:
            scores, coverages = score_quantized(
                model.eval(), self.tokens, self.specs, **self.options
            )
            for name, record in scores.items():
                if not record.mean_nll() < np.log(np.finfo(np.float64).max):
                    raise Diverged(f"{name}: {record.mean_nll():g} nats, no finite perplexity")
        except UserError as error:
            kind = Diverged if isinstance(error, Diverged) else NotMeasured
            raise kind(f"step {step}: {one_line(error)}") from error
        if "coverage" not in self.made_by:
            self.made_by |= {"coverage": coverages, "peculiarities": peculiarities(model)}
            for name, quantizer_coverage in coverages.items():
                logger.info(f"{name}: {coverage_line(quantizer_coverage)}")
            for line in self.made_by["peculiarities"]:
                logger.info(line)
        return scores_table(scores, step, self.roles)

    def checkpoint(self, folder: str | Path, step: int) -> list[pd.DataFrame]:
        """The scores of a checkpoint's model; none, and a line, where it has diverged.

        ``made_by["left_out"]`` keeps the reason by step.
        """
        try:
            return [self(load_model(folder, self.device), step)]
        except Diverged as error:
            self.made_by.setdefault("left_out", {})[step] = str(error)
            logger.warning(f"not measured: {error}")
            return []
