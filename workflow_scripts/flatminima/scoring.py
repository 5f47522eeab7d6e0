"""Perplexity of models, and their distance to the full-precision model, on fixed batches.

``score(tokens, forwards)`` is the common interface. A forward is a function from a batch to its
next-token logits: of a model, of a model with some weights replaced, or of another library's
model. ``Prober`` measures a checkpoint as the paper's audit does.

Perplexity is exp of the token-weighted mean negative log-likelihood (NLL), summed in float64. A
sequence of T tokens scores T - 1 of them. Documents are packed, so all sequences weigh the same.
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

from flatminima.device import available_bytes, take_device
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
from flatminima.quantizers import Quantized, coverage, coverage_line, linear_weights
from flatminima.text.tokens import check_ids, read_tokens

logger = logging.getLogger(__name__)

CAUSAL_CHECK_TOKENS = 16
ALWAYS_KEPT = 2**25  # bytes of quantized weights that are kept without asking for free memory
SCORED_AT_ONCE = 2**20  # logits; the arrays computed from so many stay in a processor's cache
# From ``[batch, length]`` ids to next-token logits in pieces, as ``model_logits`` makes them.
Forward = Callable[[Tensor], Iterator[Tensor]]


# Logits of a batch


class _OnRead(dict):
    """Parameters of a module, some of which are replaced at the moment they are read.

    It takes the place of ``module._parameters``. ``nn.Module.__getattr__`` reads that dictionary
    by ``__getitem__`` each time code reads an attribute such as ``self.weight``. The replacement
    is therefore used whether a layer is called or its weight is read directly. It is freed as
    soon as the code that read it is done. A hook or a new ``forward`` would miss direct reads.
    """

    def __init__(self, parameters: dict, replacements: Mapping[str, Callable[[], Tensor]]) -> None:
        super().__init__(parameters)
        self._replacements = replacements

    def __getitem__(self, attribute: str) -> Tensor | None:
        make_replacement = self._replacements.get(attribute)
        return make_replacement() if make_replacement else super().__getitem__(attribute)


def model_logits(model: nn.Module, ids: Tensor, at_once: int = LOGITS_AT_ONCE) -> Iterator[Tensor]:
    """Next-token logits of the scored positions, in pieces of ``[positions, vocabulary]``.

    ``ids`` is ``[batch, length]``. Positions come sequence by sequence, without the last of each.
    Pythia has 50,304 logits per token. If a batch has more than ``at_once`` logits, the head is
    applied to some positions at a time. Models with the same vocabulary give pieces of the same
    length, so that their pieces can be compared one by one.
    """
    pieces = head_in_pieces(model, ids, at_once)
    if pieces is None:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        return iter(logits.split(max(1, at_once // logits.shape[-1])))
    head, states, finish = pieces
    # Read now, while ``ModelForward`` has replaced them: the generator below runs later.
    weight = head.weight
    bias = head.bias
    parts = states.split(max(1, at_once // head.out_features))
    return (finish(nn.functional.linear(part, weight, bias)) for part in parts)


class ModelForward:
    """The forward of a model in which ``weights``, by parameter name, replace the model's own.

    Replacements are looked up lazily, each time a module reads the parameter. A mapping that
    quantizes on access therefore keeps at most one quantized weight in memory. ``read`` collects
    the names of the weights that were read. Raises ``TypeError`` if the model is not float32.
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
        for any error of the model's own code. Errors of ``weights`` are raised unchanged.
        """
        parameters = dict(self.model.named_parameters())
        # By identity: a shared parameter has several names, and is replaced under all of them.
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
                    # Not by setattr, which nn.Module overrides.
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
    """Sums over the scored tokens of each sequence, compared with the full-precision model."""

    nll_nats: list[float] = field(default_factory=list)
    kl_nats: list[float] = field(default_factory=list)
    top1_changed: list[float] = field(default_factory=list)  # tokens whose top prediction changed
    scored: list[int] = field(default_factory=list)  # number of scored tokens

    def mean_nll(self) -> float:
        """Token-weighted mean NLL in nats per token."""
        return float(np.sum(self.nll_nats, dtype=np.float64) / np.sum(self.scored))

    def table(self, step: int, name: str, role: str) -> pd.DataFrame:
        """One row per sequence: step, quantizer, role, sequence, and the four sums."""
        labels = {
            "step": step,
            "quantizer": name,
            "role": role,
            "sequence": np.arange(len(self.scored), dtype=np.int32),
        }
        return pd.DataFrame(labels | asdict(self)).astype({"scored": np.int32})


def scores_table(
    scores: Mapping[str, SequenceScores], step: int, roles: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """All ``scores`` as one table, in order. A name without a role has the role ``variant``."""
    roles = roles or {FP32: FP32}
    tables = [
        sequence_scores.table(step, name, roles.get(name, "variant"))
        for name, sequence_scores in scores.items()
    ]
    return pd.concat(tables, ignore_index=True)


def batches(tokens: np.ndarray, batch_size: int, device: str) -> Iterator[Tensor]:
    """Consecutive ``[batch, length]`` int64 slices of ``[sequences, length]`` tokens."""
    for start in range(0, len(tokens), batch_size):
        yield torch.from_numpy(tokens[start : start + batch_size].astype(np.int64)).to(device)


@torch.inference_mode()
def score(
    tokens: np.ndarray, forwards: Mapping[str, Forward], *, batch_size: int, device: str = "cpu"
) -> dict[str, SequenceScores]:
    """Scores by name of each forward. The first is the reference for the others.

    ``tokens`` is ``[sequences, length]``. All forwards process a batch side by side, so that only
    one batch's logits are in memory. Raises ``Diverged`` if a log-likelihood is not finite, and
    ``TypeError`` if TF32 is allowed.
    """
    if torch.backends.cuda.matmul.allow_tf32:
        raise TypeError("TF32 is allowed; call prepare_backend() before measuring")
    scores = {name: SequenceScores() for name in forwards}
    for ids in batches(tokens, batch_size, device):
        sequences, scored_tokens = ids[:, 1:].shape
        position_scores = _score_batch([forward(ids) for forward in forwards.values()], ids)
        by_sequence = position_scores.view(3, len(scores), sequences, scored_tokens)
        sums = by_sequence.double().sum(dim=-1).unbind(dim=1)  # per forward, [3, sequences]
        for (name, record), (nll, kl, changed) in zip(scores.items(), sums, strict=True):
            if not torch.isfinite(nll).all():
                raise Diverged(f"{name}: a log-likelihood is not finite")
            record.nll_nats += nll.tolist()
            record.kl_nats += kl.tolist()
            record.top1_changed += changed.tolist()
            record.scored += [scored_tokens] * sequences
    return scores


def _score_batch(pieces_by_forward: Sequence[Iterator[Tensor]], ids: Tensor) -> Tensor:
    """``_score_positions`` of all positions of a batch, ``[3, forwards, positions]``."""
    targets = ids[:, 1:].reshape(-1, 1)
    position_scores = []
    start = 0
    for logits in zip(*pieces_by_forward, strict=True):  # the same positions, from each forward
        vocabulary = logits[0].shape[-1]
        rows = max(1, SCORED_AT_ONCE // vocabulary)
        chunks = zip(*(forward_logits.split(rows) for forward_logits in logits), strict=True)
        for chunk in chunks:
            stop = start + len(chunk[0])
            position_scores.append(_score_positions(chunk, targets[start:stop]))
            start = stop
    return torch.cat(position_scores, dim=-1)


def score_variants(
    model: nn.Module, tokens: np.ndarray, variants: Mapping[str, Mapping[str, Tensor]], **options
) -> dict[str, SequenceScores]:
    """``score`` of the model, under the name ``fp32``, and of variants with other weights.

    ``variants`` maps the name of a variant to its replaced weights by parameter name. ``options``
    are those of ``score``.
    """
    replaced_weights = {FP32: {}, **variants}
    forwards = {name: ModelForward(model, weights) for name, weights in replaced_weights.items()}
    return score(tokens, forwards, **options)


def score_quantized(
    model: nn.Module, tokens: np.ndarray, specs: Mapping[str, AnyQuantizer], **options
) -> tuple[dict[str, SequenceScores], dict[str, dict]]:
    """``score`` of the unchanged and the quantized model, and ``coverage`` of each quantizer.

    Raises ``NotMeasured`` for a model that is not causal, and for a model that reads none of the
    quantized weights: quantizing would change nothing, and its gap would be zero.
    """
    with model_failures_named():
        embedding = model.get_input_embeddings().weight
    # Before any forward: a GPU that gets an id beyond the embedding fails for all later work.
    check_ids(tokens, len(embedding), whose="the vocabulary")
    with model_failures_named():
        first_tokens = tokens[:1, :CAUSAL_CHECK_TOKENS]
        check_causal(model, next(batches(first_tokens, 1, str(embedding.device))))

    scores: dict[str, SequenceScores] = {}
    coverages = {}
    for keep, names in _scoring_rounds(model, specs, options.get("device", "cpu")):
        forwards = {FP32: ModelForward(model)}
        for name in names:
            forwards[name] = ModelForward(model, Quantized(model, specs[name], keep=keep))
        scores |= score(tokens, forwards, **options)
        # After scoring, because only then each forward knows which weights were read.
        for name in names:
            coverages[name] = coverage(model, specs[name], forwards[name].read)
    for name, quantizer_coverage in coverages.items():
        if not quantizer_coverage["weights"]:
            raise NotMeasured(f"{name}: no weight that the model reads can be quantized")
    return scores, coverages


def _scoring_rounds(
    model: nn.Module, specs: Mapping[str, AnyQuantizer], device: str
) -> list[tuple[bool, list[str]]]:
    """Which quantizers are scored side by side, and whether their weights are kept in memory.

    Quantizing a model of 135 million weights takes 1.5 seconds, as long as scoring two sequences.
    So the quantized weights are kept for all batches if they fit into half of the free memory: of
    all quantizers at once, or else of one quantizer after the other. If not even one copy fits,
    each weight is quantized for each batch. The scores are the same to the last bit.
    """
    copies = {}
    for name, spec in specs.items():
        copies[name] = sum(weight.nbytes for weight in linear_weights(model, spec.layers).values())
    if sum(copies.values()) <= ALWAYS_KEPT:
        return [(True, list(specs))]
    room = available_bytes(device) // 2
    if sum(copies.values()) <= room:
        return [(True, list(specs))]
    if max(copies.values()) <= room:
        return [(True, [name]) for name in specs]
    return [(False, list(specs))]


def _kl_divergence(reference: Tensor, log_probabilities: Tensor, p: Tensor) -> Tensor:
    """KL divergence in nats of each token, never negative. ``p`` is exp of ``reference``.

    With d = log q - log p, and p and q summing to one, it is the sum of p (e^d - 1 - d). This
    equals the textbook's sum of -p d. But here every term is non-negative, and rounding errors of
    the logarithms enter squared. In the textbook's form they are larger than the divergence of a
    good quantizer. Where d is large, p e^d is replaced by q, which cannot overflow.
    """
    d = log_probabilities - reference
    terms = torch.expm1(d).sub_(d).mul_(p)
    if d.amax() >= 1.0:
        # Few terms are large. A mask as index would search them once for each of its four uses,
        # which takes a fifth of a probe of a small model.
        d = d.view(-1)
        large = torch.nonzero(d >= 1.0).squeeze(-1)
        q = log_probabilities.reshape(-1)[large].exp()
        terms.view(-1)[large] = q - p.reshape(-1)[large] * (1.0 + d[large])
    return terms.clamp_(min=0.0).sum(dim=-1)


def _score_positions(logits: Sequence[Tensor], targets: Tensor) -> Tensor:
    """NLL, KL divergence and changed predictions, ``[3, variants, positions]``.

    ``logits`` has ``[positions, vocabulary]`` of the reference model and then of each variant.
    ``targets`` is ``[positions, 1]``.
    """
    reference_logits, *variant_logits = logits
    reference = torch.log_softmax(reference_logits.float(), dim=-1)
    reference_nll = -reference.gather(-1, targets).squeeze(-1)
    zero = torch.zeros_like(reference_nll)
    scores = [torch.stack([reference_nll, zero, zero])]
    if variant_logits:
        top1 = reference.argmax(dim=-1)
        p = reference.exp()
    for quantized_logits in variant_logits:
        log_probabilities = torch.log_softmax(quantized_logits.float(), dim=-1)
        nll = -log_probabilities.gather(-1, targets).squeeze(-1)
        kl = _kl_divergence(reference, log_probabilities, p)
        changed = (log_probabilities.argmax(dim=-1) != top1).float()
        scores.append(torch.stack([nll, kl, changed]))
    return torch.stack(scores, dim=1)


# The probe


class Prober:
    """Scores models on a suite's validation batches, at full precision and quantized.

    ``probe`` has ``quantizers`` (definitions by name), ``roles`` (``low_bit`` or ``high_bit`` by
    the same names), ``batch_size`` and ``device``. With ``sequences``, only so many of the token
    file are scored. ``made_by`` records everything that decides the scores. The constructor sets
    torch's threads and numeric mode and, on a machine with several GPUs, takes one.
    """

    def __init__(self, validation: str, probe: Mapping, threads: int) -> None:
        self.device = take_device(probe["device"], threads)
        self.tokens = read_tokens(validation)[: probe.get("sequences")]
        self.specs = read_specs(probe["quantizers"])
        self.roles = {FP32: FP32, **probe["roles"]}
        self.options = {"batch_size": probe["batch_size"], "device": self.device}  # of ``score``
        self.made_by = describe_run(
            device=self.device,
            threads=threads,
            probe=dict(probe),
            validation_sha256=file_sha256(validation),
        )

    def __call__(self, model: nn.Module, step: int) -> pd.DataFrame:
        """``scores_table`` of the model of ``step`` and of its quantized variants.

        Raises ``NotMeasured`` if the model cannot be scored, and ``Diverged`` if its numbers are
        not finite; both name the step. For the first model, the log and ``made_by`` list which
        weights are quantized.
        """
        try:
            scores, coverages = score_quantized(
                model.eval(), self.tokens, self.specs, **self.options
            )
            for name, record in scores.items():
                if not record.mean_nll() < np.log(np.finfo(np.float64).max):
                    raise Diverged(
                        f"{name}: {record.mean_nll():g} nats; the perplexity is not finite"
                    )
        except UserError as error:
            kind = Diverged if isinstance(error, Diverged) else NotMeasured
            reason = one_line(error)
            if "out of bounds" in reason or "out of range" in reason:
                # Most often a table of positions: the vocabulary is checked before.
                reason += (
                    f"; the sequences have {self.tokens.shape[1]} tokens, perhaps more than the "
                    "model has positions (--length of an audit, batches.validation.length)"
                )
            raise kind(f"step {step}: {reason}") from error
        if "coverage" not in self.made_by:
            self.made_by |= {"coverage": coverages, "peculiarities": peculiarities(model)}
            for name, quantizer_coverage in coverages.items():
                logger.info(f"{name}: {coverage_line(quantizer_coverage)}")
            for line in self.made_by["peculiarities"]:
                logger.info(line)
        return scores_table(scores, step, self.roles)

    def checkpoint(self, folder: str | Path, step: int) -> list[pd.DataFrame]:
        """A list with the scores of a checkpoint; an empty list if the model has diverged.

        In that case, the log has one line and ``made_by["left_out"]`` the reason by step.
        """
        try:
            return [self(load_model(folder, self.device), step)]
        except Diverged as error:
            self.made_by.setdefault("left_out", {})[step] = str(error)
            logger.warning(f"not measured: {error}")
            return []
